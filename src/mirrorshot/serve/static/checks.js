/**
 * Answers that the user has checked by labelling the image, or by accepting the answer about one. They survive a reload.
 *
 * A check is about the present classifier: an image that has become an example is predicted from the other examples, and one that
 * the classifier does not learn from has an answer as before. Until these are known, the answer that the user saw counts.
 */

import { kept, keep } from "./kept.js";

const KEY = "mirrorshot-checks";
export const SAMPLE = 20; // images of a sample

let { told, sample } = kept(KEY, { told: [], sample: [] });

function set(change) {
  ({ told, sample } = { told, sample, ...change });
  keep(KEY, { told, sample });
}

export const checks = {
  /** Keep the answer about an image, and whether it is what the user says. An image that looked like no class has none. */
  add(id, { probability, verdict }, right) {
    if (verdict === "none") return;
    set({ told: [...told.filter((check) => check.id !== id), { id, probability, right }] });
  },
  remove(ids) {
    const gone = new Set(ids);
    set({ told: told.filter(({ id }) => !gone.has(id)) });
  },
  clear() { set({ told: [], sample: [] }); },
  /** Probability and correctness of the answers of the present classifier. */
  now(images, calibration) {
    const predicted = new Map((calibration?.examples ?? []).map((found) => [found.picture_id, { probability: found.probability, right: found.is_right }]));
    const known = new Map(images.map((image) => [image.id, image]));
    return told.filter(({ id }) => known.has(id)).map((check) => {
      const { status, answer, label } = known.get(check.id);
      if (status === "example") return predicted.get(check.id) ?? check;
      return answer ? { probability: answer.probability, right: status === "accepted" && answer.label === label } : check;
    });
  },
  /** Images that were drawn at random to be checked. */
  get sample() { return sample; },
  /** Draw a sample from ids, all equally likely. */
  draw(ids) {
    const left = [...ids], drawn = [];
    while (left.length && drawn.length < SAMPLE) drawn.push(...left.splice(Math.floor(Math.random() * left.length), 1));
    set({ sample: drawn });
  },
};
