/** The images of the user with what is known about each, filtered and sorted. No drawing here. */

import { hue, uniqueNames } from "./dom.js";

export const FILTERS = [
  ["todo", "To do", ({ status }) => status === "open"],
  ["unsure", "Not sure", ({ status, answer }) => status === "open" && answer?.verdict === "unsure"],
  ["novel", "None of these", ({ status, answer }) => status === "none" || (status === "open" && answer?.verdict === "none")],
  ["sure", "Sure", ({ status, answer }) => status === "open" && answer?.verdict === "sure"],
  ["sample", "Random sample", ({ status, isSampled }) => status === "open" && isSampled],
  ["suspect", "Suspicious", ({ suspect }) => suspect !== undefined],
  ["done", "Done", ({ status }) => status !== "open"],
  ["all", "All", () => true],
];

const doubt = ({ answer, suspect }) => (suspect ? -1 + suspect.probability : answer ? (answer.verdict === "none" ? -1 : 0) + answer.probability : 2);

export const SORTS = {
  doubt: ["most doubtful first", (a, b) => doubt(a) - doubt(b)],
  probability: ["surest first", (a, b) => (b.answer?.probability ?? -1) - (a.answer?.probability ?? -1)],
  newest: ["newest first", (a, b) => b.id - a.id],
  name: ["by name", (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true })],
};

const statusOf = ({ class_id, accepted_id, is_none }) =>
  class_id !== null ? "example" : accepted_id !== null ? "accepted" : is_none ? "none" : "open";

/** Everything that the drawing needs to know about each image. */
export function describe({ overview, answers }, sample) {
  const sampled = new Set(sample);
  const told = new Map((answers?.answers ?? []).map((answer) => [answer.picture_id, answer]));
  const doubts = new Map((answers?.suspects ?? []).map((suspect) => [suspect.picture_id, suspect]));
  const order = new Map(overview.classes.map(({ id }, index) => [id, index]));
  const byName = new Map(overview.classes.map(({ id, name }) => [name, id]));
  const names = uniqueNames(overview.pictures);
  return overview.pictures.map((picture) => {
    const status = statusOf(picture);
    const answer = picture.class_id === null ? told.get(picture.id) : undefined;
    const labelId = picture.class_id ?? picture.accepted_id;
    const shownId = labelId ?? (answer ? byName.get(answer.label) : undefined);
    const index = order.get(shownId);
    return {
      ...picture, name: names.get(picture.id), status, answer, labelId, shownId,
      src: `api/pictures/${picture.id}/preview?of=${overview.user}`, // browsers keep it, and ids begin anew in another database
      isSampled: sampled.has(picture.id),
      suspect: status === "example" ? doubts.get(picture.id) : undefined,
      label: labelId !== null ? overview.classes[order.get(labelId)]?.name : undefined,
      hue: index === undefined ? undefined : hue(index),
    };
  });
}

export function shown(images, { filter, classId, sort }) {
  const [, , keep] = FILTERS.find(([key]) => key === filter);
  const [, compare] = SORTS[sort];
  return images.filter((image) => keep(image) && (classId === null || image.shownId === classId))
    .sort((a, b) => compare(a, b) || b.id - a.id);
}

/** Number of images that each filter shows, and of each status. */
export function counts(images) {
  const found = Object.fromEntries([...FILTERS.map(([key]) => key), "example", "accepted", "none"].map((key) => [key, 0]));
  for (const image of images) {
    for (const [key, , keep] of FILTERS) if (keep(image)) found[key] += 1;
    if (image.status !== "open") found[image.status] += 1;
  }
  return found;
}

/** Probabilities of the answers about open images, without those that look like none of the classes. */
export const openProbabilities = (images) => images.filter(({ status, answer }) => status === "open" && answer && answer.verdict !== "none")
  .map(({ answer }) => answer.probability);
