/** Changes that can be taken back, the last one first. They survive a reload of the page. */

import { kept, keep } from "./kept.js";

const KEY = "mirrorshot-undo", MOST = 50;

let steps = kept(KEY, []);

function set(next) {
  steps = next.slice(-MOST);
  keep(KEY, steps);
}

export const history = {
  push(text, changes) { const step = { text, changes }; set([...steps, step]); return step; },
  remove(step) { set(steps.filter((made) => made !== step)); },
  pop() { const last = steps.at(-1); set(steps.slice(0, -1)); return last; },
  clear() { set([]); },
  text: () => steps.at(-1)?.text ?? null,
};
