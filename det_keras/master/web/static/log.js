// A live log: first the last lines, then every new line. A search covers the whole log.

import { say } from "./actions.js";
import { onRefresh } from "./live.js";

const CHUNK = 1000;
const MOST_LINES = 20000;
const AGAIN_MS = 1500;
// Lines of several ranks may be slightly out of order, and many have the same time: some are requested twice.
const OVERLAP_MS = 2000;
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];

const view = document.getElementById("log");
const form = document.getElementById("log-controls");
const count = document.getElementById("log-count");
const earlier = form.querySelector("[data-earlier]");

// Incremented when the filter changes: responses to earlier requests are ignored.
let generation = 0;
let controller = new AbortController();
let isComplete = false;
// The ids of the lines in the view.
const seen = new Set();
const lineOf = new WeakMap();

form.addEventListener("submit", (event) => event.preventDefault());
form.elements.search.addEventListener("input", debounced(start, 250));
form.elements.level.addEventListener("change", start);
form.elements.follow.addEventListener("change", () => form.elements.follow.checked && toEnd());
earlier.addEventListener("click", showEarlier);
view.addEventListener("scroll", () => {
  const isAtEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 40;
  // Scrolling up stops following.
  if (!isAtEnd && view.dataset.settled) form.elements.follow.checked = false;
});
// A hidden tab uses no connection.
document.addEventListener("visibilitychange", () => document.hidden && controller.abort());
onRefresh(() => {
  // An ended task may be running again.
  if (isComplete && document.querySelector("#heading .state:is(.running, .waiting)")) goOn(generation);
});
start();

function start() {
  generation += 1;
  controller.abort();
  view.replaceChildren();
  seen.clear();
  delete view.dataset.settled;
  goOn(generation);
}

// Follows until the task ends. If the master is unavailable, the request is repeated and the shown lines stay.
async function goOn(mine) {
  isComplete = false;
  while (mine === generation) {
    controller = new AbortController();
    try {
      if (view.childElementCount === 0) await showLast(mine);
      await follow(mine);
      isComplete = mine === generation;
      if (isComplete) tell("the log is complete");
      return;
    } catch {
      await new Promise((resolve) => {
        if (document.hidden) document.addEventListener("visibilitychange", resolve, { once: true });
        else setTimeout(resolve, AGAIN_MS);
      });
    }
  }
}

async function showLast(mine) {
  const lines = await read({ limit: CHUNK, orderBy: "ORDER_BY_DESC" });
  if (mine !== generation) return;
  add(lines.reverse());
  earlier.hidden = lines.length < CHUNK;
}

async function follow(mine) {
  const last = lineOf.get(view.lastElementChild)?.timestamp;
  const params = { follow: "true" };
  if (last) params.timestampAfter = shifted(last, -OVERLAP_MS);
  await stream(params, (lines) => mine === generation && add(lines));
}

async function showEarlier() {
  const mine = generation;
  earlier.disabled = true;
  try {
    const first = lineOf.get(view.firstElementChild).timestamp;
    const params = { limit: CHUNK, orderBy: "ORDER_BY_DESC", timestampBefore: shifted(first, OVERLAP_MS) };
    let lines = await read(params);
    // The same two seconds have more lines than a chunk, and all of them are shown.
    while (lines.length === params.limit && lines.every((line) => seen.has(line.id))) {
      params.limit *= 4;
      lines = await read(params);
    }
    if (mine !== generation) return;
    const height = view.scrollHeight;
    add(lines.reverse(), { atTop: true });
    view.scrollTop += view.scrollHeight - height;
    earlier.hidden = lines.length < params.limit;
  } catch {
    if (mine === generation && !document.hidden) say("The master does not answer.");
  } finally {
    earlier.disabled = false;
  }
}

async function read(params) {
  const all = [];
  await stream(params, (lines) => all.push(...lines));
  return all;
}

async function stream(params, take) {
  const address = new URL(view.dataset.log, location.href);
  for (const [name, value] of Object.entries(params)) address.searchParams.set(name, value);
  if (form.elements.search.value) address.searchParams.set("searchText", form.elements.search.value);
  const least = LEVELS.indexOf(form.elements.level.value);
  if (least >= 0) LEVELS.slice(least).forEach((level) => address.searchParams.append("levels", `LOG_LEVEL_${level}`));
  const answer = await fetch(address, { signal: controller.signal });
  if (!answer.ok) throw new Error(answer.statusText);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const texts = (rest + value).split("\n");
    rest = texts.pop();
    const parsed = texts.filter(Boolean).map((text) => JSON.parse(text));
    if (parsed.some((line) => line.error)) throw new Error("the master is stopping");
    take(parsed.map((line) => line.result));
  }
}

function add(lines, { atTop = false } = {}) {
  const fresh = lines.filter((line) => !seen.has(line.id));
  const part = document.createDocumentFragment();
  for (const line of fresh) {
    const row = shown(line);
    seen.add(line.id);
    lineOf.set(row, line);
    part.append(row);
  }
  if (atTop) view.prepend(part);
  else view.append(part);
  if (!atTop && form.elements.follow.checked) {
    // If the user has scrolled up, the lines in view stay.
    trim();
    toEnd();
  }
  tell();
  requestAnimationFrame(() => (view.dataset.settled = "yes"));
}

function trim() {
  while (view.childElementCount > MOST_LINES) {
    seen.delete(lineOf.get(view.firstElementChild).id);
    view.firstElementChild.remove();
    earlier.hidden = false;
  }
}

function shown(line) {
  const row = document.createElement("div");
  row.dir = "auto";
  const level = (line.level ?? "").replace("LOG_LEVEL_", "");
  if (LEVELS.includes(level)) row.className = level;
  const time = document.createElement("time");
  time.dateTime = line.timestamp;
  time.textContent = new Date(line.timestamp).toLocaleTimeString([], { hour12: false });
  time.title = line.timestamp;
  row.append(time);
  if (line.rankId !== undefined && line.rankId !== null) {
    const rank = document.createElement("b");
    rank.textContent = `rank ${line.rankId}`;
    row.append(rank);
  }
  row.append(...marked((line.log ?? line.message ?? "").replace(/\n$/, "")));
  return row;
}

function marked(text) {
  const wanted = form.elements.search.value.toLowerCase();
  if (!wanted) return [text];
  const parts = [];
  const lower = text.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    const mark = document.createElement("mark");
    mark.textContent = text.slice(at, at + wanted.length);
    parts.push(text.slice(from, at), mark);
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

function tell(more = "") {
  const lines = view.childElementCount;
  count.textContent = [lines ? `${lines} line${lines === 1 ? "" : "s"}` : "no lines", more].filter(Boolean).join(", ");
}

function shifted(time, ms) {
  return new Date(Date.parse(time) + ms).toISOString();
}

function toEnd() {
  view.scrollTop = view.scrollHeight;
}

function debounced(action, wait) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, wait);
  };
}
