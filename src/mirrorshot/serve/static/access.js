/** The token of the server: from the address, or typed. */

import { api } from "./api.js";
import { dialog, h } from "./dom.js";

export async function unlock(complain) {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  window.history.replaceState(null, "", location.pathname);
  for (let token = given; ; token = null) {
    try {
      await api.login(token ?? (await askForToken()));
      return;
    } catch (error) {
      complain(error);
    }
  }
}

async function askForToken() {
  const input = h("input", { id: "token", type: "password", required: true, autocomplete: "current-password" });
  await dialog("Token", h("div", { class: "field" }, h("label", { for: "token" },
    "This server asks for a token. Its operator has it."), input), [{ label: "Open", value: "open", kind: "primary" }]);
  return input.value;
}
