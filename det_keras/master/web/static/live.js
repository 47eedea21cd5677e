// Keeps a page up to date: on each event of the master the page requests itself again and applies the differences.

const LEAST_MS = 1000;
// A page that takes long to render is requested less often, so that open pages do not slow training down.
const SHARE = 4;

let source = null;
let isDue = false;
let isBusy = false;
let earliest = 0;

export function listen() {
  if (!document.hidden) connect();
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

export function refreshSoon() {
  isDue = true;
  if (isBusy || document.hidden) return;
  isBusy = true;
  setTimeout(refresh, Math.max(0, earliest - performance.now()));
}

function connect() {
  source?.close();
  source = new EventSource("/live");
  source.addEventListener("hello", () => {
    const wasAway = !document.getElementById("connection").hidden;
    document.getElementById("connection").hidden = true;
    if (wasAway) refreshSoon();
  });
  source.addEventListener("news", refreshSoon);
  source.onerror = () => {
    document.getElementById("connection").hidden = false;
    // A refusal closes the stream permanently, although the master may only be restarting: connect again.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => document.hidden || connect(), LEAST_MS);
  };
}

async function refresh() {
  const began = performance.now();
  isDue = false;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected && new URL(answer.url).pathname === "/signin") {
      location.reload();
      return;
    }
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    // A button must not be replaced while the user presses it.
    if (document.querySelector("main :is(button, a, input, select):active")) isDue = true;
    else takeOver(fresh);
  } catch {
    // The stream of events shows that the master is unavailable, and when it is back.
  } finally {
    isBusy = false;
    earliest = performance.now() + Math.max(LEAST_MS, SHARE * (performance.now() - began));
    if (isDue) refreshSoon();
  }
}

// Inserts content of another address: the rows of a table that are not part of the page.
export async function fetchRows(table) {
  let text = "";
  try {
    const answer = await fetch(table.dataset.rest, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) return;
    text = await answer.text();
  } catch {
    // It is requested again later.
    return;
  }
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById(table.id);
  const rows = fresh === null ? [] : [...fresh.tBodies[0].rows];
  const known = new Map([...table.tBodies[0].rows].map((row) => [row.dataset.key, row]));
  const keys = new Set(rows.map((row) => row.dataset.key));
  for (const row of known.values()) if (late.has(row) && !keys.has(row.dataset.key)) row.remove();
  for (const row of rows) {
    const before = known.get(row.dataset.key);
    if (before === undefined) {
      late.add(row);
      table.tBodies[0].append(row);
    } else if (!before.isEqualNode(row)) merge(before, row);
  }
  document.dispatchEvent(new CustomEvent("refreshed"));
}

function takeOver(fresh) {
  // After another login in this browser the token is different.
  const token = "meta[name=csrf-token]";
  document.querySelector(token).content = fresh.querySelector(token).content;
  document.title = fresh.title;
  document.querySelectorAll("select[data-options]").forEach((select) => takeOptions(select, fresh));
  if (shape(document) !== shape(fresh)) merge(document.getElementById("main"), fresh.getElementById("main"));
  else for (const old of document.querySelectorAll("[data-live]")) takeOverPart(old, fresh.getElementById(old.id));
  document.dispatchEvent(new CustomEvent("refreshed"));
}

function takeOverPart(old, now) {
  if (old.innerHTML !== now.innerHTML) merge(old, now);
}

// The parts and plots of a page. They change, for example, with a trial's first metric.
function shape(page) {
  return [...page.querySelectorAll("[data-live], [data-figure]")].map((part) => part.dataset.figure ?? part.id).join();
}

// Adds new options and keeps the user's choice.
function takeOptions(select, fresh) {
  const now = fresh.getElementById(select.form.id)?.elements[select.name];
  if (!now || now.innerHTML === select.innerHTML) return;
  const { value, selectedIndex } = select;
  select.replaceChildren(...now.options);
  if (selectedIndex > 0) select.value = value;
  else select.selectedIndex = 0;
}

// Changes only what differs, so that focus, marks, scroll positions and selections stay.
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
  const before = [...old.childNodes];
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
  return element.tagName === "FORM" || "figure" in element.dataset;
}

// Attributes set by the user or by the page's scripts, not by the master.
const KEPT = new Set(["hidden", "aria-sort", "open", "checked", "disabled"]);

// Rows that were loaded after the page; a refresh does not contain them.
const late = new WeakSet();

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
  // A row that is missing was deleted, or is now among the older rows, which are requested later.
  const hasRest = old.parentElement.dataset.rest !== undefined;
  for (const row of [...old.rows]) {
    if (seen.has(row)) late.delete(row);
    else if (hasRest) late.add(row);
    else row.remove();
  }
  // New rows are inserted in the master's order; a table that the user has sorted is sorted again afterwards.
  let next = [...old.rows].find((row) => late.has(row)) ?? null;
  for (const row of places.reverse()) {
    if (!seen.has(row)) old.insertBefore(row, next);
    next = row;
  }
}
