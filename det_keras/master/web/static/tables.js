// Tables that are sorted by a click on a column.

import { onRefresh } from "./live.js";

const sorted = new Map();

export function armTables() {
  const prepare = () => document.querySelectorAll("table.sortable").forEach(armHeads);
  prepare();
  onRefresh(() => {
    prepare();
    document.querySelectorAll("table.sortable").forEach((table) => sorted.has(table.id) && sort(table));
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
