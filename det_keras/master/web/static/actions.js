// Buttons that make changes: they send the page's token, and ask for confirmation if work would be lost.

import { refreshSoon } from "./live.js";

const token = () => document.querySelector("meta[name=csrf-token]").content;

export function arm() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-post], [data-logout]");
    if (button === null) return;
    if (button.hasAttribute("data-logout")) return logOut();
    const { post: address, done, question, loss } = button.dataset;
    if (question && !(await ask(question, loss, button.textContent))) return;
    await change(button, address, done);
  });
  const form = document.getElementById("signin");
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    signIn(form);
  });
}

export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (place.textContent = ""), 6000);
}

async function change(button, address, done) {
  button.disabled = true;
  try {
    const answer = await fetch(address, { method: "POST", headers: { "X-CSRF-Token": token() } });
    say(answer.ok ? done : await reason(answer));
  } catch {
    say("The master does not answer. The change may not have been made.");
  } finally {
    button.disabled = false;
    refreshSoon();
  }
}

async function reason(answer) {
  try {
    return (await answer.json()).error.error;
  } catch {
    return `The master refused: ${answer.status} ${answer.statusText}.`;
  }
}

function ask(question, loss, word) {
  const dialog = document.getElementById("ask");
  document.getElementById("ask-title").textContent = question;
  document.getElementById("ask-text").textContent = loss;
  document.getElementById("ask-yes").textContent = word;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }),
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
    wrong.textContent = answer.status === 401 ? "The name or the password is wrong." : await reason(answer);
  } catch {
    wrong.textContent = "The master does not answer.";
  }
  wrong.hidden = false;
}
