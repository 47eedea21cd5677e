// The table of all trials. The master filters, sorts, groups and pages; the address holds what is shown.

import { entrySearch } from "./chooser.js";
import { runColor } from "./colors.js";
import { element, stateMark } from "./elements.js";
import { durationText, metricText, numberText } from "./formats.js";
import { onRefresh } from "./live.js";
import { keepSettings, setting } from "./settings.js";
import { momentText } from "./times.js";

const ROWS = 100;
const MOST_DRAWN = 50;
const TYPING_MS = 250;
const LEAST_MS = 1000;
const NUMBERS = new Set(["id", "experiment", "metric", "number", "duration", "hparam"]);
const STATES = new Set(["running", "paused", "completed", "error", "canceled"]);

class TrialTable {
  constructor(root) {
    this.root = root;
    this.form = root.querySelector("form");
    this.table = root.querySelector("table");
    this.chooser = root.querySelector("[data-columns]");
    this.refused = root.querySelector("[data-refused]");
    this.count = root.querySelector("[data-count]");
    this.drawn = root.querySelector("#drawn");
    this.draw = root.querySelector("[data-draw]");
    this.compare = root.querySelector("[data-compare]");
    this.clear = root.querySelector("[data-none-chosen]");
    const { q, group } = this.form.elements;
    Object.assign(this, { q, group, page: Math.max(1, Number(setting("page", "1")) || 1), sort: setting("sort"), earliest: 0 });
    this.columns = setting("columns").split(",").filter(Boolean);
    this.pinned = new Set(setting("pin").split(",").filter(Boolean));
    this.chosen = new Set(setting("chosen").split(",").filter(Boolean).map(Number));
    q.value = setting("q");
    this.groupBy = setting("group");
    this.isDrawn = setting("draw") === "true";
    this.form.addEventListener("submit", (event) => event.preventDefault());
    q.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.changed({ page: 1 }), TYPING_MS);
    });
    group.addEventListener("change", () => this.changed({ groupBy: group.value, page: 1 }));
    this.table.addEventListener("click", (event) => this.clicked(event));
    this.draw.addEventListener("click", () => this.changedChoice({ isDrawn: !this.isDrawn }));
    this.clear.addEventListener("click", () => this.changedChoice({ chosen: new Set() }));
    root.querySelector(".pages").addEventListener("click", ({ target }) => {
      if (target.dataset.page) this.changed({ page: this.page + Number(target.dataset.page) });
    });
    onRefresh(() => this.later());
    this.load();
    this.tellChoice();
  }

  // Takes over settings, stores them in the address, and asks for the rows.
  changed(settings) {
    Object.assign(this, settings);
    this.keep();
    this.load();
  }

  keep() {
    const list = (values) => [...values].join(",");
    keepSettings(
      { q: this.q.value.trim(), sort: this.sort, columns: list(this.columns), group: this.groupBy, page: this.page, pin: list(this.pinned), chosen: list(this.chosen), draw: this.isDrawn ? "true" : "" },
      { page: 1 },
    );
  }

  question() {
    const all = { q: this.q.value.trim(), sort: this.sort, columns: this.columns.join(","), group: this.groupBy };
    return new URLSearchParams(Object.entries(all).filter(([, value]) => value !== ""));
  }

  later() {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      if (!document.hidden) this.load();
    }, Math.max(0, this.earliest - performance.now()));
  }

  async load() {
    const began = performance.now();
    const question = this.question();
    this.root.querySelector("[data-csv]").href = `/trials.csv?${question}`;
    question.set("offset", (this.page - 1) * ROWS);
    question.set("limit", ROWS);
    const number = (this.asked = (this.asked ?? 0) + 1);
    try {
      const answer = await fetch(`/api/v1/trials?${question}`);
      const text = await answer.text();
      const content = JSON.parse(text);
      // A later question may have been answered before.
      if (number !== this.asked) return;
      this.refused.hidden = answer.ok;
      if (answer.ok) this.take(content, text);
      else this.refused.textContent = content.error.error;
    } catch {
      // The stream of events shows that the master is unavailable, and refreshes the page when it is back.
    } finally {
      this.earliest = performance.now() + Math.max(LEAST_MS, 5 * (performance.now() - began));
    }
  }

  take(answer, sent) {
    this.answer = answer;
    this.root.dataset.found = answer.found;
    const pages = Math.max(1, Math.ceil(answer.found / ROWS));
    if (this.page > pages) return this.changed({ page: pages });
    this.offerGroups(answer.names);
    this.offerColumns(answer);
    this.redraw(answer, JSON.stringify([sent, this.sort, [...this.pinned]]));
    const first = (this.page - 1) * ROWS;
    const what = this.groupBy ? "groups" : "trials";
    const text = (value) => value.toLocaleString("en");
    const range = `${text(first + 1)} to ${text(first + answer.rows.length)} of ${text(answer.found)} ${what}`;
    const among = this.groupBy || answer.found !== answer.total ? `, among ${text(answer.total)} trials` : "";
    this.count.textContent = answer.found === 0 ? (answer.total ? `No trial matches, of ${text(answer.total)}.` : "No trial yet.") : range + among;
    for (const button of this.root.querySelectorAll("[data-page]")) button.disabled = Number(button.dataset.page) < 0 ? this.page <= 1 : this.page >= pages;
    return undefined;
  }

  // Draws the rows, unless they are drawn already; the focus stays on its row.
  redraw(answer, text) {
    if (text === this.drawnText) return;
    this.drawnText = text;
    const focused = this.table.contains(document.activeElement) ? document.activeElement.closest("tr") : null;
    const wasBox = document.activeElement?.matches("input");
    this.head(answer.columns);
    const rows = answer.rows.map((cells, index) => this.row(cells, answer.columns, answer.trialIds[index]));
    this.table.tBodies[0].replaceChildren(...rows);
    this.pin(answer.columns);
    const again = focused === null ? undefined : rows.find((row) => row.dataset.key !== undefined && row.dataset.key === focused.dataset.key);
    if (again === undefined) return;
    again.tabIndex = -1;
    (wasBox ? again.querySelector("input") : again).focus();
  }

  offerGroups(names) {
    const keys = ["", ...names.filter(({ kind }) => ["text", "state", "labels", "hparam", "experiment"].includes(kind)).map(({ key }) => key)];
    if (this.groupBy && !keys.includes(this.groupBy)) keys.push(this.groupBy);
    if (keys.join("\n") !== [...this.group.options].map((option) => option.value).join("\n")) this.group.replaceChildren(...keys.map((key) => new Option(key || "nothing", key)));
    this.group.value = this.groupBy;
  }

  head(columns) {
    const cells = columns.map((column) => {
      const button = element("button", { type: "button", textContent: column.title, dir: "auto" });
      button.dataset.sortBy = column.key;
      const cell = element("th", { scope: "col", className: classOf(column) }, [button]);
      cell.dataset.key = column.key;
      if (this.sort.replace(/^-/, "") === column.key) cell.setAttribute("aria-sort", this.sort.startsWith("-") ? "descending" : "ascending");
      return cell;
    });
    const all = element("input", { type: "checkbox" });
    all.setAttribute("aria-label", "Choose all rows of this page");
    all.dataset.chooseAll = "";
    const choice = this.groupBy ? [] : [element("th", { scope: "col", className: "choice" }, [all])];
    this.table.tHead.replaceChildren(element("tr", {}, [...choice, ...cells]));
  }

  row(cells, columns, id) {
    const shown = cells.map((value, index) => element("td", { className: classOf(columns[index]) }, content(columns[index], value)));
    if (id === undefined) return element("tr", {}, shown);
    const box = element("input", { type: "checkbox", value: id, checked: this.chosen.has(id) });
    box.setAttribute("aria-label", `Choose trial ${id}`);
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = this.chosen.has(id) && this.isDrawn ? runColor(id) : "transparent";
    const row = element("tr", {}, [element("td", { className: "choice" }, [box, swatch]), ...shown]);
    row.dataset.key = id;
    return row;
  }

  // Keeps pinned columns in view; they are at the left already.
  pin(columns) {
    const places = columns.map(({ key }, index) => (this.pinned.has(key) ? index + (this.groupBy ? 0 : 1) : -1)).filter((place) => place >= 0);
    for (const row of this.table.rows) {
      for (const place of places) {
        const cell = row.cells[place];
        cell.classList.add("pinned");
        cell.style.left = `${this.table.tHead.rows[0].cells[place].offsetLeft - this.table.tHead.rows[0].cells[places[0]].offsetLeft}px`;
      }
    }
  }

  clicked({ target, shiftKey }) {
    const button = target.closest("[data-sort-by]");
    if (button !== null) {
      const key = button.dataset.sortBy;
      const { kind } = this.answer.columns.find((column) => column.key === key);
      const first = ["metric", "number", "duration", "time", "id"].includes(kind) ? `-${key}` : key;
      const second = first.startsWith("-") ? key : `-${key}`;
      return this.changed({ sort: this.sort === first ? second : first, page: 1 });
    }
    const box = target.closest("input[type=checkbox]");
    if (box === null) return undefined;
    const ids = this.answer.trialIds;
    let wanted = ids;
    if (!("chooseAll" in box.dataset)) {
      const id = Number(box.value);
      const [from, to] = [ids.indexOf(this.last), ids.indexOf(id)].sort((a, b) => a - b);
      // With shift, all rows since the last choice.
      wanted = shiftKey && from >= 0 ? ids.slice(from, to + 1) : [id];
      this.last = id;
    }
    const chosen = new Set(this.chosen);
    for (const id of wanted) {
      if (box.checked) chosen.add(id);
      else chosen.delete(id);
    }
    return this.changedChoice({ chosen });
  }

  changedChoice(settings) {
    Object.assign(this, settings);
    this.keep();
    for (const row of this.table.tBodies[0].rows) {
      const id = Number(row.dataset.key);
      const box = row.querySelector("input");
      if (box === null) continue;
      box.checked = this.chosen.has(id);
      row.querySelector(".swatch").style.background = box.checked && this.isDrawn ? runColor(id) : "transparent";
    }
    this.tellChoice();
  }

  tellChoice() {
    const ids = [...this.chosen];
    for (const control of [this.draw, this.compare, this.clear]) control.hidden = ids.length === 0;
    this.draw.textContent = ids.length > MOST_DRAWN ? `Draw ${MOST_DRAWN} of ${ids.length}` : `Draw ${ids.length}`;
    this.draw.setAttribute("aria-pressed", this.isDrawn);
    this.compare.textContent = `Compare ${ids.length}`;
    const query = ids.slice(0, MOST_DRAWN).map((id) => `trial=${id}`).join("&");
    this.compare.href = `/compare?${query}`;
    const source = this.isDrawn && ids.length > 0 ? `/figures/wall?${query}` : "";
    this.drawn.hidden = source === "";
    if (this.drawn.dataset.source === source) return;
    this.drawn.dataset.source = source;
    const copy = document.getElementById("wall-of-chosen").content.cloneNode(true);
    copy.firstElementChild.dataset.wall = source;
    this.drawn.replaceChildren(...(source === "" ? [] : [copy]));
    // The script of walls adopts it.
    document.dispatchEvent(new Event("refreshed"));
  }

  offerColumns({ columns, names }) {
    const keys = columns.map(({ key }) => key);
    const text = JSON.stringify([keys, names, [...this.pinned], this.groupBy]);
    if (text === this.offered) return;
    this.offered = text;
    const shown = this.columns.length ? this.columns : keys.filter((key) => names.some((name) => name.key === key));
    const choose = (wanted) => this.changed({ columns: wanted });
    const swap = (from, to) => choose(shown.map((key, index) => shown[index === from ? to : index === to ? from : index]));
    const small = (title, sign, action, properties = {}) => {
      const button = element("button", { type: "button", className: "quiet", textContent: sign, title, onclick: action, ...properties });
      button.setAttribute("aria-label", title);
      return button;
    };
    const order = shown.map((key, index) =>
      element("li", {}, [
        element("span", { textContent: key, dir: "auto" }),
        small(`Move ${key} to the left`, "\u2191", () => swap(index - 1, index), { disabled: index === 0 }),
        small(`Move ${key} to the right`, "\u2193", () => swap(index, index + 1), { disabled: index === shown.length - 1 }),
        small(`Keep ${key} in view`, this.pinned.has(key) ? "unpin" : "pin", () => this.togglePin(key, shown)),
        small(`Remove ${key}`, "\u00d7", () => choose(shown.filter((other) => other !== key))),
      ]),
    );
    const others = names.filter(({ key }) => !shown.includes(key)).map(({ key }) => element("li", {}, [small(`Add ${key}`, key, () => choose([...shown, key]))]));
    const list = element("ul", {}, others);
    const { field, apply } = entrySearch(list);
    field.value = this.chooser.querySelector("input")?.value ?? "";
    apply();
    const reset = element("button", { type: "button", textContent: "Columns that fit", hidden: this.columns.length === 0, onclick: () => choose([]) });
    this.chooser.replaceChildren(element("ol", {}, order), field, list, reset);
  }

  togglePin(key, shown) {
    if (!this.pinned.delete(key)) this.pinned.add(key);
    const front = shown.filter((other) => this.pinned.has(other));
    this.changed({ columns: [...front, ...shown.filter((other) => !this.pinned.has(other))] });
  }
}

const classOf = (column) => (NUMBERS.has(column.kind) ? "number" : "");

function content(column, value) {
  if (value === null || (Array.isArray(value) && value.length === 0)) return ["-"];
  switch (column.kind) {
    case "id": return [element("a", { href: `/trials/${value}`, textContent: value })];
    case "experiment": return [element("a", { href: `/experiments/${value}`, textContent: value })];
    case "state": return [stateMark(STATES.has(value) ? value : value.startsWith("stopping") ? "stopping" : "waiting", value.replaceAll("_", " "))];
    case "labels": return value.map((label) => element("span", { className: "label", textContent: label }));
    case "metric": return [typeof value === "number" ? metricText(value) : value];
    case "duration": return [durationText(value)];
    case "time": return [momentText(new Date(value))];
    case "number": return [Number.isInteger(value) ? value.toLocaleString("en") : numberText(value)];
    default: return [element("span", { className: "clip", dir: "auto", textContent: numberText(value), title: String(value).slice(0, 500) })];
  }
}

new TrialTable(document.getElementById("all-trials"));
