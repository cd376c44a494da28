/** The question about one image: a large preview, the answer with its reasons, and the classes to choose from. */

import { byId, h, hue, named, percent, plural, preview, redraw } from "./dom.js";

export function drawQuestion(image, { overview, isSuggestion }, act) {
  byId("ask").hidden = !image;
  if (!image) return;
  const { answer } = image;
  byId("ask-title").textContent = image.status === "open" ? "Which class is this?" : "Is this right?";
  redraw(byId("question"),
    h("div", { class: "question" },
      h("div", { class: "frame" }, preview(image, 128)),
      h("div", { class: "grow" },
        h("p", { class: "file" }, named(image.name)),
        verdict(image),
        h("div", { class: "reasons" }, answer && bars(answer, overview, 3), h("div", {}, answer && notes(answer),
        image.suspect && h("p", { class: "rest" }, `The other examples say “${image.suspect.suggested}” (probability of its own label `,
          `${percent(image.suspect.probability)}).`),
        isSuggestion && h("p", { class: "rest" }, "Its label would teach the classifier most."))))),
    h("div", { class: "row choices", role: "group", "aria-labelledby": "ask-title" },
      overview.classes.map((found, index) => h("button", { id: `answer-${found.id}`, class: "choice", type: "button",
        "aria-pressed": String(image.class_id === found.id), style: { "--hue": String(hue(index)) },
        onclick: () => act.label([image.id], found.id) },
        h("span", { class: "dot", "aria-hidden": "true" }), named(found.name),
        index < 9 && h("kbd", { "aria-hidden": "true" }, String(index + 1)))),
      h("button", { id: "answer-none", class: "quiet", type: "button", "aria-pressed": String(image.is_none),
        onclick: () => act.none([image.id]) }, "None of these", h("kbd", { "aria-hidden": "true" }, "N")),
      image.status !== "open" && h("button", { id: "answer-open", class: "quiet", type: "button",
        onclick: () => act.open([image.id]) }, "No label", h("kbd", { "aria-hidden": "true" }, "0")),
      h("button", { id: "discard", class: "quiet small", type: "button", "aria-label": `Remove ${image.name}`,
        onclick: () => act.remove([image.id]) }, "Remove")));
}

function verdict({ status, label, answer }) {
  if (status === "example") return h("p", { class: "verdict sure" }, `Example of ${label}`);
  if (status === "accepted") return h("p", { class: "verdict sure" }, `Accepted: ${label}`);
  if (status === "none") return h("p", { class: "verdict none" }, "None of these");
  if (!answer) return null;
  if (answer.verdict === "none") return h("p", { class: "verdict none" }, `None of these (perhaps ${answer.label})`);
  if (answer.verdict === "sure") return h("p", { class: "verdict sure" }, answer.label);
  const { labels } = answer;
  const among = labels && labels.length > 1 && labels.length <= 3 ? labels.join(" or ") : `perhaps ${answer.label}`;
  return h("p", { class: "verdict unsure" }, `Not sure: ${among}`);
}

/** The reasons for an answer, in words. */
function notes({ verdict: kind, label, labels, novelty, novelty_threshold, epistemic, aleatoric }) {
  const lines = [];
  if (kind === "none")
    lines.push(`It is unlike all examples: novelty ${novelty.toFixed(3)}, above ${novelty_threshold.toFixed(3)}. The bars only compare the ` +
      `classes with each other; ${label} is the nearest.`);
  else if (labels && labels.length === 0)
    lines.push(`No class is as plausible as it usually is for the examples; ${label} is the nearest.`);
  else if (labels?.length > 1) lines.push(`In 9 of 10 cases the right class is among: ${labels.join(", ")}.`);
  if (kind !== "sure")
    lines.push(epistemic >= aleatoric
      ? `More examples like this would remove about ${percent(epistemic / (epistemic + aleatoric))} of the doubt.`
      : `More examples would not remove most of the doubt: the classes look alike here.`);
  return lines.map((line) => h("p", { class: "rest" }, line));
}

function bars({ probabilities, labels }, overview, n) {
  const order = new Map(overview.classes.map(({ name }, index) => [name, index]));
  const rest = probabilities.slice(n);
  return h("div", {},
    h("dl", { class: "bars" }, probabilities.slice(0, n).map(({ label, probability }) => [
      h("dt", { class: labels?.includes(label) ? "name inside" : "name", dir: "auto", title: label }, label),
      h("dd", {}, h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "bar",
        style: { width: `${(100 * probability).toFixed(1)}%`, "--hue": String(hue(order.get(label) ?? 0)) } })),
        h("span", { class: "number" }, percent(probability))),
    ])),
    rest.length > 0 && h("p", { class: "rest" }, `${plural(rest.length, "other class", "other classes")}: ` +
      percent(rest.reduce((sum, { probability }) => sum + probability, 0))));
}
