// A live log: first the last lines, then every new line. A search covers the whole log.

import { say } from "./actions.js";
import { onRefresh } from "./live.js";
import { keepSettings, setting } from "./settings.js";
import { folded, runs } from "./terminal.js";
import { momentText } from "./times.js";

const CHUNK = 1000;
const MOST_LINES = 20000;
// Lines of one element whose layout the browser skips while it is outside of the view.
const BLOCK = 250;
const AGAIN_MS = 1500;
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const AROUND = 200;
const ERRORS = ["LOG_LEVEL_ERROR", "LOG_LEVEL_CRITICAL"];
const COUNT_AFTER_MS = 300;

const view = document.getElementById("log");
const form = document.getElementById("log-controls");
const count = document.getElementById("log-count");
const earlier = form.querySelector("[data-earlier]");

// Incremented when the filter changes: responses to earlier requests are ignored.
let generation = 0;
let controller = new AbortController();
let isComplete = false;
// The ids of the first and last line in the view. Ids grow in the order in which the master stored the lines.
let firstId = null;
let lastId = null;
let shownCount = 0;
// The lines before the first in the view, as far as the master has said.
let earlierCount = 0;
// What the address or the user asks to see first: a line by its id, or the error of a run.
let wanted = { line: Number(setting("line")) || null, run: setting("error") };
// By stream and rank: the row whose line has not ended yet, such as a progress bar.
const open = new Map();
const rawOf = new WeakMap();

form.elements.search.value = setting("log-search");
form.elements.level.value = setting("log-level");
// A level that the address misspells.
if (form.elements.level.selectedIndex < 0) form.elements.level.value = "";
for (const name of ["after", "before"]) form.elements[name].value = setting(`log-${name}`);
form.elements.follow.checked = setting("log-follow") !== "no";
form.elements.wrap.checked = setting("log-wrap") !== "no";
wrap();
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => {
  const { search, level, rank, after, before, follow, wrap: wraps } = form.elements;
  keepSettings({
    "log-search": search.value,
    "log-level": level.value,
    "log-rank": rank.value,
    "log-after": after.value,
    "log-before": before.value,
    "log-follow": follow.checked ? "" : "no",
    "log-wrap": wraps.checked ? "" : "no",
  });
});
form.elements.search.addEventListener("input", debounced(start, 250));
for (const name of ["level", "rank", "after", "before"]) form.elements[name].addEventListener("change", start);
form.elements.follow.addEventListener("change", () => form.elements.follow.checked && toEnd());
form.elements.wrap.addEventListener("change", wrap);
earlier.addEventListener("click", showEarlier);
form.querySelector("[data-next-error]").addEventListener("click", nextError);
view.addEventListener("click", (event) => {
  const link = event.target.closest("a.at");
  if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  mark(link.closest(".line"));
});
view.addEventListener("scroll", () => {
  const isAtEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 40;
  // Scrolling up stops following.
  if (!isAtEnd && view.dataset.settled) form.elements.follow.checked = false;
});
// A hidden tab uses no connection.
document.addEventListener("visibilitychange", () => document.hidden && controller.abort());
onRefresh(() => {
  // An ended task may be running again.
  if (isComplete && document.querySelector("#heading .state:is(.running, .waiting)")) resume(generation);
});
offerRanks();
start();

// Offers the ranks whose lines the log has, if there are several.
async function offerRanks() {
  const { rank } = form.elements;
  const chosen = setting("log-rank");
  if (chosen !== "") rank.append(new Option(chosen, chosen, true, true));
  try {
    const answer = await fetch(`${view.dataset.log}/fields`);
    const [line] = (await answer.text()).split("\n");
    const { rankIds: found } = JSON.parse(line).result;
    for (const one of found.map(String).filter((text) => text !== chosen))
      rank.append(new Option(one === "-1" ? "none" : one, one));
    if (chosen === "-1") rank.selectedOptions[0].textContent = "none";
    rank.parentElement.hidden = found.length < 2 && chosen === "";
  } catch {
    // The other filters do without it.
    rank.parentElement.hidden = chosen === "";
  }
}

function start() {
  generation += 1;
  controller.abort();
  view.replaceChildren();
  open.clear();
  firstId = lastId = null;
  shownCount = earlierCount = 0;
  earlier.hidden = true;
  delete view.dataset.settled;
  resume(generation);
}

