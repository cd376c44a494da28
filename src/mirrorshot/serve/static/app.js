/** The page as a whole: load the state from the server, draw it, send the changes of the user. */

import { unlock } from "./access.js";
import { api } from "./api.js";
import { drawCalibration } from "./calibration.js";
import { checks } from "./checks.js";
import { drawClasses } from "./classes.js";
import { drawQuestion } from "./detail.js";
import { askForLabels, askToAccept, showKeys } from "./dialogs.js";
import { byId, dialog, differs, dropZone, h, plural } from "./dom.js";
import { askForEncoder, ChangeWatch, drawChange, drawEncoderButton, titleOf } from "./encoder.js";
import { drawGrid, drawTiles, focusTile } from "./grid.js";
import { listen } from "./keys.js";
import { counts, describe, shown } from "./model.js";
import { drawProgress } from "./progress.js";
import { drawSelection, drawToolbar } from "./toolbar.js";
import { history } from "./undo.js";
import { uploadAll } from "./uploads.js";

const state = { overview: null, answers: null, calibration: null, misfits: new Map(), former: null, isOffline: false };
const view = { filter: "todo", classId: null, sort: "doubt", selected: new Set(), current: null, anchor: null };
const QUIET = 350, LONGEST = 1500; // milliseconds without a change before answers are asked for, and after which they are in any case
let images = [], list = [];

const say = (text) => { byId("status").textContent = text; };

function complain(error) {
  const box = h("p", { class: "problem" }, h("span", {}, error.message),
    h("button", { class: "quiet small", type: "button", "aria-label": "Dismiss this message", onclick: () => box.remove() }, "Dismiss"));
  byId("problems").append(box);
  while (byId("problems").childElementCount > 5) byId("problems").firstElementChild.remove();
}

/** The image in question: the one that the user is at, else the one whose label would teach most. */
function inQuestion() {
  const at = images.find(({ id }) => id === view.current);
  if (at) return at;
  const open = images.filter(({ status }) => status === "open");
  return open.find(({ id }) => id === state.answers?.suggestion) ?? (state.answers ? shown(open, { filter: "todo", classId: null, sort: "doubt" })[0] : undefined);
}

function draw() {
  const { overview } = state;
  images = describe(state, checks.sample);
  const known = new Set(images.map(({ id }) => id));
  view.selected = new Set([...view.selected].filter((id) => known.has(id)));
  if (!overview.classes.some(({ id }) => id === view.classId)) view.classId = null;
  list = shown(images, view);
  const found = counts(images);
  drawTools(overview);
  drawClasses({ overview, images }, act);
  drawEncoding();
  drawProgress({ ...state, images, found, checks: checked() }, act);
  askAbout();
  drawToolbar({ found, view, classes: overview.classes, undoText: history.text() }, act);
  drawGrid(images, list, view);
  drawSelection(view, overview.classes, act);
  drawCalibration(state);
  document.body.dataset.version = String(overview.version);
  document.body.toggleAttribute("data-ready", overview.is_ready);
  document.body.toggleAttribute("data-images", images.length > 0);
}

function askAbout() {
  const asked = inQuestion(), { overview, answers } = state;
  drawQuestion(overview.is_ready || view.current !== null ? asked : undefined,
    { overview, isSuggestion: asked?.id === answers?.suggestion && asked?.status === "open" }, act);
}

function drawTools(overview) {
  if (!byId("pool-files"))
    byId("pool-drop").append(dropZone({ id: "pool-files", text: "Drop unlabelled images here, or choose them",
      label: "Add images to classify", onfiles: (files) => act.upload(files, null), onpicture: (id) => act.open([id]) }));
  if (!differs(byId("download"), overview.is_ready)) return;
  byId("download").setAttribute("aria-disabled", String(!overview.is_ready));
  byId("download").title = overview.is_ready ? "" : "Two classes need examples first";
}

function drawEncoding() {
  drawEncoderButton(state.overview);
  drawChange(state.overview, { watch, former: state.former, isOffline: state.isOffline }, act);
}

/** What the server says about the encoder while it changes. */
const watch = new ChangeWatch((got, error) => {
  if (error?.status === 401) return begin();
  state.isOffline = !got;
  if (got) {
    state.overview.encoder_change = got.change;
    watch.follow(got.change);
    if (got.change?.problem) say("The encoder could not be changed.");
    if (!got.change) refresh().catch(complain);
  }
  drawEncoding();
});

let loading = null, isStale = false, nChanges = 0, sending = Promise.resolve();

/** Load everything; calls while it runs make it run once more. */
function refresh() {
  isStale = true;
  loading ??= (async () => {
    while (isStale) {
      isStale = false;
      await load();
    }
  })().finally(() => { loading = null; });
  return loading;
}

