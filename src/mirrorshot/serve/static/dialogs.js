/** Questions in the middle of the page: accept many answers, files of labels, keys. */

import { dialog, h, hue, percent, plural, preview } from "./dom.js";

const SHOWN = 24;

/** Ask for a threshold and show what it accepts; resolves to the images, or to none. */
export async function askToAccept(images, overview) {
  const open = images.filter(({ status, answer }) => status === "open" && answer && answer.verdict !== "none")
    .sort((a, b) => a.answer.probability - b.answer.probability);
  const slider = h("input", { id: "threshold", type: "range", min: "50", max: "99", step: "1", value: "95", oninput: () => draw() });
  const value = h("output", { for: "threshold" });
  const summary = h("div", { "aria-live": "polite" });
  const order = new Map(overview.classes.map(({ name }, index) => [name, index]));
  const chosen = () => open.filter(({ answer }) => answer.probability >= Number(slider.value) / 100);
  const draw = () => {
    const found = chosen();
    const byClass = Map.groupBy ? Map.groupBy(found, ({ answer }) => answer.label) : grouped(found);
    const mean = found.reduce((sum, { answer }) => sum + answer.probability, 0) / Math.max(1, found.length);
    value.textContent = `${slider.value} %`;
    summary.replaceChildren(
      h("p", {}, h("strong", {}, plural(found.length, "answer")), found.length ? `, of which about ${percent(mean)} should be right. The least sure come first:` : " at or above that."),
      h("p", { class: "row tally" }, [...byClass].map(([name, part]) => h("span", { class: "row" },
        h("span", { class: "dot", "aria-hidden": "true", style: { "--hue": String(hue(order.get(name) ?? 0)) } }), `${name} ${part.length}`))),
      h("ul", { class: "thumbs", tabindex: "0", "aria-label": "The least sure of them" }, found.slice(0, SHOWN).map((image) =>
        h("li", { title: image.name }, preview(image, 56), h("span", { class: "under" }, image.answer.label), h("span", { class: "under" }, percent(image.answer.probability))))));
  };
  draw();
  const pressed = await dialog("Accept answers", h("div", { class: "field" },
    h("p", { class: "hint" }, "Accepted answers are labels for your export. The classifier does not learn from them, so it cannot talk itself into a mistake."),
    h("label", { for: "threshold" }, "Accept answers with a probability of at least ", value), slider, summary),
    [{ label: "Cancel", value: "" }, { label: "Accept them", value: "accept", kind: "primary" }]);
  return pressed ? chosen() : [];
}

function grouped(images) {
  const found = new Map();
  for (const image of images) found.set(image.answer.label, [...(found.get(image.answer.label) ?? []), image]);
  return found;
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
