/** Answers about the images without a label, and the question about one of them. */

import { byId, draggable, dropZone, h, hue, percent, plural, preview, redraw, takesDrops } from "./dom.js";

const SHOWN = 4;

export function drawPool({ overview, answers }, act) {
  const pool = overview.pictures.filter((picture) => picture.class_id === null).reverse();
  const told = new Map((answers?.answers ?? []).map((answer) => [answer.picture_id, answer]));
  byId("pool-count").textContent = pool.length ? plural(pool.length, "image") : "";
  if (!byId("pool-files"))
    byId("pool-drop").append(dropZone({ id: "pool-files", text: "Drop unlabelled images here, or choose them",
      label: "Add images to classify", onfiles: (files) => act.upload(files, null), onpicture: (id) => act.label(id, null) }));
  redraw(byId("answers"),
    pool.length === 0 && h("p", { class: "hint" }, "Each gets an answer with probabilities. You will be asked about the one whose label ",
      "would teach most."),
    pool.length > 0 && !overview.is_ready && h("p", { class: "hint" }, "Answers begin when two classes have examples."),
    h("ul", { class: "cards" }, pool.map((picture) => h("li", {}, answerCard(picture, told.get(picture.id), overview, act)))));
}

export function drawQuestion({ overview, answers }, act) {
  const picture = overview.pictures.find(({ id, class_id }) => id === answers?.suggestion && class_id === null);
  byId("ask").hidden = !picture;
  if (!picture) return;
  const answer = answers.answers.find(({ picture_id }) => picture_id === picture.id);
  redraw(byId("question"),
    h("div", { class: "question" },
      h("div", { class: "frame" }, preview(picture, 128)),
      h("div", { class: "grow" },
        h("p", { class: "hint" }, "The answer to this one would teach the classifier most. ", h("span", { class: "name" }, picture.name)),
        answer && bars(answer, overview, 3))),
    h("div", { class: "row choices", role: "group", "aria-labelledby": "ask-title" },
      overview.classes.map((found, index) => h("button", { id: `answer-${found.id}`, class: "choice", type: "button",
        style: { "--hue": String(hue(index)) }, onclick: () => act.label(picture.id, found.id) },
        h("span", { class: "dot", "aria-hidden": "true" }), h("span", { class: "name" }, found.name),
        index < 9 && h("kbd", { "aria-hidden": "true" }, String(index + 1)))),
      h("button", { id: "discard", class: "quiet", type: "button", onclick: () => act.deletePicture(picture.id) }, "None: remove it")));
}

function answerCard(picture, answer, overview, act) {
  const select = h("select", { id: `label-${picture.id}`, "aria-label": `Label ${picture.name}`,
    onchange: (event) => event.target.value && act.label(picture.id, Number(event.target.value)) },
    h("option", { value: "" }, "Label as …"),
    overview.classes.map(({ id, name }) => h("option", { value: String(id) }, name)));
  const card = h("article", { class: "card answer", "aria-label": picture.name },
    h("div", { class: "frame" }, preview(picture, 88)),
    h("div", { class: "grow" },
      h("p", { class: "file name", title: picture.name }, picture.name),
      answer ? verdict(answer) : null,
      answer ? bars(answer, overview, SHOWN) : null,
      h("div", { class: "row" }, select, h("button", { id: `remove-${picture.id}`, class: "quiet small", type: "button",
        "aria-label": `Remove ${picture.name}`, onclick: () => act.deletePicture(picture.id) }, "Remove"))));
  return draggable(takesDrops(card, (files) => act.upload(files, null)), picture);
}

function verdict({ verdict: kind, label, probability, labels }) {
  if (kind === "none") return h("p", { class: "verdict none" }, `None of these (perhaps ${label})`);
  if (kind === "sure") return h("p", { class: "verdict sure" }, label);
  const among = labels && labels.length > 1 && labels.length <= 3 ? `: ${labels.join(" or ")}` : `: perhaps ${label}`;
  return h("p", { class: "verdict unsure", title: `${label} with probability ${probability.toFixed(3)}` }, `Not sure${among}`);
}

function bars({ probabilities, labels }, overview, n) {
  const order = new Map(overview.classes.map(({ name }, index) => [name, index]));
  const shown = probabilities.slice(0, n);
  const rest = probabilities.slice(n);
  return h("div", {},
    h("dl", { class: "bars" }, shown.map(({ label, probability }) => [
      h("dt", { class: labels?.includes(label) ? "name inside" : "name", title: label }, label),
      h("dd", {}, h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "bar",
        style: { width: `${(100 * probability).toFixed(1)}%`, "--hue": String(hue(order.get(label) ?? 0)) } })),
        h("span", { class: "number" }, percent(probability))),
    ])),
    rest.length > 0 && h("p", { class: "rest" }, `${plural(rest.length, "other class", "other classes")}: ` +
      percent(rest.reduce((sum, { probability }) => sum + probability, 0))),
    labels && h("p", { class: "rest" }, labels.length ? `In the 90 % set: ${labels.join(", ")}` : "The 90 % set is empty"));
}
