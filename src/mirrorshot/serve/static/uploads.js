/** Uploads of many files: the first one alone, because it settles the encoder, then several at a time. */

import { api } from "./api.js";
import { plural } from "./dom.js";

const AT_ONCE = 3, REFRESH = 700, FIRST = 600; // uploads at a time, milliseconds between answers while images arrive, and for the first
const FULL = /at most \d+ (unlabelled|examples)/;
const REASONS = 3; // that are told one by one
const running = new Set();
let round = 0; // files of an earlier round are no longer sent

export const isUploading = () => running.size > 0;

/** Send no more files; resolves when those on their way have arrived. */
export function stopUploads() {
  round += 1;
  return Promise.all(running);
}

/** Send files to a class, or (null) to those without a label. `on` has `stored(answer)`, `say`, `complain` and `refresh`. */
export async function uploadAll(files, classId, limits, on) {
  const work = sendAll(files, classId, limits, on);
  running.add(work);
  try {
    await work;
  } finally {
    running.delete(work);
  }
}

async function sendAll(files, classId, limits, on) {
  const own = round, waiting = [...files], refused = new Map();
  let n = 0, copies = 0, last = 0;
  const refuse = (message, names) => refused.set(message, [...(refused.get(message) ?? []), ...names]);

  const send = async (file) => {
    try {
      if (file.size > limits.upload_bytes)
        throw new Error(`Expected at most ${Math.round(limits.upload_bytes / 2 ** 20)} MiB, but it is larger. Make the image smaller.`);
      const got = await (classId === null ? api.addToPool(file) : api.addExample(file, classId));
      n += 1;
      copies += got.is_new ? 0 : 1;
      on.stored(got);
    } catch (error) {
      refuse(error.message, [file.name]);
      if (error.status === 401 || FULL.test(error.message)) refuse(error.message, waiting.splice(0).map(({ name }) => name));
    }
    on.say(`${n} of ${plural(files.length, "image")} added`);
    if (performance.now() - last > REFRESH && waiting.length) { last = performance.now(); on.refresh(); }
  };
  const worker = async () => { while (waiting.length && own === round) await send(waiting.shift()); };

  if (files.length === 0) on.complain(new Error("Expected images, but there are none in that folder."));
  if (waiting.length) await send(waiting.shift());
  if (waiting.length) await Promise.race([on.refresh(), new Promise((done) => setTimeout(done, FIRST))]);
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  if (own !== round) return;
  for (const text of sentences(refused, files.length)) on.complain(new Error(text));
  if (copies) on.complain(new Error(`${plural(copies, "image")} of ${files.length} ${copies === 1 ? "was" : "were"} here already, and ${copies === 1 ? "is" : "are"} not added again.`));
}

/** Which files were refused, and why: the most frequent reasons first, the rare ones together. */
function sentences(refused, nFiles) {
  const reasons = [...refused].sort((a, b) => b[1].length - a[1].length);
  const told = reasons.slice(0, REASONS).map(([message, names]) => (names.length === 1 ? `${names[0]}: ${message}` : `${names.length} of ${nFiles} files were not added (${some(names)}). ${message}`));
  const others = reasons.slice(REASONS).flatMap(([, names]) => names);
  return others.length ? [...told, `${plural(others.length, "more file was", "more files were")} not added for other reasons (${some(others)}).`] : told;
}

const some = (names) => names.slice(0, 5).join(", ") + (names.length > 5 ? ", …" : "");
