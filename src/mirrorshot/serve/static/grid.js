/** The images as a grid. Only the rows near the screen are in the document, so that a change of one image stays quick. */

import { byId, draggable, h, named, percent, plural, preview } from "./dom.js";

const HEAD = 110, AHEAD = 500, FIRST = 24, FOOT = 80; // pixels: under the toolbar, around the screen, below the grid; tiles before sizes are known
const EMPTY = { todo: "No image without a label is left. Drop others above, or choose another filter.",
  sample: "The sample is checked. “Accept sure answers …” says what it tells about the others." };
const tiles = new Map();
const size = { columns: 1, row: 0, top: 0, scroll: 0, height: innerHeight };
let list = [], view = null, range = [0, 0];

const grid = byId("grid");

export function drawGrid(images, shownList, shownView, isReady) {
  [list, view] = [shownList, shownView];
  grid.hidden = list.length === 0;
  byId("images-count").textContent = images.length ? `${list.length} of ${plural(images.length, "image")}` : "";
  byId("images-hint").textContent = images.length === 0
    ? "Each gets an answer with probabilities. You will be asked about the one whose label would teach most."
    : list.length === 0 ? (view.classId === null && EMPTY[view.filter]) || "Nothing here. Choose another filter."
      : isReady ? "" : "Answers come as soon as two classes have examples.";
  const known = new Set(images.map(({ id }) => id));
  for (const id of tiles.keys()) if (!known.has(id)) tiles.delete(id);
  const hadFocus = grid.contains(document.activeElement);
  drawRange();
  if (hadFocus && list.length) focusTile(currentId());
  requestAnimationFrame(measure);
}

const currentId = () => (list.some(({ id }) => id === view.current) ? view.current : list[0]?.id);

/** Places in the list of the rows near the screen. */
function near() {
  if (!size.row) return [0, Math.min(list.length, FIRST)];
  const rows = Math.ceil(list.length / size.columns);
  const at = (y) => Math.min(rows, Math.max(0, Math.floor((y - size.top) / size.row)));
  const [first, last] = [at(size.scroll - AHEAD), at(size.scroll + size.height + AHEAD) + 1];
  return [first * size.columns, Math.min(list.length, last * size.columns)];
}

/** Put the tiles near the screen into the document, and room for the others around them. */
function drawRange() {
  range = near();
  const [first, last] = range;
  const current = currentId();
  const isCurrentThere = list.slice(first, last).some(({ id }) => id === current);
  const wanted = list.slice(first, last).map((image, index) =>
    updated(image, first + index, image.id === current || (!isCurrentThere && index === 0)));
  const hadFocus = grid.contains(document.activeElement);
  const keep = new Set(wanted);
  for (const tile of [...grid.children]) if (!keep.has(tile)) tile.remove();
  wanted.forEach((tile, index) => { if (grid.children[index] !== tile) grid.insertBefore(tile, grid.children[index] ?? null); });
  const rows = (n) => Math.ceil(n / size.columns) * size.row;
  grid.style.setProperty("--above", `${rows(first)}px`);
  grid.style.setProperty("--below", `${rows(list.length - last) + FOOT}px`);
  if (hadFocus && !grid.contains(document.activeElement)) grid.focus({ preventScroll: true }); // keys go on from the current image
}

/** Read sizes after the layout, and draw again if other rows are near the screen now. */
function measure() {
  const tile = grid.firstElementChild;
  if (!tile || grid.hidden) return;
  const style = getComputedStyle(grid);
  size.columns = Math.max(1, style.gridTemplateColumns.split(" ").length);
  size.row = tile.offsetHeight + parseFloat(style.rowGap);
  Object.assign(size, { scroll: scrollY, height: innerHeight, top: grid.getBoundingClientRect().top + scrollY });
  const [first, last] = near();
  if (first < range[0] || last > range[1]) drawRange();
}

let isWaiting = false;
function later() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => { isWaiting = false; measure(); });
}
addEventListener("scroll", later, { passive: true });
new ResizeObserver(later).observe(grid);