async function load() {
  await sending;
  const before = nChanges;
  const overview = await api.overview();
  if (nChanges !== before) { isStale = true; return; } // the user was quicker
  noteEncoder(state.overview, overview);
  state.overview = overview;
  watch.follow(overview.encoder_change);
  if (!overview.is_ready) {
    state.answers = state.calibration = null;
    return draw();
  }
  if (!state.answers) draw();
  document.body.setAttribute("aria-busy", "true");
  const [answers, calibration] = await Promise.all([api.answers(), api.calibration()]);
  document.body.removeAttribute("aria-busy");
  Object.assign(state, { answers, calibration });
  draw();
}

/** Offer the way back after a change of the encoder of images that were there before. */
function noteEncoder(before, now) {
  if (!before?.encoder || before.encoder === now.encoder || now.pictures.length === 0) return;
  state.former = before.encoder;
  state.misfits.clear();
  say(`Your images are encoded as: ${titleOf(now.encoder)}.`);
}

/** Bring everything up to date once the user pauses, so that quick keys do not wait for answers that the next one changes. */
let pause = null, waitingSince = 0;
function refreshSoon() {
  document.body.setAttribute("aria-busy", "true");
  if (pause === null) waitingSince = performance.now();
  clearTimeout(pause);
  const wait = Math.max(0, Math.min(QUIET, waitingSince + LONGEST - performance.now()));
  pause = setTimeout(() => { pause = null; refresh().catch(complain); }, wait);
}

async function doing(work, done) {
  try {
    await work();
    if (done) say(done);
  } catch (error) {
    if (error.status === 401) return begin();
    complain(error);
  }
  await refresh().catch(complain);
}

/** Show changes at once, send them after those before, and bring everything up to date. */
function change(changes, text, { isUndo = false } = {}) {
  if (changes.length === 0) return;
  const pictures = new Map(state.overview.pictures.map((picture) => [picture.id, picture]));
  if (!isUndo) history.push(text, changes.map(({ picture_id }) => stateOf(pictures.get(picture_id))));
  const next = new Map(changes.map((made) => [made.picture_id, made]));
  state.overview.pictures = state.overview.pictures.map((picture) => {
    const made = next.get(picture.id);
    return made ? { ...picture, class_id: made.class_id, accepted_id: made.accepted_id, is_none: made.is_none } : picture;
  });
  nChanges += 1;
  view.selected.clear();
  draw();
  say(isUndo ? `Undone: ${text}` : text);
  sending = sending.then(() => api.change(changes)).catch((error) => {
    if (!isUndo) history.pop();
    return error.status === 401 ? begin() : complain(error);
  });
  refreshSoon();
}

const stateOf = ({ id, class_id, accepted_id, is_none }) => ({ picture_id: id, class_id, accepted_id, is_none });
const become = (ids, what) => ids.map((id) => ({ picture_id: id, class_id: null, accepted_id: null, is_none: false, ...what(id) }));

/** Change images, and go on to the next one that is shown. */
function decide(ids, what, text) {
  const isInGrid = byId("grid").contains(document.activeElement);
  const chosen = new Set(ids);
  const places = list.map(({ id }, place) => (chosen.has(id) ? place : -1)).filter((place) => place >= 0);
  const following = places.length ? list.slice(places.at(-1) + 1).find(({ id }) => !chosen.has(id)) ?? list[places[0] - 1] : undefined;
  view.current = view.current === null ? null : following?.id ?? null;
  change(become(ids, what), text);
  if (isInGrid && view.current !== null) focusTile(view.current);
}

/** Keep whether the answers about open images were right, now that the user says what they are. */
function check(ids, saidId) {
  const chosen = new Set(ids);
  for (const { id, status, answer, shownId } of images)
    if (chosen.has(id) && status === "open" && answer) checks.add(id, answer, saidId === undefined || saidId === shownId);
}

const checked = () => checks.now(images, state.calibration);

