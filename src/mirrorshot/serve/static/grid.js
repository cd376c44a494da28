/** The images as a grid: filters, order, selection, and keys. */

import { byId, differs, draggable, h, percent, plural, preview } from "./dom.js";
import { counts, FILTERS, SORTS } from "./model.js";

const tiles = new Map();
const HEAD = 110; // pixels that the toolbar may cover

export function drawToolbar(images, view, { overview, undoText }, act) {
  const bar = byId("toolbar");
  bar.hidden = images.length === 0;
  const found = counts(images);
  const { filter, classId, sort } = view;
  if (!differs(bar, found, filter, classId, sort, overview.classes, undoText)) return;
  const focused = bar.contains(document.activeElement) ? document.activeElement.id : "";
  bar.replaceChildren(
    h("div", { class: "chips", role: "group", "aria-label": "Show" }, FILTERS.filter(([key]) => found[key] > 0 || ["todo", "all"].includes(key) || key === view.filter)
      .map(([key, name]) => h("button", { id: `filter-${key}`, type: "button", class: "chip", "aria-pressed": String(view.filter === key),
        onclick: () => act.view({ filter: key }) }, name, h("span", { class: "n" }, String(found[key]))))),
    h("div", { class: "row controls" },
      h("label", {}, h("span", { class: "unseen" }, "Class"), h("select", { id: "filter-class", onchange: (event) =>
        act.view({ classId: event.target.value ? Number(event.target.value) : null }) },
        h("option", { value: "" }, "any class"), overview.classes.map(({ id, name }) =>
          h("option", { value: String(id), selected: view.classId === id }, name)))),
      h("label", {}, h("span", { class: "unseen" }, "Order"), h("select", { id: "sort", onchange: (event) => act.view({ sort: event.target.value }) },
        Object.entries(SORTS).map(([key, [name]]) => h("option", { value: key, selected: view.sort === key }, name)))),
      h("button", { id: "undo", type: "button", class: "quiet", disabled: undoText === null, "aria-keyshortcuts": "u Control+z",
        title: undoText === null ? "Nothing to undo" : `Undo: ${undoText}`, onclick: act.undo }, "Undo", h("kbd", { "aria-hidden": "true" }, "U")),
      h("button", { id: "accept", type: "button", class: "primary", disabled: found.sure === 0, onclick: act.acceptMany }, "Accept sure answers …")));
  if (focused) byId(focused)?.focus({ preventScroll: true });
}

export function drawGrid(images, list, view) {
  const grid = byId("grid");
  const hadFocus = grid.contains(document.activeElement);
  grid.hidden = list.length === 0;
  byId("images-count").textContent = images.length ? `${list.length} of ${plural(images.length, "image")}` : "";
  byId("images-hint").textContent = images.length === 0
    ? "Each gets an answer with probabilities. You will be asked about the one whose label would teach most."
    : list.length === 0 ? "Nothing here. Choose another filter." : "";
  const current = list.some(({ id }) => id === view.current) ? view.current : list[0]?.id;
  const wanted = list.map((image) => updated(image, view.selected.has(image.id), image.id === current));
  const known = new Set(images.map(({ id }) => id));
  for (const id of tiles.keys()) if (!known.has(id)) tiles.delete(id);
  if (grid.children.length !== wanted.length || wanted.some((tile, index) => grid.children[index] !== tile)) grid.replaceChildren(...wanted);
  if (hadFocus && current !== undefined) focusTile(current);
}

/** Draw some of the tiles that are shown. */
export function drawTiles(changed, view) {
  for (const image of changed) updated(image, view.selected.has(image.id), image.id === view.current);
}

export function focusTile(id) {
  const tile = tiles.get(id);
  if (!tile?.isConnected) return;
  if (document.activeElement !== tile) tile.focus({ preventScroll: true });
  const { top, bottom } = tile.getBoundingClientRect();
  if (top < HEAD || bottom > innerHeight) tile.scrollIntoView({ block: "nearest" });
}

