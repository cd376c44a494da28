/** Values that survive a reload of the page, as long as its window is open. */

export function kept(key, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function keep(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
  } catch { /* no room: it lasts as long as the page */ }
}
