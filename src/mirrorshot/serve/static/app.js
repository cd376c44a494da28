/** The page as a whole: load the state from the server, draw it, send the changes of the user. */

import { api } from "./api.js";
import { drawCalibration } from "./calibration.js";
import { drawClasses } from "./classes.js";
import { drawQuestion } from "./detail.js";
import { askForLabels, askToAccept, showKeys } from "./dialogs.js";
import { byId, dialog, differs, dropZone, h, plural } from "./dom.js";
import { drawGrid, drawSelection, drawTiles, drawToolbar, focusTile, step } from "./grid.js";
import { describe, shown } from "./model.js";
import { drawProgress } from "./progress.js";
import { history } from "./undo.js";

const state = { overview: null, answers: null, calibration: null, misfits: { n: 0 } };
const view = { filter: "todo", classId: null, sort: "doubt", selected: new Set(), current: null, anchor: null };
const AT_ONCE = 3, REFRESH = 700, FIRST = 600; // uploads at a time, milliseconds between answers while images arrive, and for the first
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
  images = describe(state);
  const known = new Set(images.map(({ id }) => id));
  view.selected = new Set([...view.selected].filter((id) => known.has(id)));
  if (!overview.classes.some(({ id }) => id === view.classId)) view.classId = null;
  list = shown(images, view);
  drawTools(overview);
  drawClasses({ overview, images }, act);
  drawProgress(images, state);
  askAbout();
  if (!byId("pool-files"))
    byId("pool-drop").append(dropZone({ id: "pool-files", text: "Drop unlabelled images here, or choose them",
      label: "Add images to classify", onfiles: (files) => act.upload(files, null), onpicture: (id) => act.open([id]) }));
  drawToolbar(images, view, { overview, undoText: history.text() }, act);
  drawGrid(images, list, view);
  drawSelection(list, view, overview, act);
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
  const encoder = byId("encoder");
  if (!differs(encoder, overview.encoders, overview.encoder, overview.pictures.length > 0, overview.is_ready)) return;
  const names = { auto: "(detect)", glyphs: "characters", pixels: "other things" };
  encoder.replaceChildren(...(overview.encoders.length > 1 ? ["auto", ...overview.encoders] : overview.encoders).map((name) =>
    h("option", { value: name, selected: name === (overview.encoder ?? "auto") }, names[name] ?? (name.startsWith("efficientnet") ? "photographs" : name))));
  encoder.disabled = overview.pictures.length > 0 || overview.encoders.length < 2;
  encoder.title = encoder.disabled ? "Settled by the first image" : "";
  const download = byId("download");
  download.setAttribute("aria-disabled", String(!overview.is_ready));
  download.title = overview.is_ready ? "" : "Two classes need examples first";
}

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
  state.overview = overview;
  if (!overview.is_ready) state.answers = state.calibration = null;
  draw();
  if (!overview.is_ready) return;
  document.body.setAttribute("aria-busy", "true");
  const [answers, calibration] = await Promise.all([api.answers(), api.calibration()]);
  Object.assign(state, { answers, calibration });
  document.body.removeAttribute("aria-busy");
  draw();
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
  const old = changes.map(({ picture_id }) => stateOf(state.overview.pictures.find(({ id }) => id === picture_id)));
  if (!isUndo) history.push(text, old);
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
  refresh().catch(complain);
}

const stateOf = ({ id, class_id, accepted_id, is_none }) => ({ picture_id: id, class_id, accepted_id, is_none });
const become = (ids, what) => ids.map((id) => ({ picture_id: id, class_id: null, accepted_id: null, is_none: false, ...what(id) }));

/** Change images, and go on to the next one that is shown. */
function decide(ids, what, text) {
  const isInGrid = byId("grid").contains(document.activeElement);
  const places = list.map(({ id }, place) => (ids.includes(id) ? place : -1)).filter((place) => place >= 0);
  const following = places.length ? list.slice(Math.max(...places) + 1).find(({ id }) => !ids.includes(id)) ?? list[Math.min(...places) - 1] : undefined;
  view.current = view.current === null ? null : following?.id ?? null;
  change(become(ids, what), text);
  if (isInGrid && view.current !== null) focusTile(view.current);
}

