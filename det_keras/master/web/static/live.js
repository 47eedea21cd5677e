// Keeps a page up to date: on each event of the master the page requests itself again and applies the differences.

import { textOf } from "./parts.js";
import { localize } from "./times.js";

// News that follow each other are shown together, fifteen times a minute.
const LEAST_MS = 4000;
const RECONNECT_MS = 1000;
// Some alerts depend on the time alone.
const ALERTS_MS = 60000;
// A page that takes long to render is requested less often, so that open pages do not slow training down.
const SHARE = 4;

let source = null;
let isDue = false;
let isBusy = false;
let timer = null;
// When news may be shown next.
let earliest = 0;

export function listen() {
  if (!document.hidden) connect();
  setInterval(() => document.querySelector("#heading .state.running") && refreshSoon(), ALERTS_MS);
  if (document.body.dataset.every) setInterval(refreshSoon, 1000 * Number(document.body.dataset.every));
  // A browser has six connections to a master: hidden tabs must not use them.
  document.addEventListener("visibilitychange", () => {
    source?.close();
    if (document.hidden) return;
    connect();
    refreshSoon();
  });
}

// Calls `action` after each refresh of the page.
export function onRefresh(action) {
  document.addEventListener("refreshed", action);
}

// Calls `action` when the title and the state of the page have been read again.
export function onHead(action) {
  document.addEventListener("head", action);
}

// Reads only the title and the state of the page again: what is visible of a tab in the background.
export async function refreshHead() {
  try {
    takeOverHead(await load());
  } catch {
    // The next call tries again.
  }
}

// Refreshes the page after a change that its user has made.
export function refreshSoon() {
  schedule(0);
}

// Calls `action` when the page is about to be refreshed: what is requested now is requested together with it.
export function onTick(action) {
  document.addEventListener("tick", action);
}

function schedule(at) {
  isDue = true;
  if (isBusy || document.hidden) return;
  clearTimeout(timer);
  timer = setTimeout(refresh, Math.max(0, at - performance.now()));
}

function connect() {
  source?.close();
  const { of, position } = document.body.dataset;
  const query = new URLSearchParams(
    of
      .split(" ")
      .filter(Boolean)
      .map((name) => ["of", name]),
  );
  // Changes between the rendering of this page and the connection are news, too.
  if (position) query.set("since", position);
  source = new EventSource(`/live?${query}`);
  source.addEventListener("hello", () => {
    const wasAway = !document.getElementById("connection").hidden;
    document.getElementById("connection").hidden = true;
    if (wasAway) refreshSoon();
  });
  // While a refresh is due it comes when it is due, however many news there are.
  source.addEventListener("news", () => isDue || schedule(earliest));
  source.onerror = () => {
    document.getElementById("connection").hidden = false;
    // A refusal closes the stream permanently, although the master may only be restarting: connect again.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => document.hidden || connect(), RECONNECT_MS);
  };
}

async function refresh() {
  const began = performance.now();
  isDue = false;
  isBusy = true;
  document.dispatchEvent(new CustomEvent("tick"));
  try {
    const fresh = await load();
    localize(fresh);
    // A button must not be replaced while the user presses it.
    if (document.querySelector("main :is(button, a, input, select):active")) isDue = true;
    else takeOver(fresh);
  } catch {
    // The stream of events shows that the master is unavailable, and when it is back.
  } finally {
    isBusy = false;
    earliest = performance.now() + Math.max(LEAST_MS, SHARE * (performance.now() - began));
    if (isDue) schedule(earliest);
  }
}

// Returns the page as the master shows it now.
async function load() {
  return new DOMParser().parseFromString(
    await textOf(`${location.pathname}${location.search}`, { live: true }),
    "text/html",
  );
}

function takeOverHead(fresh) {
  // After another login in this browser the token is different.
  const token = "meta[name=csrf-token]";
  document.querySelector(token).content = fresh.querySelector(token).content;
  document.title = fresh.title;
  document.body.dataset.position = fresh.body.dataset.position;
  const state = "meta[name=state]";
  document.querySelector(state).content = fresh.querySelector(state).content;
  document.dispatchEvent(new CustomEvent("head"));
}

function takeOver(fresh) {
  if (shape(document) !== shape(fresh)) merge(document.getElementById("main"), fresh.getElementById("main"));
  else for (const old of document.querySelectorAll("[data-live]")) takeOverPart(old, fresh.getElementById(old.id));
  // After the parts: the button of notifications is one of them, and the master does not know whether it is pressed.
  takeOverHead(fresh);
  document.dispatchEvent(new CustomEvent("refreshed"));
}

function takeOverPart(old, now) {
  if (old.innerHTML !== now.innerHTML) merge(old, now);
}

// The parts and plots of a page. They change, for example, with a first failure.
function shape(page) {
  return [...page.querySelectorAll("[data-live], [data-figure], [data-wall]")]
    .map((part) => part.dataset.figure ?? part.dataset.wall ?? part.id)
    .join();
}

// Changes only what differs, so that focus, marks, scroll positions and selections stay. Elements with `data-inserted`
// are a script's own: the master does not know them.
function merge(old, now) {
  if (isReaders(old)) return;
  for (const { name } of [...old.attributes]) {
    if (!now.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of now.attributes) {
    if (!KEPT.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.tagName === "TBODY") return mergeRows(old, now);
  // A sortable column's title is inside of a button.
  if (old.dataset.sort && old.textContent === now.textContent) return;
  const before = [...old.childNodes].filter((node) => !node.dataset?.inserted);
  const after = [...now.childNodes];
  after.forEach((node, index) => {
    const known = before[index];
    if (known === undefined) old.append(node);
    else if (!isSame(known, node)) known.replaceWith(node);
    else if (node.nodeType === Node.ELEMENT_NODE) known.isEqualNode(node) || merge(known, node);
    else if (known.nodeValue !== node.nodeValue) known.nodeValue = node.nodeValue;
  });
  before.slice(after.length).forEach((node) => node.remove());
}

function isSame(old, now) {
  return old.nodeName === now.nodeName && old.id === now.id && old.dataset?.figure === now.dataset?.figure;
}

// The user's input in forms and the drawn plots are not changed by a refresh.
function isReaders(element) {
  return (
    element.tagName === "FORM" || "figure" in element.dataset || "wall" in element.dataset || "keep" in element.dataset
  );
}

// Attributes set by the user or by the page's scripts, not by the master.
const KEPT = new Set(["hidden", "aria-sort", "open", "checked", "disabled"]);

// Rows are identified by their keys, independent of the user's sorting.
function mergeRows(old, now) {
  const known = new Map([...old.rows].map((row) => [row.dataset.key, row]));
  const seen = new Set();
  const places = [...now.rows].map((row) => {
    const key = row.dataset.key;
    const before = key === undefined ? undefined : known.get(key);
    if (before === undefined) return row;
    seen.add(before);
    if (!before.isEqualNode(row)) merge(before, row);
    return before;
  });
  for (const row of [...old.rows]) if (!seen.has(row)) row.remove();
  // New rows are inserted in the master's order; a table that the user has sorted is sorted again afterwards.
  let next = null;
  for (const row of places.reverse()) {
    if (!seen.has(row)) old.insertBefore(row, next);
    next = row;
  }
}
