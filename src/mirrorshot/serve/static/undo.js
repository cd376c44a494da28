/** Changes that can be taken back, the last one first. They survive a reload of the page. */

const KEY = "mirrorshot-undo", MOST = 50;

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? [];
  } catch {
    return [];
  }
}

let steps = stored();

function keep() {
  steps = steps.slice(-MOST);
  try {
    sessionStorage.setItem(KEY, JSON.stringify(steps));
  } catch { /* no room: they last as long as the page */ }
}

export const history = {
  push(text, changes) { const step = { text, changes }; steps.push(step); keep(); return step; },
  remove(step) { steps = steps.filter((made) => made !== step); keep(); },
  pop() { const last = steps.pop(); keep(); return last; },
  clear() { steps = []; keep(); },
  text: () => steps.at(-1)?.text ?? null,
};
