/** The classes and their examples. */

import { byId, dialog, differs, draggable, dropZone, h, hue, named, plural, preview, redraw, takesDrops } from "./dom.js";

const SHOWN = 8;

export function drawClasses({ overview, images }, act) {
  const { classes, limits } = overview;
  const place = byId("class-list");
  const n = images.filter(({ status }) => status === "example").length;
  byId("classes-count").textContent = n ? plural(n, "example") : "";
  byId("new-name").disabled = classes.length >= limits.classes;
  byId("new-name").placeholder = classes.length >= limits.classes ? `At most ${plural(limits.classes, "class", "classes")}` : "Name of a class";
  if (differs(place, classes.map(({ id }) => id)))
    redraw(place, classes.length === 0 ? steps() : classes.map(({ id }) => byId(`card-${id}`) ?? newCard(id, act)));
  classes.forEach((found, index) => drawCard(found, index, images, act));
}

const newCard = (id, act) => takesDrops(h("article", { id: `card-${id}`, class: "card class", "aria-labelledby": `class-${id}` }),
  (files) => act.upload(files, id), (picture) => act.label([picture], id));

const steps = () => h("ol", { class: "card steps" },
  h("li", {}, "Name at least two classes, for instance “seven” and “nine”. For “this or something else”, make a class of other things."),
  h("li", {}, "Drop images into each. One is enough to begin; five make it useful."),
  h("li", {}, "Drop the other images. Answer about the one that would teach most, accept the answers that are sure, and export the labels."));

/** Draw the card of a class, if anything on it has changed. */
function drawCard(found, index, images, act) {
  const examples = images.filter(({ class_id }) => class_id === found.id);
  // suspicious ones first, so that they are seen
  examples.sort((a, b) => Number(Boolean(b.suspect)) - Number(Boolean(a.suspect)) || b.id - a.id);
  const accepted = images.filter(({ accepted_id }) => accepted_id === found.id).length;
  const place = byId(`card-${found.id}`);
  if (!differs(place, found.name, index, accepted, examples.length, examples.slice(0, SHOWN).map(({ id, name, suspect }) => [id, name, suspect?.suggested]))) return;
  const onfiles = (files) => act.upload(files, found.id);
  const onpicture = (id) => act.label([id], found.id);
  const rest = examples.length - SHOWN;
  place.style.setProperty("--hue", String(hue(index)));
  redraw(place,
    h("h3", { id: `class-${found.id}` }, h("span", { class: "dot", "aria-hidden": "true" }), named(found.name),
      index < 9 && h("kbd", { "aria-hidden": "true" }, String(index + 1))),
    h("div", { class: "head" },
      h("p", { class: "count" }, plural(examples.length, "example"), accepted > 0 && ` · ${accepted} accepted`),
      h("button", { id: `rename-${found.id}`, class: "quiet small", type: "button", "aria-label": `Rename class ${found.name}`,
        onclick: () => rename(found, act) }, "Rename"),
      h("button", { id: `delete-${found.id}`, class: "quiet small", type: "button", "aria-label": `Delete class ${found.name}`,
        onclick: () => remove(found, examples.length, accepted, act) }, "Delete")),
    h("ul", { class: "thumbs", "aria-label": `Examples of ${found.name}` },
      examples.slice(0, SHOWN).map((image) => h("li", {}, exampleButton(image, act))),
      rest > 0 && h("li", {}, h("button", { id: `more-${found.id}`, class: "thumb more", type: "button", "aria-label": `Show all examples of ${found.name}`,
        onclick: () => act.view({ filter: "done", classId: found.id }) }, `+${rest}`))),
    dropZone({ id: `files-${found.id}`, text: "Drop images, or choose them",
      label: `Add images to class ${found.name}`, onfiles, onpicture }));
}

function exampleButton(image, act) {
  const label = image.suspect ? `${image.name}: the other examples say ${image.suspect.suggested}` : image.name;
  const button = h("button", { id: `picture-${image.id}`, class: image.suspect ? "thumb doubtful" : "thumb", type: "button",
    title: label, "aria-label": `Edit example ${label}`, onclick: () => act.goTo(image.id) },
    preview(image, 56), image.suspect && h("span", { class: "badge", "aria-hidden": "true" }, "?"));
  return draggable(button, image);
}

async function rename(found, act) {
  const input = h("input", { id: "rename", value: found.name, maxlength: "60", required: true });
  const chosen = await dialog("Rename class", h("div", { class: "field" }, h("label", { for: "rename" }, "Name"), input),
    [{ label: "Rename", value: "save", kind: "primary" }]);
  if (chosen && input.value.trim()) act.renameClass(found.id, input.value);
}

async function remove(found, n, nAccepted, act) {
  const text = n ? `Class “${found.name}” and its ${plural(n, "example")} will be deleted. This cannot be undone.` : `Class “${found.name}” has no examples.`;
  const chosen = await dialog("Delete class?", h("p", {}, text, nAccepted > 0 && ` ${plural(nAccepted, "image")} accepted as this class will have no label.`),
    [{ label: "Delete", value: "delete", kind: "danger" }, { label: "Keep", value: "" }]);
  if (chosen) act.deleteClass(found.id);
}
