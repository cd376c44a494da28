/** The page as a whole: draw the state, connect it with the server and the user. */

import { unlock } from "./access.js";
import { act, checked } from "./actions.js";
import { api, onAway } from "./api.js";
import { drawCalibration } from "./calibration.js";
import { checks } from "./checks.js";
import { drawClasses } from "./classes.js";
import { drawQuestion } from "./detail.js";
import { askForLabels, showKeys } from "./dialogs.js";
import { byId, dialog, differs, dropZone, h, plural } from "./dom.js";
import { ChangeWatch, drawChange, drawEncoderButton, titleOf } from "./encoder.js";
import { drawGrid, drawTiles } from "./grid.js";
import { listen } from "./keys.js";
import { counts, describe, shown } from "./model.js";
import { drawProgress } from "./progress.js";
import { complain, inQuestion, say, state, tellAway, view } from "./state.js";
import { bringUpToDate, connect, doing, isSending, refresh } from "./sync.js";
import { drawSelection, drawToolbar } from "./toolbar.js";
import { history } from "./undo.js";
import { isUploading, stopUploads } from "./uploads.js";

function draw() {
  const { overview } = state;
  const images = state.images = describe(state, checks.sample);
  const known = new Set(images.map(({ id }) => id));
  view.selected = new Set([...view.selected].filter((id) => known.has(id)));
  if (!overview.classes.some(({ id }) => id === view.classId)) view.classId = null;
  const list = state.list = shown(images, view);
  const found = counts(images);
  drawTools(overview);
  drawClasses({ overview, images }, act);
  drawEncoding();
  drawProgress({ ...state, found, checks: checked() }, act);
  askAbout();
  drawToolbar({ found, view, classes: overview.classes, undoText: history.text() }, act);
  drawGrid(images, list, view, overview.is_ready);
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
  if (!byId("pool-files")) // once there is a session
    byId("pool-drop").append(dropZone({ id: "pool-files", text: "Drop unlabelled images here, or choose them",
      label: "Add images to classify", onfiles: (files) => act.upload(files, null), onpicture: (id) => act.open([id]) }));
  if (!differs(byId("download"), overview.is_ready)) return;
  byId("download").setAttribute("aria-disabled", String(!overview.is_ready));
  byId("download").title = overview.is_ready ? "" : "Two classes need examples first";
}

function drawEncoding() {
  drawEncoderButton(state.overview);
  drawChange(state.overview, { watch, former: state.former }, act);
}

/** What the server says about the encoder while it changes. */
const watch = new ChangeWatch((got, error) => {
  if (!got) return error.status === 401 ? begin() : complain(error);
  state.overview.encoder_change = got.change;
  watch.follow(got.change);
  if (got.change?.problem) say("The encoder could not be changed.");
  if (!got.change) bringUpToDate();
  drawEncoding();
});

/** Offer the way back after a change of the encoder of images that were there before. */
function noteEncoder(before, now) {
  if (!before?.encoder || before.encoder === now.encoder || now.pictures.length === 0) return;
  state.former = before.encoder;
  state.misfits.clear();
  say(`Your images are encoded as: ${titleOf(now.encoder)}.`);
}

connect({ draw, begin: () => begin(), loaded: (before, now) => {
  noteEncoder(before, now);
  watch.follow(now.encoder_change);
} });

listen({
  view, list: () => state.list, classes: () => state.overview.classes, isLoaded: () => state.overview !== null,
  targets: () => (view.selected.size ? [...view.selected] : [inQuestion()?.id].filter((id) => id !== undefined)),
  /** Draw what depends on the place and the selection of the user, after either has changed. */
  drawMove: (before) => {
    const touched = new Set([before.current, view.current, ...[...before.selected, ...view.selected].filter((id) => before.selected.has(id) !== view.selected.has(id))]);
    drawTiles(state.list.filter(({ id }) => touched.has(id)));
    askAbout();
    drawSelection(view, state.overview.classes, act);
  },
}, act);

byId("new-class").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = byId("new-name");
  doing(async () => {
    try {
      await api.addClass(input.value);
      input.value = "";
      noteAtName("");
      say("Class added");
    } catch (error) {
      if (error.status === 401) throw error;
      noteAtName(error.message);
    }
    input.focus();
  }, "", { isForAny: true });
});
byId("new-name").addEventListener("input", () => noteAtName(""));

/** What is wrong with the name of a new class, below it. */
function noteAtName(text) {
  byId("new-problem").textContent = text;
  byId("new-problem").hidden = !text;
  byId("new-name").setAttribute("aria-invalid", String(Boolean(text)));
}

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
  doing(async () => { await stopUploads(); await api.forget(); await api.begin(); }, "All images are deleted");
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
    if ((await api.health()).needs_token) await unlock();
    if (!(await api.health()).has_session) {
      if (state.overview?.version) complain(new Error("Your session is gone: it was deleted, or the server was started with other data. A new one has begun."));
      forget();
      await api.begin();
    }
    await refresh();
  } catch (error) {
    complain(error);
  }
}

onAway(tellAway);
// another window may have changed the session
for (const kind of ["focus", "visibilitychange"]) addEventListener(kind, () => { if (!document.hidden && state.overview) bringUpToDate(); });
addEventListener("beforeunload", (event) => { if (state.isAway || isUploading() || isSending()) event.preventDefault(); });

begin();
