/** Loads everything from the server, and sends changes to it one after the other. */

import { api } from "./api.js";
import { complain, say, state, view } from "./state.js";
import { history } from "./undo.js";

const QUIET = 350, LONGEST = 1500; // milliseconds without a change before answers are asked for, and after which they are in any case
const MOST = 500; // changes in one request
let page = null, loading = null, isStale = false, nChanges = 0, nWaiting = 0, sending = Promise.resolve(), pause = null, waitingSince = 0;

/** Set what happens on the page: `draw()`, `begin()` for a session that is gone, `loaded(before, overview)`. */
export const connect = (hooks) => { page = hooks; };

/** Draw everything. */
export const draw = () => page.draw();

/** Load everything; calls while it runs make it run once more. */
export function refresh() {
  isStale = true;
  document.body.setAttribute("aria-busy", "true");
  loading ??= (async () => {
    while (isStale) {
      isStale = false;
      await load();
    }
  })().finally(() => {
    loading = null;
    if (pause === null) document.body.removeAttribute("aria-busy");
  });
  return loading;
}

async function load() {
  await sending;
  const before = nChanges;
  const overview = await api.overview();
  if (nChanges !== before) { isStale = true; return; } // the user was quicker
  const former = state.overview;
  state.overview = overview;
  page.loaded(former, overview);
  if (!overview.is_ready) {
    state.answers = state.calibration = null;
    return draw();
  }
  if (!state.answers) draw();
  const [answers, calibration] = await Promise.all([api.answers(), api.calibration()]);
  Object.assign(state, { answers, calibration });
  draw();
}

/** Bring everything up to date once the user pauses, so that quick keys do not wait for answers that the next one changes. */
function refreshSoon() {
  document.body.setAttribute("aria-busy", "true");
  if (pause === null) waitingSince = performance.now();
  clearTimeout(pause);
  const wait = Math.max(0, Math.min(QUIET, waitingSince + LONGEST - performance.now()));
  pause = setTimeout(() => { pause = null; bringUpToDate(); }, wait);
}

/** Load everything; a session that is gone is replaced. */
export const bringUpToDate = () => refresh().catch(failed);

/** Not to be waited for where changes are sent: a new session waits for these. */
const failed = (error) => (error.status === 401 ? page.begin() : complain(error));

/** Do some work on the server, and bring everything up to date; `isForAny`: it can be repeated in a new session. */
export async function doing(work, done, { isForAny = false } = {}) {
  try {
    await work();
    if (done) say(done);
  } catch (error) {
    if (error.status === 401) {
      await page.begin();
      return isForAny ? doing(work, done) : undefined;
    }
    complain(error);
  }
  await bringUpToDate();
}

/** Show changes at once, send them after those before, and bring everything up to date. */
export function change(changes, text, { isUndo = false } = {}) {
  if (changes.length === 0) return;
  const pictures = new Map(state.overview.pictures.map((picture) => [picture.id, picture]));
  const step = isUndo ? null : history.push(text, changes.map(({ picture_id }) => stateOf(pictures.get(picture_id))));
  const next = new Map(changes.map((made) => [made.picture_id, made]));
  state.overview.pictures = state.overview.pictures.map((picture) => {
    const made = next.get(picture.id);
    return made ? { ...picture, class_id: made.class_id, accepted_id: made.accepted_id, is_none: made.is_none } : picture;
  });
  nChanges += 1;
  nWaiting += 1;
  view.selected.clear();
  draw();
  say(isUndo ? `Undone: ${text}` : text);
  sending = sending.then(() => send(changes)).catch((error) => {
    history.remove(step);
    failed(error);
  }).finally(() => { nWaiting -= 1; });
  refreshSoon();
}

/** Whether changes have not reached the server yet. */
export const isSending = () => nWaiting > 0;

async function send(changes) {
  for (let i = 0; i < changes.length; i += MOST) await api.change(changes.slice(i, i + MOST));
}

const stateOf = ({ id, class_id, accepted_id, is_none }) => ({ picture_id: id, class_id, accepted_id, is_none });
