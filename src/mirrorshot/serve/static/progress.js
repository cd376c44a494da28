/** How far the user is: labelled, accepted, sure, what to expect, when to stop, and whether the encoder fits. */

import { byId, h, percent, plural, redraw } from "./dom.js";
import { titleOf } from "./encoder.js";
import { expectation } from "./expectation.js";
import { openProbabilities } from "./model.js";

const ENOUGH = 0.95; // lower end of the interval from which on labelling may stop
const NOVEL = 0.05, SOME = 20; // share of images like the examples that look like none of the classes; images before it is compared

export function drawProgress({ images, found, overview, calibration, misfits, checks }, act) {
  byId("progress").hidden = images.length === 0;
  if (images.length === 0) return;
  const unlike = strangers(images);
  const parts = [["labelled", found.example], ["accepted", found.accepted], ["none", found.none], ["sure", found.sure],
    ["open", found.todo - found.sure]];
  redraw(byId("progress-body"),
    h("div", { class: "meter", "aria-hidden": "true" }, parts.map(([kind, n]) => n > 0 && h("span", { class: kind, style: { "flex-grow": String(n) } }))),
    h("dl", { class: "figures" },
      figure("Labelled", found.example + found.none, "labelled"), figure("Accepted", found.accepted, "accepted"),
      figure("Sure", found.sure, "sure"), figure("To look at", found.todo - found.sure, "open")),
    overview.is_ready && h("p", { class: "advice" }, advice(found, expectation(openProbabilities(images), checks), checks, unlike)),
    unlike && note(unlike), misfit(overview, calibration, misfits, images.length, act));
}

const figure = (name, n, kind) => h("div", {}, h("dt", {}, h("span", { class: `key ${kind}`, "aria-hidden": "true" }), name), h("dd", {}, String(n)));

export const range = ({ mean, low, high }) => `${percent(mean)} [${Math.round(100 * low)}, ${Math.round(100 * high)}]`;

function advice(found, expected, checks, unlike) {
  if (!expected) return found.todo === 0 ? "Every image has a label. Drop others to get answers about them, export the labels under “Labels …”, or download the model." : "";
  const begin = expected.n === 1 ? ["If you accept the open answer now, it will be right with a probability of ", h("strong", {}, percent(expected.mean)), ". "]
    : ["If you accept the ", plural(expected.n, "open answer"), " now, about ", h("strong", {}, range(expected)), " of them will be right. "];
  if (expected.low >= ENOUGH && !unlike) return [...begin, "You can stop here: accept them."];
  const unsure = found.todo - found.sure;
  if (unsure > 0 && checks.length < SOME) return [...begin, `Label some of the ${unsure} that are not sure; every label also checks the answers.`];
  return [...begin, unsure > 0 ? "Accept the sure ones, and label the others." : "Under “Accept sure answers …” you can check some at random first."];
}

/** Many images that are unlike all examples: the examples do not represent them. */
function strangers(images) {
  const answered = images.filter(({ status, answer }) => status === "open" && answer);
  const n = answered.filter(({ answer }) => answer.verdict === "none").length;
  const usual = answered.length * NOVEL;
  if (answered.length < SOME || n <= usual + 2 * Math.sqrt(usual * (1 - NOVEL))) return null;
  return `${n} of ${answered.length} images are unlike all examples, where 1 in 20 is usual: they are of other classes, or made in another way. ` +
    "Label some of them (“None of these”).";
}

function misfit(overview, calibration, misfits, n, act) {
  const { encoder, encoders, classes } = overview;
  if (encoder === null || overview.encoder_change) return null;
  const [best, count] = [...misfits].filter(([name]) => name !== encoder).sort((a, b) => b[1] - a[1])[0] ?? [null, 0];
  if (count >= 3 && count > 0.2 * n)
    return note(`${plural(count, "image")} do not look like what the encoder “${titleOf(encoder)}” is made for.`, act, best);
  const chance = 1 / Math.max(2, classes.filter(({ n_examples }) => n_examples > 0).length);
  if (!calibration || calibration.n < 10 || calibration.accuracy >= (1 + chance) / 2) return null;
  const photographs = encoders.find((name) => name.startsWith("efficientnet") && name !== encoder);
  return note(`With the encoder “${titleOf(encoder)}” the classes are hard to tell apart: of the examples, each predicted from the others, only ` +
    `${percent(calibration.accuracy)} are right.`, act, photographs ?? null);
}

const note = (text, act = null, encoder = null) => h("p", { class: "misfit", role: "note" }, h("span", {}, text),
  act && h("button", { id: "misfit-encoder", type: "button", class: "quiet", onclick: () => act.askEncoder(encoder) }, "Choose the encoder …"));
