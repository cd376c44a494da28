/** The server, as functions. An error is an Error whose message is the server's sentence. */

async function call(method, path, { json, content, type } = {}) {
  let response;
  try {
    for (let tries = 0; tries < 5; tries += 1) {
      response = await fetch(`api/${path}`, {
        method,
        headers: json !== undefined ? { "Content-Type": "application/json" } : content ? { "Content-Type": type } : {},
        body: json !== undefined ? JSON.stringify(json) : content,
      });
      if (response.status !== 429 || response.headers.get("Retry-After") !== "1") break;
      await new Promise((resolve) => setTimeout(resolve, 1000)); // too much at the same time
    }
  } catch {
    throw Object.assign(new Error("Expected an answer of the server, but got none. Is it still running?"), { status: 0 });
  }
  const answer = await response.json().catch(() => ({ error: `Expected JSON, but got status ${response.status}.` }));
  if (!response.ok) throw Object.assign(new Error(answer.error), { status: response.status });
  return answer;
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