/** Draw some of the tiles that are shown. */
export function drawTiles(changed) {
  const places = new Map(list.slice(...range).map(({ id }, index) => [id, range[0] + index]));
  for (const image of changed) if (places.has(image.id)) updated(image, places.get(image.id), image.id === view.current);
}

export function focusTile(id) {
  const place = list.findIndex((image) => image.id === id);
  if (place < 0) return;
  if (size.row) {
    const top = size.top + Math.floor(place / size.columns) * size.row;
    if (top < size.scroll + HEAD || top + size.row > size.scroll + size.height) {
      const isAbove = top < size.scroll + HEAD;
      scrollTo(0, isAbove ? top - HEAD : top + size.row + FOOT - size.height);
      size.scroll = scrollY;
      drawRange();
    }
  }
  const tile = tiles.get(id);
  if (tile?.isConnected && document.activeElement !== tile) tile.focus({ preventScroll: true });
}

function updated(image, place, isCurrent) {
  const isSelected = view.selected.has(image.id);
  const state = JSON.stringify([image.name, image.status, image.label, image.hue, image.answer?.label, image.answer?.probability, image.answer?.verdict,
    image.suspect?.suggested, isSelected, isCurrent]);
  const tile = tiles.get(image.id) ?? newTile(image);
  if (tile.ariaPosInSet !== String(place + 1)) tile.ariaPosInSet = String(place + 1);
  if (tile.ariaSetSize !== String(list.length)) tile.ariaSetSize = String(list.length);
  if (tile.dataset.state === state) return tile;
  const [text, share, mark] = caption(image);
  tile.dataset.state = state;
  tile.className = `tile ${image.status} ${image.answer?.verdict ?? ""} ${image.suspect ? "suspect" : ""}`;
  tile.setAttribute("aria-selected", String(isSelected));
  tile.title = `${image.name}: ${text} ${share}`.trim();
  tile.tabIndex = isCurrent ? 0 : -1;
  tile.style.setProperty("--hue", String(image.hue ?? 210));
  const [, name, under, sign, more] = tile.children;
  name.textContent = `${image.name}, `;
  under.replaceChildren(text.startsWith("none") && !image.label ? "" : h("span", { class: image.hue === undefined ? "dot no-class" : "dot", "aria-hidden": "true" }),
    named(text, ""), h("span", { class: "share" }, share));
  sign.textContent = mark.sign;
  more.textContent = mark.title ? `, ${mark.title}` : "";
  return tile;
}

function newTile(image) {
  const tile = draggable(h("li", { id: `tile-${image.id}`, role: "option" }, preview(image, 112), h("span", { class: "unseen" }), h("span", { class: "caption" }),
    h("span", { class: "mark", "aria-hidden": "true" }), h("span", { class: "unseen" })), image);
  tile.dataset.id = String(image.id);
  tiles.set(image.id, tile);
  return tile;
}

const MARKS = { example: ["●", "labelled"], accepted: ["✓", "accepted"], none: ["✕", "none of these"] };

function caption({ status, label, answer, suspect }) {
  const [sign, title] = suspect ? ["?", `the other examples say ${suspect.suggested}`] : MARKS[status] ?? ["", ""];
  if (status === "none") return ["none", "", { sign, title }];
  if (status !== "open") return [label ?? "", "", { sign, title }];
  if (!answer) return ["no answer", "", { sign: "", title: "" }];
  if (answer.verdict === "none") return ["none?", "", { sign: "", title: `none of these, perhaps ${answer.label}` }];
  return [answer.label, percent(answer.probability), { sign: "", title: answer.verdict === "sure" ? "sure" : "not sure" }];
}

/** Moves of the arrow keys within the grid, as a number of tiles. */
export const step = (key) => ({ ArrowRight: 1, ArrowLeft: -1, ArrowDown: size.columns, ArrowUp: -size.columns, Home: -Infinity, End: Infinity })[key];
