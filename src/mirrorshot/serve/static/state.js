/** What the page knows: the state of the server, and what the user looks at. */

import { byId, h } from "./dom.js";
import { shown } from "./model.js";

/** `images` describes every image, `list` has those that the filter shows, in their order. */
export const state = { overview: null, answers: null, calibration: null, misfits: new Map(), former: null, isAway: false, images: [], list: [] };
export const view = { filter: "todo", classId: null, sort: "doubt", selected: new Set(), current: null, anchor: null };

const SECONDS = 6; // that a message stays
let leaving = null;

/** Tell what has been done, for a while. */
export function say(text) {
  byId("status").textContent = text;
  clearTimeout(leaving);
  leaving = setTimeout(() => { byId("status").textContent = ""; }, 1000 * SECONDS);
}

/** Say that the server does not answer, or that it does again. */
export function tellAway(isAway) {
  state.isAway = isAway;
  byId("away").hidden = !isAway;
  if (!isAway) say("The server answers again.");
}

/** Show what went wrong until it is dismissed; the same message once. */
export function complain(error) {
  for (const other of [...byId("problems").children]) if (other.firstElementChild.textContent === error.message) other.remove();
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
