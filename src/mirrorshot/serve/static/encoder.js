/** The encoder: what each is for, the dialog to choose another, and the progress of a change. */

import { api } from "./api.js";
import { byId, dialog, h, plural, redraw } from "./dom.js";

const KNOWN = {
  auto: ["Detect", "The first image decides."],
  glyphs: ["Characters", "Letters, digits and symbols, written by hand or printed, on any paper."],
  pixels: ["Images taken alike", "Scans, screenshots or a fixed camera. Compares pixels at the same place, without a network."],
};
const PHOTOGRAPHS = ["Photographs", "Things, animals, plants or places, from any side. A network trained on ImageNet."];
const POLL = 400, LEAST = 3; // milliseconds between questions; images before a time is estimated

const about = (name) => KNOWN[name] ?? (name.startsWith("efficientnet") ? PHOTOGRAPHS : [name, "An encoder that the operator of this server has chosen."]);
export const titleOf = (name) => about(name)[0];

/** The button in the header. */
export function drawEncoderButton({ encoder, encoders }) {
  byId("encoder").textContent = `Encoder: ${titleOf(encoder ?? (encoders.length > 1 ? "auto" : encoders[0]))}`;
}

/** Ask for an encoder; resolves to its name, or to null. `suggested` is selected at first. */
export async function askForEncoder({ encoder, encoders, pictures }, suggested = null) {
  const hasImages = pictures.length > 0;
  const names = hasImages || encoders.length === 1 ? encoders : ["auto", ...encoders];
  const present = encoder ?? names[0];
  const option = (name) => h("label", { class: "option" },
    h("input", { type: "radio", name: "encoder", value: name, checked: name === (suggested ?? present) }),
    h("span", {}, h("strong", {}, titleOf(name)), name === present && h("span", { class: "tag" }, "in use"), h("span", { class: "rest" }, about(name)[1])));
  const options = h("fieldset", { class: "options" }, h("legend", {}, "What do your images show?"), names.map(option));
  const pressed = await dialog("Encoder", h("div", { class: "field" },
    h("p", { class: "hint" }, "The encoder turns images into the numbers that the classifier compares."), options,
    hasImages && names.length > 1 && h("p", { class: "hint" }, `Your ${plural(pictures.length, "image")} are encoded anew in the background. Labels stay, and you can change back.`),
    names.length === 1 && h("p", { class: "hint" }, "This server has no other encoder. For photographs: pip install 'mirrorshot[images]', and start it again.")),
    names.length === 1 ? [{ label: "Close", value: "" }] : [{ label: "Cancel", value: "" }, { label: "Use this encoder", value: "use", kind: "primary" }]);
  const chosen = options.querySelector("input:checked")?.value;
  return pressed && chosen && (chosen !== present || encoder === null) ? chosen : null;
}

/** Follows a change on the server; `tell` gets the state of the encoder after each question. */
export class ChangeWatch {
  #timer = null;
  #started = null;
  #tell;

  constructor(tell) { this.#tell = tell; }

  /** Ask again and again while a change is in progress. */
  follow(change) {
    if (!change || change.problem) { this.#started = null; return; }
    if (this.#started?.encoder !== change.encoder) this.#started = { encoder: change.encoder, time: performance.now(), n: change.n_done };
    this.#timer ??= setTimeout(() => this.#ask(), POLL);
  }

  /** Seconds until the last image is encoded, if they can be estimated. */
  left({ n, n_done: done }) {
    const { time, n: before } = this.#started ?? {};
    return done - before >= LEAST ? ((performance.now() - time) / 1000) * (n - done) / (done - before) : null;
  }

  async #ask() {
    const told = await api.encoder().then((got) => [got], (error) => [null, error]);
    this.#timer = null;
    this.#tell(...told);
  }
}

const seconds = (left) => (left === null ? "" : left > 90 ? `, about ${Math.round(left / 60)} min left` : `, about ${Math.max(1, Math.round(left))} s left`);

/** The change in progress, its failure, or the way back after it. */
export function drawChange({ encoder, encoder_change: change }, { watch, former }, act) {
  const place = byId("encoder-change");
  place.hidden = !change && !former;
  place.classList.toggle("failed", Boolean(change?.problem));
  if (place.hidden) return redraw(byId("change-body"));
  const button = (id, text, onclick, kind = "quiet") => h("button", { id, type: "button", class: kind, onclick }, text);
  if (!change) return redraw(byId("change-body"), h("p", { class: "grow" }, `Your images are encoded as: ${titleOf(encoder)}.`),
    button("change-back", `Change back to: ${titleOf(former)}`, () => act.useEncoder(former)), button("change-hide", "Dismiss", () => act.forgetFormer()));
  if (change.problem) return redraw(byId("change-body"),
    h("p", { class: "grow", role: "alert" }, `The encoder could not be changed to “${titleOf(change.encoder)}”. ${change.problem} Your images and answers are as before.`),
    button("change-again", "Try again", () => act.useEncoder(change.encoder), "primary"), button("change-stop", `Keep: ${titleOf(encoder)}`, () => act.useEncoder(encoder)));
  redraw(byId("change-body"),
    h("div", { class: "grow" },
      h("label", { for: "change-bar" }, h("strong", {}, `Changing the encoder to “${titleOf(change.encoder)}”`)),
      h("progress", { id: "change-bar", max: change.n, value: change.n_done }),
      h("p", { class: "rest" }, `${change.n_done} of ${plural(change.n, "image")} encoded${seconds(watch.left(change))}. ` +
        `Until then answers come from “${titleOf(encoder)}”; you can go on labelling.`)),
    button("change-stop", "Cancel", () => act.useEncoder(encoder)));
}