async function uploadAll(files, classId) {
  const { limits } = state.overview;
  const waiting = [...files];
  let n = 0, copies = 0, last = 0;
  const worker = async (_, most = Infinity) => {
    for (let file = waiting.shift(); file && most > 0; file = --most > 0 ? waiting.shift() : undefined) {
      try {
        if (file.size > limits.upload_bytes)
          throw new Error(`Expected at most ${limits.upload_bytes} bytes, but got ${file.size}. Make the image smaller.`);
        const got = await (classId === null ? api.addToPool(file) : api.addExample(file, classId));
        n += 1;
        copies += got.is_new ? 0 : 1;
        state.misfits.n += got.is_new && !got.suits ? 1 : 0;
      } catch (error) {
        complain(new Error(`${file.name}: ${error.message}`));
        if ([0, 401].includes(error.status) || /at most \d+ (unlabelled|examples)/.test(error.message)) waiting.length = 0;
      }
      say(`${plural(n, "image")} of ${files.length} added`);
      if (performance.now() - last > REFRESH && waiting.length) { last = performance.now(); refresh().catch(complain); }
    }
  };
  // the first image settles the encoder and is answered before the others are sent
  await worker(null, 1);
  if (waiting.length > 0) await Promise.race([refresh().catch(complain), new Promise((done) => setTimeout(done, FIRST))]);
  await Promise.all(Array.from({ length: AT_ONCE }, (_, i) => worker(i)));
  if (copies) complain(new Error(`${plural(copies, "image")} of ${files.length} ${copies === 1 ? "was" : "were"} here already, and ${copies === 1 ? "is" : "are"} not added again.`));
}

const act = {
  upload: (files, classId) => doing(() => uploadAll(files, classId)),
  label: (ids, classId) => decide(ids, () => ({ class_id: classId }), `${plural(ids.length, "image")} labelled as ${nameOf(classId)}`),
  none: (ids) => decide(ids, () => ({ is_none: true }), `${plural(ids.length, "image")} called none of these`),
  open: (ids) => decide(ids, () => ({}), `Label of ${plural(ids.length, "image")} taken away`),
  accept: (ids) => {
    const found = images.filter(({ id, status, answer }) => ids.includes(id) && status === "open" && answer);
    const classOf = new Map(found.map(({ id, shownId }) => [id, shownId]));
    decide([...classOf.keys()], (id) => ({ accepted_id: classOf.get(id) }), `${plural(found.length, "answer")} accepted`);
  },
  acceptMany: async () => act.accept((await askToAccept(images, state.overview)).map(({ id }) => id)),
  undo: () => {
    const made = history.pop();
    const known = new Set(state.overview.pictures.map(({ id }) => id));
    if (made) change(made.changes.filter(({ picture_id }) => known.has(picture_id)), made.text, { isUndo: true });
  },
  remove: async (ids) => {
    const chosen = await dialog(`Remove ${plural(ids.length, "image")}?`, h("p", {}, "This cannot be undone."),
      [{ label: "Remove", value: "remove", kind: "danger" }, { label: "Keep", value: "" }]);
    if (!chosen) return;
    view.current = null;
    doing(async () => { for (const id of ids) await api.deletePicture(id); }, `${plural(ids.length, "image")} removed`);
  },
  view: (change) => { Object.assign(view, change, { current: null }); view.selected.clear(); draw(); byId("grid").scrollTop = 0; },
  select: (ids) => { view.selected = new Set(ids); draw(); },
  goTo: (id) => { view.current = id; draw(); byId("ask").scrollIntoView({ block: "nearest" }); },
  renameClass: (id, name) => doing(() => api.renameClass(id, name), "Class renamed"),
  deleteClass: (id) => doing(() => api.deleteClass(id), "Class deleted"),
};

const nameOf = (classId) => state.overview.classes.find(({ id }) => id === classId)?.name ?? "";
const targets = () => (view.selected.size ? [...view.selected] : [inQuestion()?.id].filter((id) => id !== undefined));

byId("new-class").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = byId("new-name");
  doing(async () => {
    await api.addClass(input.value);
    input.value = "";
    input.focus();
  }, "Class added");
});

