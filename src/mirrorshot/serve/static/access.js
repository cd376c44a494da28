/** The token of the server: from the address, or typed. */

import { api } from "./api.js";
import { dialog, h } from "./dom.js";

export async function unlock() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  window.history.replaceState(null, "", location.pathname);
  let problem = null;
  for (let token = given; ; token = null) {
    try {
      await api.login(token ?? (await askForToken(problem)));
      return;
    } catch (error) {
      problem = error.message;
    }
  }
}

async function askForToken(problem) {
  const input = h("input", { id: "token", type: "password", required: true, autocomplete: "current-password" });
  await dialog("Token", h("div", { class: "field" }, h("label", { for: "token" },
    "This server asks for a token. Its operator has it."), input, problem && h("p", { class: "wrong", role: "alert" }, problem)), [{ label: "Open", value: "open", kind: "primary" }]);
  return input.value;
}
