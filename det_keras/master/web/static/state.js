// The state of what a page shows, in the tab's icon, and as a notification when a watched run ends.

import { say } from "./actions.js";
import { onHead, refreshHead } from "./live.js";

const MARKS = {
  running: ["#2489cf", "M5 3.2v9.6L13 8z"],
  completed: ["#1d8a3f", "M2.5 8.5 6.5 12.5 13.5 4.5 12 3 6.5 9.5 4 7z"],
  error: ["#d0342c", "M3 4.4 4.4 3 8 6.6 11.6 3 13 4.4 9.4 8 13 11.6 11.6 13 8 9.4 4.4 13 3 11.6 6.6 8z"],
  paused: ["#b07a00", "M4 3h3v10H4zM9 3h3v10H9z"],
  stopping: ["#b07a00", "M4 4h8v8H4z"],
  canceled: ["#77808f", "M3 7h10v2.4H3z"],
  waiting: ["#77808f", "M2 7h3v3H2zM6.5 7h3v3h-3zM11 7h3v3h-3z"],
};
const BACKGROUND_MS = 20000;
const OVER = new Set(["completed", "error", "canceled"]);

const meta = () => document.querySelector("meta[name=state]");
const key = () => `watched ${location.pathname.split("/").slice(0, 3).join("/")}`;
let last = null;

export function armState() {
  show();
  onHead(show);
  // A tab in the background has no stream of events, but its icon, its title and notifications are seen.
  setInterval(() => document.hidden && meta()?.content && !OVER.has(meta().content) && refreshHead(), BACKGROUND_MS);
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-notify]");
    if (button === null) return;
    if (localStorage.getItem(key()) !== null) localStorage.removeItem(key());
    else if (!("Notification" in window) || (await Notification.requestPermission()) !== "granted")
      say("The browser does not allow notifications for this page.");
    else localStorage.setItem(key(), "yes");
    show();
  });
}

function show() {
  const button = document.querySelector("[data-notify]");
  const isWatched = localStorage.getItem(key()) !== null;
  button?.setAttribute("aria-pressed", String(isWatched));
  const state = meta()?.content;
  if (!state || !(state in MARKS)) return;
  if (state !== last) {
    const [color, path] = MARKS[state];
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="${color}" d="${path}"/></svg>`;
    document.querySelector("link[rel=icon]").href = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  }
  if (last !== null && !OVER.has(last) && OVER.has(state) && isWatched) {
    localStorage.removeItem(key());
    new Notification(document.title, {
      body: { completed: "It has completed.", error: "It has failed.", canceled: "It was canceled." }[state],
      tag: key(),
    });
    show();
  }
  last = state;
}