// Follows until the task ends. If the master is unavailable, the request is repeated and the shown lines stay.
async function resume(mine) {
  isComplete = false;
  while (mine === generation) {
    controller = new AbortController();
    try {
      if (lastId === null) await (wanted.line || wanted.run ? showWanted(mine) : showLast(mine));
      await stream({ follow: "true", afterId: lastId ?? 0 }, (lines) => mine === generation && append(lines));
      isComplete = mine === generation;
      if (isComplete) tell();
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
  append(lines.reverse());
  offerEarlier(lines.length === CHUNK);
}

// Shows the log around a line, or around the last error of a run.
async function showWanted(mine) {
  const id = wanted.line ?? (await lastErrorOf(wanted.run));
  if (mine !== generation) return;
  wanted = { line: null, run: "" };
  if (id === null) return showLast(mine);
  form.elements.follow.checked = false;
  const lines = await read({ limit: AROUND, orderBy: "ORDER_BY_DESC", beforeId: id + 1 });
  const after = await read({ limit: AROUND, afterId: id });
  if (mine !== generation) return;
  if (lines.length + after.length === 0) return showLast(mine);
  append([...lines.reverse(), ...after]);
  offerEarlier(lines.length === AROUND);
  const row = rowOf(id);
  if (row === null) return say("The line is not in this log any more.");
  mark(row);
  bring(row);
}

async function lastErrorOf(run) {
  const last = { allocationIds: run, limit: 1, orderBy: "ORDER_BY_DESC" };
  const [line] = await read({ ...last, levels: "LOG_LEVEL_ERROR", sources: "task" });
  const [found] = line ? [line] : await read({ ...last, stdtypes: "stderr" });
  return found ? Number(found.id) : null;
}

// The row of a line. One that continues a line has no row of its own.
function rowOf(id) {
  return view.querySelector(`[data-id="${id}"]`);
}

// Marks a line, and puts it into the address, so that a copied address opens the log there.
function mark(row) {
  view.querySelector(".target")?.classList.remove("target");
  row.classList.add("target");
  form.elements.follow.checked = false;
  keepSettings({ line: row.dataset.id, error: "", "log-follow": "no" });
}

// Goes to the first line of the next error: below the marked line, or from the beginning of the log.
async function nextError() {
  const rows = [...view.querySelectorAll(".line")];
  const isError = (row) => row.matches(".ERROR, .CRITICAL");
  let at = rows.findIndex((row) => row.matches(".target"));
  // The lines of one traceback are one error.
  while (at >= 0 && at < rows.length && isError(rows[at])) at += 1;
  let next = rows.slice(Math.max(at, 0)).find(isError);
  if (next === undefined) {
    const [line] = await read({ limit: 1, levels: ERRORS }).catch(() => []);
    if (line === undefined) return say("No error was found in this log.");
    if (at >= 0) say("That was the last error. This is the first one.");
    next = rowOf(line.id);
    if (next === null) {
      wanted = { line: Number(line.id), run: "" };
      return start();
    }
  }
  mark(next);
  bring(next);
}

function wrap() {
  view.classList.toggle("unwrapped", !form.elements.wrap.checked);
}

function offerEarlier(hasEarlier) {
  earlier.hidden = !hasEarlier;
  countEarlier();
}

// Asks how many lines there are before the first in the view.
const countEarlier = debounced(async () => {
  const [mine, before] = [generation, firstId];
  try {
    const answer =
      earlier.hidden || before === null ? null : await fetch(filtered(view.dataset.count, { beforeId: before }));
    const { count: found } = answer?.ok ? await answer.json() : { count: 0 };
    if (mine !== generation || before !== firstId) return;
    earlierCount = found;
    tell();
  } catch {
    // The next lines ask again.
  }
}, COUNT_AFTER_MS);

// Scrolls to a line. The blocks on the way get their real heights only when they come into view, and move it.
function bring(row, frames = 10) {
  row.scrollIntoView({ block: "center" });
  if (frames > 0) requestAnimationFrame(() => bring(row, frames - 1));
}

async function showEarlier() {
  const mine = generation;
  earlier.disabled = true;
  try {
    const lines = await read({ limit: CHUNK, orderBy: "ORDER_BY_DESC", beforeId: firstId });
    if (mine !== generation) return;
    const fromEnd = view.scrollHeight - view.scrollTop;
    prepend(lines.reverse());
    view.scrollTop = view.scrollHeight - fromEnd;
    offerEarlier(lines.length === CHUNK);
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

// Returns an address with the filter of the form and other parameters.
function filtered(source, params) {
  const address = new URL(source, location.href);
  if (form.elements.search.value) address.searchParams.set("searchText", form.elements.search.value);
  const least = LEVELS.indexOf(form.elements.level.value);
  const levels = least < 0 ? [] : LEVELS.slice(least).map((level) => `LOG_LEVEL_${level}`);
  const { rank, after, before } = form.elements;
  if (rank.value !== "") address.searchParams.set("rankIds", rank.value);
  // In the time zone of the browser.
  if (after.value) address.searchParams.set("timestampAfter", new Date(after.value).toISOString());
  if (before.value) address.searchParams.set("timestampBefore", new Date(before.value).toISOString());
  for (const [name, values] of Object.entries({ levels, ...params }))
    [values].flat().forEach((value) => address.searchParams.append(name, value));
  return address;
}

async function stream(params, take) {
  const answer = await fetch(filtered(view.dataset.log, params), { signal: controller.signal });
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

function append(lines) {
  // After a lost connection a line may come again.
  const fresh = lines.filter((line) => lastId === null || Number(line.id) > lastId);
  if (fresh.length > 0) {
    firstId ??= Number(fresh[0].id);
    lastId = Number(fresh.at(-1).id);
    fill(view, fresh);
  }
  if (form.elements.follow.checked) {
    // If the user has scrolled up, the lines in view stay.
    trim();
    toEnd();
  }
  tell();
  requestAnimationFrame(() => (view.dataset.settled = "yes"));
}

function prepend(lines) {
  if (lines.length === 0) return;
  firstId = Number(lines[0].id);
  const part = document.createDocumentFragment();
  // The lines that are still open are those at the end of the log.
  const kept = new Map(open);
  open.clear();
  fill(part, lines);
  open.clear();
  kept.forEach((row, key) => open.set(key, row));
  view.prepend(part);
  tell();
}

// Adds rows to the last block of `parent`, and new blocks.
function fill(parent, lines) {
  let block = parent.lastElementChild;
  for (const line of lines) {
    const key = `${line.stdtype} ${line.rankId} ${line.allocationId}`;
    const text = line.log ?? line.message ?? "";
    let row = open.get(key);
    if (row === undefined) {
      if (block === null || block.childElementCount >= BLOCK) {
        block = document.createElement("div");
        block.className = "block";
        parent.append(block);
      }
      row = newRow(line);
      block.append(row);
      shownCount += 1;
    }
    rawOf.set(row, (rawOf.get(row) ?? "") + text);
    row.lastElementChild.replaceChildren(...shown(folded(rawOf.get(row))));
    if (text.endsWith("\n") || line.source === "master") open.delete(key);
    else open.set(key, row);
  }
}

function trim() {
  while (shownCount - view.firstElementChild?.childElementCount >= MOST_LINES) {
    shownCount -= view.firstElementChild.childElementCount;
    view.firstElementChild.remove();
    firstId = Number(view.firstElementChild.firstElementChild.dataset.id);
    offerEarlier(true);
  }
}

function newRow(line) {
  const row = document.createElement("div");
  row.dir = "auto";
  row.dataset.id = line.id;
  const level = (line.level ?? "").replace("LOG_LEVEL_", "");
  row.className = LEVELS.includes(level) ? `line ${level}` : "line";
  const time = document.createElement("time");
  time.dateTime = line.timestamp;
  time.textContent = momentText(new Date(line.timestamp));
  const link = document.createElement("a");
  link.className = "at";
  link.href = `?line=${line.id}`;
  link.title = "Link to this line";
  // Tab does not stop at each of thousands of lines.
  link.tabIndex = -1;
  link.append(time);
  row.append(link);
  if (line.rankId !== undefined && line.rankId !== null) {
    const rank = document.createElement("b");
    rank.textContent = `rank ${line.rankId}`;
    row.append(rank);
  }
  row.append(document.createElement("span"));
  return row;
}

// Returns the nodes of a line: text with its colours, and marks where the search matches.
function shown(text) {
  const parts = runs(text);
  const wanted = form.elements.search.value.toLowerCase();
  const lower =
    wanted &&
    parts
      .map((part) => part.text)
      .join("")
      .toLowerCase();
  const found = [];
  for (let at = wanted ? lower.indexOf(wanted) : -1; at >= 0; at = lower.indexOf(wanted, at + wanted.length))
    found.push([at, at + wanted.length]);
  let from = 0;
  return parts.flatMap(({ text: piece, classes, color }) => {
    const nodes = marked(piece, from, found);
    from += piece.length;
    if (!classes.length && !color) return nodes;
    const span = document.createElement("span");
    span.className = classes.join(" ");
    if (color) span.style.color = color;
    span.append(...nodes);
    return [span];
  });
}

function marked(piece, start, found) {
  const nodes = [];
  let from = 0;
  for (const [begin, end] of found) {
    const [first, behind] = [Math.max(begin - start, from), Math.min(end - start, piece.length)];
    if (first >= behind) continue;
    const mark = document.createElement("mark");
    mark.textContent = piece.slice(first, behind);
    nodes.push(piece.slice(from, first), mark);
    from = behind;
  }
  return [...nodes, piece.slice(from)].filter((node) => node !== "");
}

// Says how many lines of the log, or of those that the filter selects, are in the view.
function tell() {
  const number = (value) => value.toLocaleString("en");
  const all = shownCount + earlierCount;
  const lines = all ? `${number(all)} line${all === 1 ? "" : "s"}` : "no lines";
  const text = earlierCount ? `${number(shownCount)} of ${lines}` : lines;
  count.textContent = isComplete ? `${text}, the log has ended` : text;
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
