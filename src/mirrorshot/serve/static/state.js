/** What the page knows: the state of the server, and what the user looks at. */

import { byId, h } from "./dom.js";
import { shown } from "./model.js";

/** `images` describes every image, `list` has those that the filter shows, in their order. */
export const state = { overview: null, answers: null, calibration: null, misfits: new Map(), former: null, isOffline: false, images: [], list: [] };
export const view = { filter: "todo", classId: null, sort: "doubt", selected: new Set(), current: null, anchor: null };

export const say = (text) => { byId("status").textContent = text; };

export function complain(error) {
  const box = h("p", { class: "problem" }, h("span", {}, error.message),
    h("button", { class: "quiet small", type: "button", "aria-label": "Dismiss this message", onclick: () => box.remove() }, "Dismiss"));
  byId("problems").append(box);
  while (byId("problems").childElementCount > 5) byId("problems").firstElementChild.remove();
}

/** The image in question: the one that the user is at, else the one whose label would teach most. */
export function inQuestion() {
  const at = state.images.find(({ id }) => id === view.current);
  if (at) return at;
  const open = state.images.filter(({ status }) => status === "open");
  return open.find(({ id }) => id === state.answers?.suggestion) ?? (state.answers ? shown(open, { filter: "todo", classId: null, sort: "doubt" })[0] : undefined);
}
