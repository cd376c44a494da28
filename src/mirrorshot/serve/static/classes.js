/** The classes and their examples. */

import { byId, dialog, draggable, dropZone, h, hue, plural, preview, redraw, takesDrops } from "./dom.js";

export function drawClasses({ overview, answers }, act) {
  const { classes, pictures, limits } = overview;
  const doubts = new Map((answers?.suspects ?? []).map((suspect) => [suspect.picture_id, suspect]));
  const n = pictures.filter((picture) => picture.class_id !== null).length;
  byId("classes-count").textContent = n ? plural(n, "example") : "";
  byId("new-name").disabled = classes.length >= limits.classes;
  redraw(byId("class-list"),
    classes.length === 0 && h("ol", { class: "card steps" },
      h("li", {}, "Name at least two classes, for instance “seven” and “nine”. For “this or something else”, make a class of other things."),
      h("li", {}, "Drop images into each. One is enough to begin; five make it useful."),
      h("li", {}, "Drop images to classify, and answer the question about the one that would teach most.")),
    classes.map((found, index) => classCard(found, index, overview, doubts, act)));
}

function classCard(found, index, overview, doubts, act) {
  const examples = overview.pictures.filter((picture) => picture.class_id === found.id);
  const onfiles = (files) => act.upload(files, found.id);
  const onpicture = (id) => act.label(id, found.id);
  const card = h("article", { class: "card class", style: { "--hue": String(hue(index)) }, "aria-labelledby": `class-${found.id}` },
    h("div", { class: "head" },
      h("h3", { id: `class-${found.id}` }, h("span", { class: "dot", "aria-hidden": "true" }), h("span", { class: "name" }, found.name)),
      h("span", { class: "count" }, plural(examples.length, "example")),
      h("button", { id: `rename-${found.id}`, class: "quiet small", type: "button", "aria-label": `Rename class ${found.name}`,
        onclick: () => rename(found, act) }, "Rename"),
      h("button", { id: `delete-${found.id}`, class: "quiet small", type: "button", "aria-label": `Delete class ${found.name}`,
        onclick: () => remove(found, examples.length, act) }, "Delete")),
    h("ul", { class: "thumbs", "aria-label": `Examples of ${found.name}` },
      examples.map((picture) => h("li", {}, exampleButton(picture, overview, doubts.get(picture.id), act)))),
    dropZone({ id: `files-${found.id}`, text: "Drop images here, or choose them",
      label: `Add images to class ${found.name}`, onfiles, onpicture }));
  return takesDrops(card, onfiles, onpicture);
}

function exampleButton(picture, overview, doubt, act) {
  const label = doubt ? `${picture.name}: the other examples say ${doubt.suggested}` : picture.name;
  const button = h("button", { id: `picture-${picture.id}`, class: doubt ? "thumb doubtful" : "thumb", type: "button",
    title: label, "aria-label": `Edit example ${label}`, onclick: () => edit(picture, overview, doubt, act) },
    preview(picture, 56), doubt && h("span", { class: "badge", "aria-hidden": "true" }, "?"));
  return draggable(button, picture);
}

async function edit(picture, overview, doubt, act) {
  const select = h("select", { id: "edit-class" },
    overview.classes.map(({ id, name }) => h("option", { value: String(id), selected: id === picture.class_id }, name)),
    h("option", { value: "" }, "no class: put it among the images to classify"));
  const chosen = await dialog("Edit example", h("div", { class: "edit" }, preview(picture, 128),
    h("div", {}, h("p", { class: "name" }, picture.name),
      doubt && h("p", { class: "hint" }, `The other examples say “${doubt.suggested}”. Is the label right?`),
      h("label", { for: "edit-class" }, "Class"), select)),
    [{ label: "Remove", value: "remove", kind: "danger" }, { label: "Cancel", value: "" },
      { label: "Save", value: "save", kind: "primary" }]);
  if (chosen === "remove") act.deletePicture(picture.id);
  if (chosen === "save") act.label(picture.id, select.value ? Number(select.value) : null);
}

async function rename(found, act) {
  const input = h("input", { id: "rename", value: found.name, maxlength: "60", required: true });
  const chosen = await dialog("Rename class", h("div", { class: "field" }, h("label", { for: "rename" }, "Name"), input),
    [{ label: "Rename", value: "save", kind: "primary" }]);
  if (chosen && input.value.trim()) act.renameClass(found.id, input.value);
}

async function remove(found, n, act) {
  const text = n ? `Class “${found.name}” and its ${plural(n, "example")} will be deleted.` : `Class “${found.name}” is empty.`;
  const chosen = await dialog("Delete class?", h("p", {}, text),
    [{ label: "Delete", value: "delete", kind: "danger" }, { label: "Keep", value: "" }]);
  if (chosen) act.deleteClass(found.id);
}