function updated(image, isSelected, isCurrent) {
  const state = JSON.stringify([image.name, image.status, image.label, image.hue, image.answer?.label, image.answer?.probability, image.answer?.verdict,
    image.suspect?.suggested, isSelected, isCurrent]);
  let tile = tiles.get(image.id);
  if (tile?.dataset.state === state) return tile;
  if (!tile) {
    tile = draggable(h("li", { id: `tile-${image.id}`, role: "option" }, preview(image, 112), h("span", { class: "unseen" }), h("span", { class: "caption" }),
      h("span", { class: "mark", "aria-hidden": "true" }), h("span", { class: "unseen" })), image);
    tiles.set(image.id, tile);
  }
  const [text, share, mark] = caption(image);
  tile.dataset.state = state;
  tile.dataset.id = String(image.id);
  tile.className = `tile ${image.status} ${image.answer?.verdict ?? ""} ${image.suspect ? "suspect" : ""}`;
  tile.setAttribute("aria-selected", String(isSelected));
  tile.title = image.name;
  tile.tabIndex = isCurrent ? 0 : -1;
  tile.style.setProperty("--hue", String(image.hue ?? 210));
  const [, name, under, sign, more] = tile.children;
  name.textContent = `${image.name}, `;
  under.replaceChildren(text.startsWith("none") && !image.label ? "" : h("span", { class: image.hue === undefined ? "dot no-class" : "dot", "aria-hidden": "true" }),
    h("span", { class: "name" }, text), h("span", { class: "share" }, share));
  sign.textContent = mark.sign;
  more.textContent = mark.title ? `, ${mark.title}` : "";
  return tile;
}

const MARKS = { example: ["●", "labelled"], accepted: ["✓", "accepted"], none: ["✕", "none of these"] };

function caption({ status, label, answer, suspect }) {
  const [sign, title] = suspect ? ["?", `the other examples say ${suspect.suggested}`] : MARKS[status] ?? ["", ""];
  if (status === "none") return ["none", "", { sign, title }];
  if (status !== "open") return [label ?? "", "", { sign, title }];
  if (!answer) return ["no answer yet", "", { sign: "", title: "" }];
  if (answer.verdict === "none") return ["none?", "", { sign: "", title: `none of these, perhaps ${answer.label}` }];
  return [answer.label, percent(answer.probability), { sign: "", title: answer.verdict === "sure" ? "sure" : "not sure" }];
}

export function drawSelection(list, view, overview, act) {
  const bar = byId("selection");
  const ids = [...view.selected];
  bar.hidden = ids.length === 0;
  if (ids.length === 0) return bar.replaceChildren();
  const focused = bar.contains(document.activeElement) ? document.activeElement.id : "";
  bar.replaceChildren(
    h("span", { class: "n" }, `${ids.length} selected`),
    h("label", {}, h("span", { class: "unseen" }, "Label the selected images as"), h("select", { id: "label-selected",
      onchange: (event) => event.target.value && act.label(ids, Number(event.target.value)) },
      h("option", { value: "" }, "Label as …"), overview.classes.map(({ id, name }) => h("option", { value: String(id) }, name)))),
    button("accept-selected", "Accept answers", () => act.accept(ids)), button("none-selected", "None of these", () => act.none(ids)),
    button("open-selected", "No label", () => act.open(ids)), button("remove-selected", "Remove", () => act.remove(ids)),
    button("clear-selected", "Clear", () => act.select([])));
  if (focused) byId(focused)?.focus();
}

const button = (id, text, onclick) => h("button", { id, type: "button", class: "quiet", onclick }, text);

/** Moves of the arrow keys within the grid, as a number of tiles. */
export function step(key) {
  const children = [...byId("grid").children];
  const columns = Math.max(1, children.findIndex((tile) => tile.offsetTop > children[0].offsetTop));
  const perRow = children.length && children.at(-1).offsetTop === children[0].offsetTop ? children.length : columns;
  return { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow, Home: -Infinity, End: Infinity }[key];
}
