/** Questions in the middle of the page: accept many answers, files of labels, keys. */

import { SAMPLE } from "./checks.js";
import { dialog, h, hue, percent, plural, preview, redraw } from "./dom.js";
import { expectation, thresholdFor } from "./expectation.js";

const SHOWN = 24, WRONG = 0.02; // thumbnails of a preview; share of wrong answers that the first threshold aims at

/** Ask for a threshold and show what it accepts; resolves to the images, and to what to do with them ("accept", "check" or null). */
export async function askToAccept(images, { classes }, checks) {
  const open = images.filter(({ status, answer }) => status === "open" && answer && answer.verdict !== "none")
    .sort((a, b) => a.answer.probability - b.answer.probability);
  const first = thresholdFor(open.map(({ answer }) => answer.probability), checks, WRONG);
  const slider = h("input", { id: "threshold", type: "range", min: "50", max: "99", step: "1", value: String(first), oninput: () => draw() });
  const value = h("output", { for: "threshold" });
  const summary = h("div", { "aria-live": "polite" });
  const order = new Map(classes.map(({ name }, index) => [name, index]));
  const chosen = () => open.filter(({ answer }) => answer.probability >= Number(slider.value) / 100);
  const draw = () => {
    const found = chosen();
    value.textContent = `${slider.value} %`;
    redraw(summary, h("p", { id: "expected" }, h("strong", {}, plural(found.length, "answer")), errors(found, checks)),
      h("p", { class: "hint" }, trust(checks)), tally(found, order), found.length > 0 && h("p", { class: "hint" }, "The least sure come first:"), thumbs(found));
  };
  draw();
  const action = await dialog("Accept answers", h("div", { class: "field" },
    h("p", { class: "hint" }, "Accepted answers are labels for your export. The classifier does not learn from them, so it cannot confirm its own mistakes."),
    h("label", { for: "threshold" }, "Accept answers with a probability of at least ", value), slider, summary),
    [{ label: "Cancel", value: "" }, { label: `Check ${SAMPLE} at random`, value: "check" }, { label: "Accept them", value: "accept", kind: "primary" }]);
  return { action, chosen: action ? chosen() : [] };
}

/** The expected number of wrong answers, with its interval. */
function errors(found, checks) {
  const expected = expectation(found.map(({ answer }) => answer.probability), checks);
  if (!expected) return " at or above that.";
  const [about, least, most] = [expected.mean, expected.high, expected.low].map((share) => expected.n * (1 - share));
  return `, of which about ${Math.round(about)} will be wrong (${Math.floor(least)} to ${Math.ceil(most)} in 95 of 100 cases).`;
}

function trust(checks) {
  if (checks.length === 0)
    return `The examples alone cannot tell whether these images are like them. Check ${SAMPLE} at random to know better.`;
  const right = checks.filter((check) => check.right).length;
  const expected = checks.reduce((sum, { probability }) => sum + probability, 0);
  return `Of ${plural(checks.length, "answer")} that you have checked by labelling, ${right} were right; by their probabilities, ${expected.toFixed(1)} should have been.`;
}

function tally(found, order) {
  const counts = new Map();
  for (const { answer } of found) counts.set(answer.label, (counts.get(answer.label) ?? 0) + 1);
  return h("p", { class: "row tally" }, [...counts].sort(([a], [b]) => order.get(a) - order.get(b)).map(([name, n]) => h("span", { class: "row" },
    h("span", { class: "dot", "aria-hidden": "true", style: { "--hue": String(hue(order.get(name) ?? 0)) } }), `${name}: ${n}`)));
}

function thumbs(found) {
  return h("ul", { class: "thumbs", tabindex: "0", "aria-label": "The least sure of them" }, found.slice(0, SHOWN).map((image) =>
    h("li", { title: image.name }, preview(image, 56), h("span", { class: "under" }, image.answer.label), h("span", { class: "under" }, percent(image.answer.probability)))));
}

/** Links to export, and a file to import; `onfile` gets the file. */
export async function askForLabels(onfile) {
  const link = (form, text) => h("a", { class: "button", href: `api/labels?form=${form}`, download: "" }, text);
  const input = h("input", { id: "label-file", type: "file", accept: ".json,.csv,application/json,text/csv",
    onchange: () => { if (input.files.length) { onfile(input.files[0]); input.closest("dialog").close(); } } });
  await dialog("Labels", h("div", { class: "field" },
    h("h3", {}, "Export"), h("div", { class: "row" }, link("csv", "CSV"), link("json", "JSON"), link("label-studio", "Label Studio")),
    h("h3", {}, "Import"), h("label", { for: "label-file" }, "A CSV or JSON file of this page, or a JSON export of Label Studio. Add the images first: ",
      "labels find them by content and by name."), input),
    [{ label: "Close", value: "" }]);
}

const KEYS = [["← → ↑ ↓", "move in the grid"], ["1 … 9", "label as that class"], ["Enter or A", "accept the answer"], ["N", "none of these"], ["0", "take the label away"],
  ["Space", "select; with Shift and arrows, several"], ["Ctrl A", "select all that are shown"], ["Esc", "clear the selection"], ["U or Ctrl Z", "undo, step by step"],
  ["Delete", "remove"], ["G", "go to the grid"], ["?", "this list"]];

export const showKeys = () => dialog("Keys", h("dl", { class: "keys" }, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
  [{ label: "Close", value: "" }]);
