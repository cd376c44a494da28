/** The server, as functions. An error is an Error whose message is the server's sentence. */

const PAUSE = 1000, TRIES = 5; // milliseconds before the same request is sent again, and how often
const AWAY = [502, 504]; // of a proxy whose server does not answer
const GONE = "An image or a class is gone: it was removed in another window. The page now shows what is there.";
let tellAway = () => {}, returning = null;

/** Set what happens when the server stops answering (true), and when it answers again (false). */
export const onAway = (tell) => { tellAway = tell; };

async function call(method, path, { json, content, type } = {}) {
  const response = await reach(`api/${path}`, {
    method,
    headers: json !== undefined ? { "Content-Type": "application/json" } : content ? { "Content-Type": type } : {},
    body: json !== undefined ? JSON.stringify(json) : content,
  });
  const answer = await response.json().catch(() => ({ error: `Expected JSON, but got status ${response.status}.` }));
  const status = response.status === 403 ? 401 : response.status; // a token is missing: the page begins anew too, and asks for it
  if (!response.ok) throw Object.assign(new Error(status === 404 ? GONE : answer.error), { status });
  return answer;
}

/** Send a request; while the server does not answer, wait for it and send the request again. */
async function reach(path, request) {
  for (let tries = 1; ; tries += 1) {
    const response = await fetch(path, request).catch(() => null);
    if (tries < TRIES && response?.status === 429 && response.headers.get("Retry-After") === "1") await pause();
    else if (response && !AWAY.includes(response.status)) return response;
    else {
      if (request.body instanceof Blob) await checkFile(request.body);
      if (tries === TRIES) throw new Error("Expected an answer to this request, but the connection ended. Is the file too large?");
      await (returning ??= untilBack());
    }
  }
}

async function untilBack() {
  let isAway = false;
  while (!(await fetch("api/health").catch(() => null))?.ok) {
    if (!isAway) tellAway(isAway = true);
    await pause();
  }
  returning = null;
  if (isAway) tellAway(false);
}

const pause = () => new Promise((done) => setTimeout(done, PAUSE));

async function checkFile(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw new Error("Expected a file that can be read, but it is a folder, or has changed or gone. Choose it again.");
  }
}

const upload = (path, file, values) =>
  call("POST", `${path}?${new URLSearchParams({ ...values, name: file.name })}`, {
    content: file, type: file.type.startsWith("image/") ? file.type : "application/octet-stream",
  });

export const api = {
  health: () => call("GET", "health"),
  login: (token) => call("POST", "login", { json: { token } }),
  begin: () => call("POST", "sessions"),
  forget: () => call("DELETE", "session"),
  overview: () => call("GET", "session"),
  answers: () => call("GET", "answers"),
  calibration: () => call("GET", "calibration"),
  encoder: () => call("GET", "encoder"),
  chooseEncoder: (name) => call("PUT", "encoder", { json: { name } }),
  addClass: (name) => call("POST", "classes", { json: { name } }),
  renameClass: (id, name) => call("PATCH", `classes/${id}`, { json: { name } }),
  deleteClass: (id) => call("DELETE", `classes/${id}`),
  addExample: (file, class_id) => upload("examples", file, { class_id }),
  addToPool: (file) => upload("pool", file, {}),
  change: (changes) => call("PATCH", "pictures", { json: { changes } }),
  importLabels: (file) => call("POST", "labels", { content: file, type: /\.csv$/i.test(file.name) ? "text/csv" : "application/json" }),
  deletePicture: (id) => call("DELETE", `pictures/${id}`),
};