const act = {
  upload: (files, classId) => doing(() => uploadAll(files, classId, state.overview.limits, {
    stored: ({ is_new, best }) => is_new && state.misfits.set(best, (state.misfits.get(best) ?? 0) + 1),
    say, complain, refresh: () => refresh().catch(complain) })),
  label: (ids, classId) => { check(ids, classId); decide(ids, () => ({ class_id: classId }), `${plural(ids.length, "image")} labelled as ${nameOf(classId)}`); },
  none: (ids) => { check(ids, null); decide(ids, () => ({ is_none: true }), `${plural(ids.length, "image")} called none of these`); },
  open: (ids) => { checks.remove(ids); decide(ids, () => ({}), `Label of ${plural(ids.length, "image")} removed`); },
  /** Accept answers; somebody who accepts one, or those of a sample, has looked at them. */
  accept: (ids, { isChecked = ids.length === 1 || view.filter === "sample" } = {}) => {
    const chosen = new Set(ids);
    const classOf = new Map(images.filter(({ id, status, answer }) => chosen.has(id) && status === "open" && answer).map(({ id, shownId }) => [id, shownId]));
    if (isChecked) check([...classOf.keys()]);
    decide([...classOf.keys()], (id) => ({ accepted_id: classOf.get(id) }), `${plural(classOf.size, "answer")} accepted`);
  },
  acceptMany: async () => {
    const { action, chosen } = await askToAccept(images, state.overview, checked());
    const ids = chosen.map(({ id }) => id);
    if (action === "accept") act.accept(ids, { isChecked: false });
    if (action !== "check" || ids.length === 0) return;
    checks.draw(ids);
    act.view({ filter: "sample", classId: null });
    say("Label these images, or accept their answers.");
    focusTile(list[0]?.id);
  },
  undo: () => {
    const made = history.pop();
    if (!made) return;
    const known = new Set(state.overview.pictures.map(({ id }) => id));
    checks.remove(made.changes.map(({ picture_id }) => picture_id));
    change(made.changes.filter(({ picture_id }) => known.has(picture_id)), made.text, { isUndo: true });
  },
  remove: async (ids) => {
    const chosen = await dialog(`Remove ${plural(ids.length, "image")}?`, h("p", {}, "This cannot be undone."),
      [{ label: "Remove", value: "remove", kind: "danger" }, { label: "Keep", value: "" }]);
    if (!chosen) return;
    view.current = null;
    doing(async () => { for (const id of ids) await api.deletePicture(id); }, `${plural(ids.length, "image")} removed`);
  },
  view: (change) => { Object.assign(view, change, { current: null }); view.selected.clear(); draw(); },
  select: (ids, change = {}) => { view.selected = new Set(ids); Object.assign(view, change); draw(); },
  goTo: (id) => { view.current = id; draw(); byId("ask").scrollIntoView({ block: "nearest" }); },
  renameClass: (id, name) => doing(() => api.renameClass(id, name), "Class renamed"),
  deleteClass: (id) => doing(() => api.deleteClass(id), "Class deleted"),
  askEncoder: async (suggested) => {
    const name = await askForEncoder(state.overview, suggested);
    if (name) act.useEncoder(name);
  },
  useEncoder: (name) => { state.former = null; return doing(() => api.chooseEncoder(name)); },
  forgetFormer: () => { state.former = null; drawEncoding(); byId("encoder").focus(); },
};

const nameOf = (classId) => state.overview.classes.find(({ id }) => id === classId)?.name ?? "";

listen({
  view, list: () => list, classes: () => state.overview.classes, isLoaded: () => state.overview !== null,
  targets: () => (view.selected.size ? [...view.selected] : [inQuestion()?.id].filter((id) => id !== undefined)),
  /** Draw what depends on the place and the selection of the user, after either has changed. */
  drawMove: (before) => {
    const touched = new Set([before.current, view.current, ...[...before.selected, ...view.selected].filter((id) => before.selected.has(id) !== view.selected.has(id))]);
    drawTiles(list.filter(({ id }) => touched.has(id)));
    askAbout();
    drawSelection(view, state.overview.classes, act);
  },
}, act);

byId("new-class").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = byId("new-name");
  doing(async () => {
    await api.addClass(input.value);
    input.value = "";
    input.focus();
  }, "Class added");
});

byId("encoder").addEventListener("click", () => state.overview && act.askEncoder(null));
byId("help").addEventListener("click", showKeys);
byId("labels").addEventListener("click", () => askForLabels((file) => doing(async () => {
  const got = await api.importLabels(file);
  history.clear();
  say(`${plural(got.n_examples + got.n_accepted + got.n_none, "label")} imported`);
  if (got.n_unmatched) complain(new Error(`${plural(got.n_unmatched, "label")} fit no image here, for instance ${got.unmatched.slice(0, 3).join(", ")}.`));
})));

byId("download").addEventListener("click", (event) => {
  if (!state.overview?.is_ready) {
    event.preventDefault();
    complain(new Error("Expected two classes with examples, but there are fewer. Add images first."));
  }
});

byId("reset").addEventListener("click", async () => {
  const chosen = await dialog("Start over?", h("p", {}, "All your classes and images will be deleted."),
    [{ label: "Delete everything", value: "delete", kind: "danger" }, { label: "Keep", value: "" }]);
  if (!chosen) return;
  forget();
  // thumbnails on their way would be asked of a session that is gone
  for (const image of document.querySelectorAll("img")) if (!image.complete) image.removeAttribute("src");
  doing(async () => { await api.forget(); await api.begin(); }, "All images are deleted");
});

/** Forget what the page knows of a session. */
function forget() {
  history.clear();
  checks.clear();
  state.misfits.clear();
  state.former = null;
  Object.assign(view, { filter: "todo", classId: null, current: null });
}

// an image that misses its zone would replace the page
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());

async function begin() {
  try {
    if ((await api.health()).needs_token) await unlock(complain);
    if (!(await api.health()).has_session) { forget(); await api.begin(); }
    await refresh();
  } catch (error) {
    complain(error);
  }
}

begin();
