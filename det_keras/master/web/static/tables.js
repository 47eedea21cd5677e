// Tables that are sorted by a click on a column.

import { onRefresh } from "./live.js";
import { keepSettings, setting } from "./settings.js";

// By the id of the table: the column, by its title, and the direction.
const sorted = new Map();

export function armTables() {
  const prepare = () => {
    for (const table of document.querySelectorAll("table.sortable")) {
      const wanted = setting(`sort-${table.id}`);
      if (wanted && !sorted.has(table.id))
        sorted.set(table.id, { name: wanted.replace(/^-/, ""), isDescending: wanted.startsWith("-") });
      armHeads(table);
      if (sorted.has(table.id)) sort(table);
    }
  };
  prepare();
  onRefresh(prepare);
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
      const isDescending = before?.name === name && !before.isDescending;
      sorted.set(table.id, { name, isDescending });
      keepSettings({ [`sort-${table.id}`]: `${isDescending ? "-" : ""}${name}` });
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
  const areNumbers =
    table.tHead.rows[0].cells[column].dataset.sort !== "text" && rows.every(({ text }) => isNumber(text));
  const sign = isDescending ? -1 : 1;
  rows.sort((a, b) => {
    // Rows without a value are last in both directions.
    if (isNothing(a.text) || isNothing(b.text)) return Number(isNothing(a.text)) - Number(isNothing(b.text));
    return (
      sign * (areNumbers ? Number(a.text) - Number(b.text) : a.text.localeCompare(b.text, undefined, { numeric: true }))
    );
  });
  const isInOrder = rows.every(({ row }, index) => row.rowIndex === rows[0].row.parentNode.rows[index].rowIndex);
  if (!isInOrder) table.tBodies[0].append(...rows.map(({ row }) => row));
}

const isNothing = (text) => text === "" || text === "None" || text === "-";
const isNumber = (text) => isNothing(text) || (text.trim() !== "" && !Number.isNaN(Number(text)));
