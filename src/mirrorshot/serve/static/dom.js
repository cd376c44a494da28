/** Elements without HTML in strings: text of users is never HTML. */

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, setting]) => element.style.setProperty(key, setting));
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Names with numbers behind those that occur again, by id. */
export function uniqueNames(pictures) {
  const seen = new Set(), names = new Map();
  for (const { id, name } of pictures) {
    let shown = name;
    for (let number = 2; seen.has(shown); number += 1) shown = `${name} (${number})`;
    seen.add(shown);
    names.set(id, shown);
  }
  return names;
}

/** Whether what a place is to show differs from what it shows; layout of hundreds of elements takes time. */
export function differs(place, ...content) {
  const key = JSON.stringify(content);
  const isNew = place.dataset.content !== key;
  place.dataset.content = key;
  return isNew;
}

/** A name of the user: cut at its end, which is on the left in some scripts. */
export const named = (text, title = text) => h("span", { class: "name", dir: "auto", title }, text);

/** Draw anew, and leave the focus where it was, or on a neighbour if its element is gone. */
export function redraw(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
  place.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (focused) (byId(focused) ?? place.querySelector("button, select, input"))?.focus({ preventScroll: true });
}

export const percent = (share) =>
  share > 0.995 && share < 1 ? "> 99\u00a0%" : share < 0.005 && share > 0 ? "< 1\u00a0%" : `${Math.round(100 * share)}\u00a0%`;

export const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

/** A colour for each class that stays with it; names are always beside it. */
export const hue = (index) => Math.round((205 + 137.5 * index) % 360);

export function preview(picture, size) {
  return h("img", {
    src: picture.src, alt: "", width: String(size), height: String(size), loading: "lazy",
    draggable: false,
  });
}

/** A question in the middle of the page; resolves to the value of the button that was pressed, or null. */
export function dialog(title, content, actions) {
  const box = byId("dialog");
  const buttons = actions.map(({ label, value, kind }) =>
    h("button", { type: "submit", value, class: kind ?? "quiet" }, label));
  box.replaceChildren(
    h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), content, h("div", { class: "row end" }, buttons)),
  );
  box.returnValue = "";
  box.showModal();
  (box.querySelector("input, select") ?? buttons.at(-1)).focus();
  return new Promise((resolve) => {
    box.addEventListener("close", () => resolve(box.returnValue || null), { once: true });
  });
}

/** An area that takes files: dropped, chosen with the mouse, or with the keyboard. */
export function dropZone({ id, text, label, onfiles, onpicture }) {
  const input = h("input", { id, type: "file", accept: "image/*", multiple: true, class: "unseen", "aria-label": label,
    onchange: () => { onfiles([...input.files]); input.value = ""; } });
  return takesDrops(h("label", { class: "drop", for: id }, input, h("span", {}, text)), onfiles, onpicture);
}

const PICTURE = "text/x-mirrorshot-picture";

export function takesDrops(zone, onfiles, onpicture) {
  const accepts = (event) => event.dataTransfer.types.includes("Files") ||
    (onpicture && event.dataTransfer.types.includes(PICTURE));
  for (const kind of ["dragenter", "dragover"])
    zone.addEventListener(kind, (event) => {
      if (!accepts(event)) return;
      event.preventDefault();
      zone.classList.add("over");
    });
  for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
  zone.addEventListener("drop", async (event) => {
    if (!accepts(event)) return;
    event.preventDefault();
    event.stopPropagation();
    const picture = Number(event.dataTransfer.getData(PICTURE));
    if (event.dataTransfer.files.length) onfiles(await filesOf(event.dataTransfer));
    else if (picture && onpicture) onpicture(picture);
  });
  return zone;
}

/** Files that were dropped, and the images in folders that were. */
async function filesOf({ items, files }) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean); // before the first wait: they are gone after it
  const loose = [...files];
  if (!entries.some(({ isDirectory }) => isDirectory)) return loose;
  const folders = entries.filter(({ isDirectory }) => isDirectory), names = new Set(folders.map(({ name }) => name));
  const inside = (await Promise.all(folders.map(filesIn))).flat().filter(({ type }) => type.startsWith("image/"));
  return [...loose.filter(({ name }) => !names.has(name)), ...inside];
}

async function filesIn(entry) {
  if (entry.isFile) return [await new Promise((done, fail) => entry.file(done, fail))];
  const reader = entry.createReader(), found = [];
  for (let part = [null]; part.length; found.push(...part)) part = await new Promise((done, fail) => reader.readEntries(done, fail));
  return (await Promise.all(found.map(filesIn))).flat();
}

export function draggable(element, picture) {
  element.draggable = true;
  element.addEventListener("dragstart", (event) => event.dataTransfer.setData(PICTURE, String(picture.id)));
  return element;
}
