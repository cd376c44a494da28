/** How far the user is: labelled, accepted, sure, what to expect, when to stop, and whether the encoder fits. */

import { byId, h, percent, plural, redraw } from "./dom.js";
import { counts, expectation } from "./model.js";

const ENOUGH = 0.95; // lower end of the interval from which on labelling may stop

export function drawProgress(images, { overview, calibration, misfits }) {
  byId("progress").hidden = images.length === 0;
  if (images.length === 0) return;
  const found = counts(images);
  const parts = [["labelled", found.example], ["accepted", found.accepted], ["none", found.none], ["sure", found.sure],
    ["open", found.todo - found.sure]];
  redraw(byId("progress-body"),
    h("div", { class: "meter", "aria-hidden": "true" }, parts.map(([kind, n]) => n > 0 && h("span", { class: kind, style: { "flex-grow": String(n) } }))),
    h("dl", { class: "figures" },
      figure("Labelled", found.example + found.none, "labelled"), figure("Accepted", found.accepted, "accepted"),
      figure("Sure", found.sure, "sure"), figure("To look at", found.todo - found.sure, "open")),
    overview.is_ready && h("p", { class: "advice" }, advice(found, expectation(images, calibration))),
    warning(overview, calibration, misfits, images.length));
}

const figure = (name, n, kind) => h("div", {}, h("dt", {}, h("span", { class: `key ${kind}`, "aria-hidden": "true" }), name), h("dd", {}, String(n)));

function advice(found, expected) {
  if (!expected) return found.todo === 0 ? "Every image has a label. Export them under “Labels …”, or download the model." : "";
  const range = h("strong", {}, `${percent(expected.mean)} [${Math.round(100 * expected.low)}, ${Math.round(100 * expected.high)}]`);
  const begin = ["If you accept the other ", plural(expected.n, "answer"), " now, about ", range, " of them will be right. "];
  const left = found.unsure + found.todo - found.sure - found.unsure;
  if (expected.low >= ENOUGH) return [...begin, "You can stop here: accept them."];
  return [...begin, left > 0 ? `Label some of the ${left} that are not sure first.` : "A few more labels make that safer."];
}

function warning(overview, calibration, misfits, n) {
  const { encoder, classes } = overview;
  if (misfits.n >= 3 && misfits.n > 0.2 * n)
    return note(`${plural(misfits.n, "image")} do not look like what the encoder “${encoder}” is made for. Start over and choose what images show.`);
  const chance = 1 / Math.max(2, classes.filter(({ n_examples }) => n_examples > 0).length);
  if (calibration && calibration.n >= 10 && calibration.accuracy < (1 + chance) / 2)
    return note(`With the encoder “${encoder}” the classes are hard to tell apart: examples are predicted right in ${percent(calibration.accuracy)} ` +
      "only. Photographs want a network: mirrorshot serve --encoder timm:NAME.");
  return null;
}

const note = (text) => h("p", { class: "misfit", role: "note" }, text);