byId("encoder").addEventListener("change", (event) => doing(() => api.chooseEncoder(event.target.value)));
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
  history.clear();
  state.misfits.n = 0;
  // thumbnails on their way would be asked of a session that is gone
  for (const image of document.querySelectorAll("img")) if (!image.complete) image.removeAttribute("src");
  doing(async () => { await api.forget(); await api.begin(); }, "All images are deleted");
});

const grid = byId("grid");

/** Draw what depends on the place and the selection of the user, after either has changed. */
function drawMove(before) {
  const touched = new Set([before.current, view.current, ...[...before.selected, ...view.selected].filter((id) => before.selected.has(id) !== view.selected.has(id))]);
  drawTiles(list.filter(({ id }) => touched.has(id)), view);
  askAbout();
  drawSelection(list, view, state.overview, act);
}

const placeNow = () => ({ current: view.current ?? list[0]?.id, selected: new Set(view.selected) });

function moveTo(id, isExtending, before = placeNow()) {
  if (isExtending) {
    const [a, b] = [view.anchor ?? view.current ?? id, id].map((end) => list.findIndex((image) => image.id === end)).sort((x, y) => x - y);
    view.selected = new Set(list.slice(Math.max(0, a), b + 1).map((image) => image.id));
  } else view.anchor = id;
  view.current = id;
  drawMove(before);
  focusTile(id);
}

const toggle = (id) => { if (!view.selected.delete(id)) view.selected.add(id); };

grid.addEventListener("click", (event) => {
  const id = Number(event.target.closest(".tile")?.dataset.id);
  if (!id) return;
  const before = placeNow();
  if (event.ctrlKey || event.metaKey) toggle(id);
  moveTo(id, event.shiftKey, before);
});

const KEYS = {
  a: () => act.accept(targets()), n: () => act.none(targets()), 0: () => act.open(targets()), u: () => act.undo(), "?": () => showKeys(),
  g: () => list.length && moveTo(view.current ?? list[0].id, false), Delete: () => targets().length && act.remove(targets()),
  Escape: () => { view.selected.clear(); view.current = null; draw(); },
};
const GRID_KEYS = { Enter: () => act.accept(targets()), " ": () => { const before = placeNow(); toggle(view.current); drawMove(before); } };

document.addEventListener("keydown", (event) => {
  if (!state.overview || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const isInGrid = grid.contains(event.target), isFree = isInGrid || event.target === document.body;
  const withControl = event.ctrlKey || event.metaKey;
  let action = null;
  if (withControl) {
    if (event.key === "z") action = act.undo;
    if (event.key === "a" && isInGrid) action = () => act.select(list.map(({ id }) => id));
  } else if (/^[1-9]$/.test(event.key)) {
    const found = state.overview.classes[Number(event.key) - 1];
    if (found && targets().length) action = () => act.label(targets(), found.id);
  } else if (isInGrid && step(event.key) !== undefined) {
    const place = list.findIndex(({ id }) => id === Number(event.target.dataset.id));
    const next = Math.min(list.length - 1, Math.max(0, place + step(event.key)));
    action = () => moveTo(list[next].id, event.shiftKey);
  } else action = (isInGrid && GRID_KEYS[event.key]) || (event.key === "Enter" && isFree && GRID_KEYS.Enter) || KEYS[event.key] || null;
  if (!action) return;
  event.preventDefault();
  action();
});

grid.addEventListener("focusin", (event) => {
  const id = Number(event.target.dataset.id);
  if (!id || id === view.current) return;
  const before = placeNow();
  view.current = view.anchor = id;
  drawMove(before);
});

// an image that misses its zone would replace the page
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());

async function unlock() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  window.history.replaceState(null, "", location.pathname);
  for (let token = given; ; token = null) {
    if (token === null) {
      const input = h("input", { id: "token", type: "password", required: true, autocomplete: "current-password" });
      await dialog("Token", h("div", { class: "field" }, h("label", { for: "token" },
        "This server asks for a token. Its operator has it."), input), [{ label: "Open", value: "open", kind: "primary" }]);
      token = input.value;
    }
    try {
      await api.login(token);
      return;
    } catch (error) {
      complain(error);
    }
  }
}

async function begin() {
  try {
    if ((await api.health()).needs_token) await unlock();
    if (!(await api.health()).has_session) { history.clear(); await api.begin(); }
    await refresh();
  } catch (error) {
    complain(error);
  }
}

begin();
