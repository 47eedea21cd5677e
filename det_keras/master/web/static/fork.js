// The editor of a config: the master checks it while the user types.

import { say, send } from "./actions.js";

const form = document.getElementById("fork");
const field = form.elements.config;
const result = document.getElementById("fork-result");
const start = form.querySelector("[type=submit]");
let latest = 0;
let timer = 0;

field.addEventListener("input", () => {
  clearTimeout(timer);
  start.disabled = true;
  timer = setTimeout(check, 300);
});
field.addEventListener("keydown", (event) => {
  if (event.key !== "Tab" || event.shiftKey) return;
  // In YAML two spaces are a level; Escape, then Tab leaves the field.
  if (field.dataset.escaped) return;
  event.preventDefault();
  field.setRangeText("  ", field.selectionStart, field.selectionEnd, "end");
});
field.addEventListener("keyup", (event) => (field.dataset.escaped = event.key === "Escape" ? "yes" : ""));
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  start.disabled = true;
  try {
    const body = { config: field.value, parentId: Number(form.dataset.parent), activate: true };
    const { experiment } = await send("/api/v1/experiments", { body: JSON.stringify(body) });
    location.assign(`/experiments/${experiment.id}`);
  } catch (error) {
    say(error.message);
    start.disabled = false;
  }
});
check();

async function check() {
  const mine = ++latest;
  let text = "The config is valid.";
  let isValid = true;
  try {
    const { notices = [] } = await send("/api/v1/experiments", {
      body: JSON.stringify({ config: field.value, validateOnly: true }),
    });
    if (notices.length) text += ` ${notices.join(" ")}`;
  } catch (error) {
    isValid = false;
    text = error.message;
  }
  // The user has typed on meanwhile.
  if (mine !== latest) return;
  result.textContent = text;
  result.className = isValid ? "valid" : "wrong";
  field.setAttribute("aria-invalid", !isValid);
  start.disabled = !isValid;
}
