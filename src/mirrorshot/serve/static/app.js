/** The page as a whole: load the state from the server, draw it, send the changes of the user. */

import { drawPool, drawQuestion } from "./answers.js";
import { api } from "./api.js";
import { drawCalibration } from "./calibration.js";
import { drawClasses } from "./classes.js";
import { byId, dialog, h, plural } from "./dom.js";

const state = { overview: null, answers: null, calibration: null };
const AT_ONCE = 3;

const say = (text) => { byId("status").textContent = text; };

function complain(error) {
  const box = h("p", { class: "problem" }, h("span", {}, error.message),
    h("button", { class: "quiet small", type: "button", "aria-label": "Dismiss this message", onclick: () => box.remove() }, "Dismiss"));
  byId("problems").append(box);
  while (byId("problems").childElementCount > 5) byId("problems").firstElementChild.remove();
}

function draw() {
  const { overview } = state;
  const encoder = byId("encoder");
  const names = { auto: "(detect)", glyphs: "characters", pixels: "other things" };
  encoder.replaceChildren(...(overview.encoders.length > 1 ? ["auto", ...overview.encoders] : overview.encoders).map((name) =>
    h("option", { value: name, selected: name === (overview.encoder ?? "auto") }, names[name] ?? name)));
  encoder.disabled = overview.pictures.length > 0 || overview.encoders.length < 2;
  encoder.title = encoder.disabled ? "Settled by the first image" : "";
  const download = byId("download");
  download.setAttribute("aria-disabled", String(!overview.is_ready));
  download.title = overview.is_ready ? "" : "Two classes need examples first";
  drawClasses(state, act);
  drawQuestion(state, act);
  drawPool(state, act);
  drawCalibration(state);
  document.body.dataset.version = String(overview.version);
}

let latest = 0;

/** Load everything; a newer call of this function takes over the drawing. */
async function refresh() {
  const turn = ++latest;
  const overview = await api.overview();
  if (turn !== latest) return;
  state.overview = overview;
  if (!overview.is_ready) state.answers = state.calibration = null;
  draw();
  if (!overview.is_ready) return;
  document.body.setAttribute("aria-busy", "true");
  const [answers, calibration] = await Promise.all([api.answers(), api.calibration()]);
  if (turn !== latest) return;
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

async function uploadAll(files, classId) {
  const { limits } = state.overview;
  const waiting = [...files];
  let n = 0;
  const worker = async () => {
    for (let file = waiting.shift(); file; file = waiting.shift()) {
      try {
        if (file.size > limits.upload_bytes)
          throw new Error(`Expected at most ${limits.upload_bytes} bytes, but got ${file.size}. Make the image smaller.`);
        await (classId === null ? api.addToPool(file) : api.addExample(file, classId));
        n += 1;
      } catch (error) {
        complain(new Error(`${file.name}: ${error.message}`));
        if ([0, 401, 409].includes(error.status)) waiting.length = 0;
      }
      say(`${plural(n, "image")} of ${files.length} added`);
    }
  };
  // the first image settles the encoder, so it goes before the others
  await Promise.all(Array.from({ length: state.overview.encoder === null ? 1 : AT_ONCE }, worker));
}

const act = {
  upload: (files, classId) => doing(() => uploadAll(files, classId)),
  label: (id, classId) => doing(() => api.label(id, classId), classId === null ? "Label taken away" : "Labelled"),
  deletePicture: (id) => doing(() => api.deletePicture(id), "Image removed"),
  renameClass: (id, name) => doing(() => api.renameClass(id, name), "Class renamed"),
  deleteClass: (id) => doing(() => api.deleteClass(id), "Class deleted"),
};

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

byId("download").addEventListener("click", (event) => {
  if (!state.overview?.is_ready) {
    event.preventDefault();
    complain(new Error("Expected two classes with examples, but there are fewer. Add images first."));
  }
});

byId("reset").addEventListener("click", async () => {
  const chosen = await dialog("Start over?", h("p", {}, "All your classes and images will be deleted."),
    [{ label: "Delete everything", value: "delete", kind: "danger" }, { label: "Keep", value: "" }]);
  if (chosen) doing(async () => { await api.forget(); await api.begin(); }, "All images are deleted");
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea, dialog");
  if (isTyping || byId("ask").hidden || event.ctrlKey || event.altKey || event.metaKey || !/^[1-9]$/.test(event.key)) return;
  byId("question").querySelectorAll(".choice")[Number(event.key) - 1]?.click();
});

// an image that misses its zone would replace the page
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());

async function unlock() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  history.replaceState(null, "", location.pathname);
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
    if (!(await api.health()).has_session) await api.begin();
    await refresh();
  } catch (error) {
    complain(error);
  }
}

begin();
