// Tables that are sorted by a click on a column, lists that are filtered while typing, and rows to compare.

import { fetchRows, onRefresh } from "./live.js";

// Older rows change seldom.
const REST_MS = 20000;

const sorted = new Map();

export function armTables() {
  const prepare = () => {
    document.querySelectorAll("table.sortable").forEach(armHeads);
    document.querySelectorAll("[data-filter]").forEach(filter);
    updateChoice();
  };
  prepare();
  document.querySelectorAll("table[data-rest]").forEach(fetchRows);
  setInterval(() => document.hidden || document.querySelectorAll("table[data-rest]").forEach(fetchRows), REST_MS);
  onRefresh(() => {
    prepare();
    document.querySelectorAll("table.sortable").forEach((table) => sorted.has(table.id) && sort(table));
  });
  document.addEventListener("input", (event) => {
    const form = event.target.closest("[data-filter]");
    if (form) filter(form);
  });
  document.addEventListener("change", updateChoice);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("[data-search]")) event.preventDefault();
  });
}

function armHeads(table) {
  for (const head of table.querySelectorAll("th[data-sort]")) {
    if (head.querySelector("button")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => {
      // By its title: columns are added when trials begin to differ.
      const name = head.textContent;
      const before = sorted.get(table.id);
      sorted.set(table.id, { name, isDescending: before?.name === name && !before.isDescending });
      sort(table);
    });
    head.append(button);
  }
}

function sort(table) {
  const { name, isDescending } = sorted.get(table.id);
  const column = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent === name);
  if (column < 0) {
    sorted.delete(table.id);
    return;
  }
  for (const head of table.tHead.rows[0].cells) {
    if (head.cellIndex === column) head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  const value = (row) => row.cells[column]?.dataset.value ?? row.cells[column]?.textContent.trim() ?? "";
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, text: value(row) }));
  const areNumbers = table.tHead.rows[0].cells[column].dataset.sort !== "text" && rows.every(({ text }) => isNumber(text));
  const sign = isDescending ? -1 : 1;
  rows.sort((a, b) => {
    // Rows without a value are last in both directions.
    if (isNothing(a.text) || isNothing(b.text)) return isNothing(a.text) - isNothing(b.text);
    return sign * (areNumbers ? Number(a.text) - Number(b.text) : a.text.localeCompare(b.text, undefined, { numeric: true }));
  });
  const isInOrder = rows.every(({ row }, index) => row.rowIndex === rows[0].row.parentNode.rows[index].rowIndex);
  if (!isInOrder) table.tBodies[0].append(...rows.map(({ row }) => row));
}

const isNothing = (text) => text === "" || text === "None" || text === "-";
const isNumber = (text) => isNothing(text) || (text.trim() !== "" && !Number.isNaN(Number(text)));

function filter(form) {
  const table = document.getElementById(form.dataset.filter);
  form.hidden = table === null;
  if (table === null) return;
  offerStates(form.querySelector("[data-state]"), table);
  const wanted = form.querySelector("[data-search]").value.trim().toLowerCase();
  const state = form.querySelector("[data-state]").value;
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const text = `${row.dataset.key} ${row.querySelector(".title").textContent}`.toLowerCase();
    row.hidden = !(text.includes(wanted) && (state === "" || row.dataset.state === state));
    shown += !row.hidden;
  }
  const total = table.tBodies[0].rows.length;
  form.querySelector("[data-count]").textContent = shown === total ? `${total} in all` : `${shown} of ${total}`;
  const none = document.querySelector("[data-none]");
  if (none) none.hidden = shown > 0;
}

function offerStates(select, table) {
  const names = [...new Set([...table.tBodies[0].rows].map((row) => row.dataset.state))].sort();
  const known = [...select.options].slice(1).map((option) => option.value);
  if (names.join() === known.join()) return;
  const chosen = select.value;
  select.length = 1;
  for (const name of new Set([...names, ...(chosen ? [chosen] : [])])) {
    select.add(new Option(name.toLowerCase().replaceAll("_", " "), name));
  }
  select.value = chosen;
}

function updateChoice() {
  const chosen = document.querySelectorAll("input[form=compare]:checked").length;
  const button = document.querySelector("[data-compare]");
  if (button === null) return;
  button.disabled = chosen < 2;
  button.textContent = chosen < 2 ? "Compare" : `Compare ${chosen}`;
  button.title = chosen < 2 ? "Choose two or more" : "";
}
