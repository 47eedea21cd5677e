// Buttons that make changes: they send the page's token, and ask for confirmation if work would be lost.

import { refreshSoon } from "./live.js";
import { reasonOf, request } from "./requests.js";

const UNCERTAIN = "The change may not have been made. Look at it when the master answers again.";

const token = () => document.querySelector("meta[name=csrf-token]").content;

export function arm() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-post], [data-logout], [data-copy]");
    if (button === null) return;
    if (button.hasAttribute("data-logout")) return logOut();
    if (button.hasAttribute("data-copy")) return copy(button.dataset.copy);
    const { post: address, done, question, loss, body, method = "POST", go } = button.dataset;
    if (question && !(await ask(question, loss, button.textContent))) return;
    await change(button, address, done, { body, method }, go);
  });
  document.addEventListener("click", async (event) => {
    // Sends what the user enters: as one field, a text or a whole number of `unit`, or in the place of {} in the address.
    const button = event.target.closest("[data-ask]");
    if (button === null) return;
    const { ask: address, field, question, input, unit, method = "POST", body = "{}" } = button.dataset;
    const word = button.textContent.trim();
    const given = await ask(question, "", word, { input });
    if (!given) return;
    if (unit && !/^\d+$/.test(given)) return say(`The ${field} must be a whole number of ${unit}.`);
    const fields = { ...JSON.parse(body), ...(field && { [field]: unit ? Number(given) : given }) };
    const path = address.replace("{}", encodeURIComponent(given));
    await change(button, path, `${word}: done.`, { method, body: JSON.stringify(fields) });
  });
  // No submit button: Enter in the field of the dialog would press the first of them.
  document.getElementById("ask-no").addEventListener("click", () => document.getElementById("ask").close("no"));
  const form = document.getElementById("signin");
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    signIn(form);
  });
}

let saying;

export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  clearTimeout(saying);
  saying = setTimeout(() => {
    place.textContent = "";
  }, 6000);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Only pages of a secure origin, such as localhost, have a clipboard.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied.");
}

// Sends a change with the page's token; returns whether the master made it.
export async function send(address, { method = "POST", body = undefined } = {}) {
  const answer = await request(address, { method, body, headers: { "X-CSRF-Token": token() } }, UNCERTAIN);
  if (!answer.ok) throw new Error(await reasonOf(answer));
  return answer.json();
}

async function change(button, address, done, options, go) {
  button.disabled = true;
  try {
    const answer = await request(address, { headers: { "X-CSRF-Token": token() }, ...options }, UNCERTAIN);
    if (answer.ok && go) return location.assign(go);
    say(answer.ok ? done : await reasonOf(answer));
  } catch (error) {
    say(error.message);
  } finally {
    button.disabled = false;
    refreshSoon();
  }
}

// Asks the user; returns whether the answer is yes, or with `input` the text of a field, empty for no.
export function ask(question, loss, word, { input = "", isHarmless = input !== "" } = {}) {
  const dialog = document.getElementById("ask");
  const field = document.getElementById("ask-input");
  field.parentElement.hidden = input === "";
  field.previousElementSibling.textContent = input;
  field.value = "";
  document.getElementById("ask-yes").classList.toggle("danger", !isHarmless);
  document.getElementById("ask-title").textContent = question;
  document.getElementById("ask-text").textContent = loss;
  document.getElementById("ask-yes").textContent = word;
  dialog.returnValue = "no";
  dialog.showModal();
  if (input) field.focus();
  return new Promise((resolve) =>
    dialog.addEventListener(
      "close",
      () => resolve(dialog.returnValue === "yes" && (input === "" || field.value.trim())),
      { once: true },
    ),
  );
}

async function logOut() {
  await fetch("/api/v1/auth/logout", { method: "POST", headers: { "X-CSRF-Token": token() } });
  location.assign("/signin");
}

async function signIn(form) {
  const { username, password } = Object.fromEntries(new FormData(form));
  const body = JSON.stringify({ username, password, isHashed: false });
  const wrong = form.querySelector(".wrong");
  try {
    const answer = await fetch("/api/v1/auth/login", { method: "POST", body });
    if (answer.ok) return location.assign(form.dataset.target);
    wrong.textContent = answer.status === 401 ? "The name or the password is wrong." : await reasonOf(answer);
  } catch {
    wrong.textContent = "The master does not answer.";
  }
  wrong.hidden = false;
}
