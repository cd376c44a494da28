/** The bar above the grid (filters, order, undo, accept), and the bar of the selected images. */

import { byId, differs, h, redraw } from "./dom.js";
import { FILTERS, SORTS } from "./model.js";

const ALWAYS = ["todo", "all"];

export function drawToolbar({ found, view, classes, undoText }, act) {
  const bar = byId("toolbar");
  bar.hidden = found.all === 0;
  const { filter, classId, sort } = view;
  if (!differs(bar, found, filter, classId, sort, classes, undoText)) return;
  redraw(bar, filters(found, view, act), controls(found, view, classes, undoText, act));
}

function filters(found, view, act) {
  const chips = FILTERS.filter(([key]) => found[key] > 0 || ALWAYS.includes(key) || key === view.filter);
  return h("div", { class: "chips", role: "group", "aria-label": "Show" }, chips.map(([key, name]) =>
    h("button", { id: `filter-${key}`, type: "button", class: "chip", "aria-pressed": String(view.filter === key),
      onclick: () => act.view({ filter: key }) }, name, h("span", { class: "n" }, String(found[key])))));
}

function controls(found, view, classes, undoText, act) {
  const ofClass = h("select", { id: "filter-class", onchange: ({ target }) => act.view({ classId: target.value ? Number(target.value) : null }) },
    h("option", { value: "" }, "any class"),
    classes.map(({ id, name }) => h("option", { value: String(id), selected: view.classId === id }, name)));
  const order = h("select", { id: "sort", onchange: ({ target }) => act.view({ sort: target.value }) },
    Object.entries(SORTS).map(([key, [name]]) => h("option", { value: key, selected: view.sort === key }, name)));
  return h("div", { class: "row controls" },
    h("label", {}, h("span", { class: "unseen" }, "Class"), ofClass), h("label", {}, h("span", { class: "unseen" }, "Order"), order),
    h("button", { id: "undo", type: "button", class: "quiet", disabled: undoText === null, "aria-keyshortcuts": "u Control+z",
      title: undoText === null ? "Nothing to undo" : `Undo: ${undoText}`, onclick: act.undo }, "Undo", h("kbd", { "aria-hidden": "true" }, "U")),
    h("button", { id: "accept", type: "button", class: "primary", disabled: found.sure === 0,
      title: found.sure === 0 ? "No answer is sure yet" : "", onclick: act.acceptMany }, "Accept sure answers …"));
}

export function drawSelection(view, classes, act) {
  const bar = byId("selection");
  const ids = [...view.selected];
  bar.hidden = ids.length === 0;
  if (ids.length === 0) return bar.replaceChildren();
  redraw(bar,
    h("span", { class: "n" }, `${ids.length} selected`),
    h("label", {}, h("span", { class: "unseen" }, "Label the selected images as"), h("select", { id: "label-selected",
      onchange: ({ target }) => target.value && act.label(ids, Number(target.value)) },
      h("option", { value: "" }, "Label as …"), classes.map(({ id, name }) => h("option", { value: String(id) }, name)))),
    button("accept-selected", "Accept answers", () => act.accept(ids)), button("none-selected", "None of these", () => act.none(ids)),
    button("open-selected", "No label", () => act.open(ids)), button("remove-selected", "Remove", () => act.remove(ids)),
    button("clear-selected", "Clear", () => act.select([])));
}

const button = (id, text, onclick) => h("button", { id, type: "button", class: "quiet", onclick }, text);
