/** Uploads of many files: the first one alone, because it settles the encoder, then several at a time. */

import { api } from "./api.js";
import { plural } from "./dom.js";

const AT_ONCE = 3, REFRESH = 700, FIRST = 600; // uploads at a time, milliseconds between answers while images arrive, and for the first
const FULL = /at most \d+ (unlabelled|examples)/;

/** Send files to a class, or (null) to those without a label. `on` has `stored(answer)`, `say`, `complain` and `refresh`. */
export async function uploadAll(files, classId, limits, on) {
  const waiting = [...files];
  let n = 0, copies = 0, last = 0;

  const send = async (file) => {
    try {
      if (file.size > limits.upload_bytes)
        throw new Error(`Expected at most ${limits.upload_bytes} bytes, but got ${file.size}. Make the image smaller.`);
      const got = await (classId === null ? api.addToPool(file) : api.addExample(file, classId));
      n += 1;
      copies += got.is_new ? 0 : 1;
      on.stored(got);
    } catch (error) {
      on.complain(new Error(`${file.name}: ${error.message}`));
      if ([0, 401].includes(error.status) || FULL.test(error.message)) waiting.length = 0;
    }
    on.say(`${plural(n, "image")} of ${files.length} added`);
    if (performance.now() - last > REFRESH && waiting.length) { last = performance.now(); on.refresh(); }
  };
  const worker = async () => { while (waiting.length) await send(waiting.shift()); };

  if (waiting.length) await send(waiting.shift());
  if (waiting.length) await Promise.race([on.refresh(), new Promise((done) => setTimeout(done, FIRST))]);
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  if (copies) on.complain(new Error(`${plural(copies, "image")} of ${files.length} ${copies === 1 ? "was" : "were"} here already, and ${copies === 1 ? "is" : "are"} not added again.`));
}
