/** Everything that a user can do. */

import { api } from "./api.js";
import { checks } from "./checks.js";
import { askToAccept } from "./dialogs.js";
import { byId, dialog, h, plural } from "./dom.js";
import { askForEncoder } from "./encoder.js";
import { focusTile } from "./grid.js";
import { complain, say, state, view } from "./state.js";
import { bringUpToDate, change, doing, draw } from "./sync.js";
import { history } from "./undo.js";
import { uploadAll } from "./uploads.js";

const become = (ids, what) => ids.map((id) => ({ picture_id: id, class_id: null, accepted_id: null, is_none: false, ...what(id) }));

/** Change images, and go on to the next one that is shown. */
function decide(ids, what, text) {
  if (ids.length === 0) return;
  const isInGrid = byId("grid").contains(document.activeElement);
  const chosen = new Set(ids);
  const places = state.list.map(({ id }, place) => (chosen.has(id) ? place : -1)).filter((place) => place >= 0);
  const following = places.length ? state.list.slice(places.at(-1) + 1).find(({ id }) => !chosen.has(id)) ?? state.list[places[0] - 1] : undefined;
  view.current = view.current === null ? null : following?.id ?? null;
  if (isInGrid && view.current !== null) focusTile(view.current); // before its neighbour goes: to lose the focus costs a layout
  change(become(ids, what), text);
}

/** Keep whether the answers about open images were right, now that the user says what they are. */
function check(ids, saidId) {
  const chosen = new Set(ids);
  for (const { id, status, answer, shownId } of state.images)
    if (chosen.has(id) && status === "open" && answer) checks.add(id, answer, saidId === undefined || saidId === shownId);
}

/** The answers that the user has checked, as the present classifier gives them. */
export const checked = () => checks.now(state.images, state.calibration);

export const act = {
  upload: (files, classId) => doing(() => uploadAll(files, classId, state.overview.limits, {
    stored: ({ is_new, best }) => is_new && state.misfits.set(best, (state.misfits.get(best) ?? 0) + 1),
    say, complain, refresh: bringUpToDate })),
  label: (ids, classId) => { check(ids, classId); decide(ids, () => ({ class_id: classId }), `${plural(ids.length, "image")} labelled as ${nameOf(classId)}`); },
  none: (ids) => { check(ids, null); decide(ids, () => ({ is_none: true }), `${plural(ids.length, "image")} called none of these`); },
  open: (ids) => { checks.remove(ids); decide(ids, () => ({}), `Label of ${plural(ids.length, "image")} removed`); },
  /** Accept answers; somebody who accepts one, or those of a sample, has looked at them. */
  accept: (ids, { isChecked = ids.length === 1 || view.filter === "sample" } = {}) => {
    const chosen = new Set(ids);
    const answered = state.images.filter(({ id, status, answer }) => chosen.has(id) && status === "open" && answer);
    const what = new Map(answered.map(({ id, answer, shownId }) => [id, answer.verdict === "none" ? { is_none: true } : { accepted_id: shownId }]));
    if (isChecked) check([...what.keys()]);
    decide([...what.keys()], (id) => what.get(id), `${plural(what.size, "answer")} accepted`);
  },
  acceptMany: async () => {
    const { action, chosen } = await askToAccept(state.images, state.overview, checked());
    const ids = chosen.map(({ id }) => id);
    if (action === "accept") act.accept(ids, { isChecked: false });
    if (action !== "check" || ids.length === 0) return;
    checks.draw(ids);
    act.view({ filter: "sample", classId: null });
    say("Label these images, or accept their answers.");
    focusTile(state.list[0]?.id);
  },
  /** Take the last step back of which something can be: images and classes of others may be deleted. */
  undo: () => {
    const { pictures, classes } = state.overview;
    const known = new Set(pictures.map(({ id }) => id)), labels = new Set([null, ...classes.map(({ id }) => id)]);
    for (let made = history.pop(); made; made = history.pop()) {
      const left = made.changes.filter((was) => known.has(was.picture_id) && labels.has(was.class_id) && labels.has(was.accepted_id));
      if (left.length === 0) continue;
      checks.remove(left.map(({ picture_id }) => picture_id));
      return change(left, made.text, { isUndo: true });
    }
    draw();
    say("Nothing to undo");
  },
  remove: async (ids) => {
    const chosen = await dialog(`Remove ${plural(ids.length, "image")}?`, h("p", {}, "This cannot be undone."),
      [{ label: "Remove", value: "remove", kind: "danger" }, { label: "Keep", value: "" }]);
    if (!chosen) return;
    view.current = null;
    doing(async () => {
      for (const id of ids) await api.deletePicture(id).catch((error) => { if (error.status !== 404) throw error; }); // gone already
    }, `${plural(ids.length, "image")} removed`);
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
  forgetFormer: () => { state.former = null; draw(); byId("encoder").focus(); },
};

const nameOf = (classId) => state.overview.classes.find(({ id }) => id === classId)?.name ?? "";
