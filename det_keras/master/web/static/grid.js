// Tables of experiments and trials: sorted, filtered, with chosen columns and actions on many rows. Only the rows in view
// are elements, so that ten thousand rows scroll without a pause.

import { ask, say, send } from "./actions.js";
import { entrySearch } from "./chooser.js";
import { csv, download } from "./downloads.js";
import { element, stateMark } from "./elements.js";
import { durationText, metricText, numberText, sizeText } from "./formats.js";
import { onRefresh, refreshSoon } from "./live.js";
import { isKnown, matcher, namesOf } from "./query.js";
import { keepSettings, setting } from "./settings.js";
import { momentText } from "./times.js";

const ROW_PX = 33;
// Shorter tables are whole, so that the browser's own search finds every row.
const WHOLE = 300;
const BEYOND = 20;
// The rows that an action on many of them changes; all rows if it is not named.
const APPLIES = {
  pause: (row) => !row.isOver && row.state[0] !== "paused" && row.state[0] !== "stopping",
  activate: (row) => row.state[0] === "paused",
  kill: (row) => !row.isOver,
  archive: (row) => row.isOver,
  delete: (row) => row.isOver,
};
const NUMBERS = new Set(["id", "metric", "number", "duration", "size", "progress", "hparam"]);

class Grid {
  constructor(root) {
    this.root = root;
    this.source = root.dataset.grid;
    this.kind = root.dataset.kind;
    this.form = root.querySelector("form");
    this.scroll = root.querySelector(".scroll");
    this.table = root.querySelector("table");
    this.count = root.querySelector("[data-count]");
    this.none = root.querySelector("[data-none]");
    this.chooser = root.querySelector("[data-columns]");
    this.states = this.form.elements.state;
    this.rows = [];
    this.columns = [];
    // As the master sent them.
    this.texts = [];
    this.cells = [];
    // With the entry of the browser's history, so that Back restores it.
    this.chosen = new Set(history.state?.chosen?.[root.id] ?? []);
    this.earliest = 0;
    this.sort = setting("sort");
    this.changedColumns = new Set(setting("cols").split(",").filter(Boolean));
    this.form.elements.q.value = setting("q");
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.elements.q.addEventListener("input", () => this.changed());
    this.states.addEventListener("change", () => this.changed());
    this.form.addEventListener("click", (event) => {
      const button = event.target.closest("[data-bulk]");
      if (button !== null) this.act(button);
    });
    this.table.addEventListener("click", (event) => this.clicked(event));
    this.scroll.addEventListener("scroll", () => this.window());
    new ResizeObserver(() => this.window()).observe(this.scroll);
    // The brushes of a search choose trials.
    document.addEventListener("trials-chosen", ({ detail }) => {
      this.among = detail;
      if (this.found !== undefined) this.arrange();
    });
    onRefresh(() => this.refreshLater());
    this.refreshLater();
  }

  refreshLater() {
    this.isDue = true;
    if (this.isBusy) return;
    this.isBusy = true;
    setTimeout(async () => {
      this.isDue = false;
      if (!document.hidden) await this.fetch();
      this.isBusy = false;
      if (this.isDue) this.refreshLater();
    }, Math.max(0, this.earliest - performance.now()));
  }

  async fetch() {
    const began = performance.now();
    try {
      const texts = [await this.part(0)];
      const { columns, more, rows, total } = JSON.parse(texts[0]);
      // Older rows come afterwards, in parts. Until then those of the last time stay.
      if (texts[0] !== this.texts[0]) this.take(columns, more, rows.length < total ? [...rows, ...this.older(columns, rows)] : rows);
      while (rows.length < total) {
        texts.push(await this.part(rows.length));
        const next = JSON.parse(texts.at(-1)).rows;
        if (next.length === 0) break;
        rows.push(...next);
        if (this.texts.length === 0) this.take(columns, more, rows);
      }
      if (texts.length > 1 && texts.join() !== this.texts.join()) this.take(columns, more, rows);
      this.texts = texts;
      this.cells = rows;
    } catch {
      // The stream of events shows that the master is unavailable, and refreshes the page when it is back.
    } finally {
      this.earliest = performance.now() + Math.max(1000, 5 * (performance.now() - began));
    }
  }

  // The rows of the last time behind the first part, without those that are in it.
  older(columns, rows) {
    const id = columns.findIndex(({ key }) => key === "id");
    const known = new Set(rows.map((cells) => cells[id]));
    return this.cells.slice(rows.length).filter((cells) => !known.has(cells[id]));
  }

  async part(offset) {
    const answer = await fetch(offset ? `${this.source}${this.source.includes("?") ? "&" : "?"}offset=${offset}` : this.source);
    if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
    return answer.text();
  }

  take(columns, more, rows) {
    const keys = [...columns.map(({ key }) => key), ...more];
    this.columns = columns;
    this.rows = rows.map((cells) => Object.fromEntries(keys.map((key, index) => [key, cells[index]])));
    this.root.dataset.loaded = this.rows.length;
    const known = new Set(this.rows.map((row) => row.id));
    for (const id of this.chosen) if (!known.has(id)) this.chosen.delete(id);
    this.offerStates();
    this.offerColumns();
    this.arrange();
  }

  shownColumns() {
    return this.columns.filter((column) => column.is_shown !== this.changedColumns.has(column.key));
  }

  changed() {
    keepSettings({ q: this.form.elements.q.value, state: this.states.value, sort: this.sort, cols: [...this.changedColumns].join(",") });
    this.arrange();
  }

  offerStates() {
    const names = [...new Set(this.rows.map((row) => row.state[1]))].sort();
    const chosen = this.states.value || setting("state");
    const wanted = ["", ...new Set([...names, ...(chosen ? [chosen] : [])])];
    if (wanted.join("\n") === [...this.states.options].map((option) => option.value).join("\n")) return;
    this.states.replaceChildren(...wanted.map((name) => new Option(name || "all", name)));
    this.states.value = chosen;
  }

  offerColumns() {
    const text = this.columns.map(({ key }) => key).join("\n");
    if (text === this.offered) return;
    this.offered = text;
    const list = element("div", { className: "boxes" });
    list.append(
      ...this.columns.filter(({ kind }) => kind !== "id").map((column) => {
        const box = element("input", { type: "checkbox", checked: column.is_shown !== this.changedColumns.has(column.key) });
        box.addEventListener("change", () => {
          if (box.checked === column.is_shown) this.changedColumns.delete(column.key);
          else this.changedColumns.add(column.key);
          this.changed();
        });
        return element("label", {}, [box, element("span", { textContent: column.title, dir: "auto" })]);
      }),
    );
    const { field } = entrySearch(list);
    this.chooser.replaceChildren(field, list);
  }

  // Filters and sorts the rows, and draws the table.
  arrange() {
    const query = this.form.elements.q.value.trim();
    const fields = (row) => ({ ...row, state: row.state[1], label: row.labels ?? [] });
    const unknown = this.rows.length === 0 ? undefined : namesOf(query).find((name) => !this.rows.some((row) => isKnown(fields(row), name)));
    const matches = matcher(query, {
      fields,
      text: (row) => [row.id, row.name, ...(row.labels ?? []), row.description].join(" "),
    });
    const state = this.states.value;
    this.found = this.rows.filter((row) => (state === "" || row.state[1] === state) && (this.among?.has(row.id) ?? true) && matches(row));
    const [key, isDescending] = this.sort.startsWith("-") ? [this.sort.slice(1), true] : [this.sort, false];
    const column = this.columns.find((one) => one.key === key);
    if (column !== undefined) this.found.sort(comparison(column, isDescending));
    this.count.textContent = this.found.length === this.rows.length ? `${this.rows.length.toLocaleString("en")} in all` : `${this.found.length.toLocaleString("en")} of ${this.rows.length.toLocaleString("en")}`;
    this.none.hidden = this.found.length > 0 || (this.rows.length === 0 && this.kind !== "trial");
    this.none.textContent = this.rows.length ? `No ${this.kind} matches.` : `No ${this.kind} yet.`;
    if (unknown !== undefined) this.none.replaceChildren(`No ${this.kind} has a value named \u201c${unknown}\u201d. `, element("a", { href: `/trials?q=${encodeURIComponent(query)}`, textContent: "Search all trials" }));
    this.scroll.hidden = this.rows.length === 0;
    this.form.hidden = this.rows.length === 0;
    this.head(key, isDescending);
    this.drawn = null;
    const { scrollTop } = this.scroll;
    this.window();
    // Rows that are replaced may move the others.
    this.scroll.scrollTop = scrollTop;
    this.tellChoice();
  }

  head(sorted, isDescending) {
    const columns = this.shownColumns();
    const text = JSON.stringify([columns, this.sort]);
    if (text === this.headText) return;
    this.headText = text;
    const all = element("input", { type: "checkbox" });
    all.setAttribute("aria-label", "Choose all rows that are found");
    all.dataset.chooseAll = "";
    const cells = columns.map((column) => {
      const button = element("button", { type: "button", textContent: column.title, dir: "auto" });
      button.dataset.sortBy = column.key;
      const head = element("th", { scope: "col", className: classOf(column) }, [button]);
      if (column.key === sorted) head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      return head;
    });
    this.table.tHead.replaceChildren(element("tr", {}, [element("th", { scope: "col", className: "choice" }, [all]), ...cells]));
  }

  // Draws the rows in view, with space for the others.
  window() {
    if (this.found === undefined) return;
    const isWhole = this.found.length <= WHOLE;
    this.table.classList.toggle("windowed", !isWhole);
    const first = isWhole ? 0 : Math.max(0, Math.floor(this.scroll.scrollTop / ROW_PX) - BEYOND);
    const count = isWhole ? this.found.length : Math.ceil(this.scroll.clientHeight / ROW_PX) + 2 * BEYOND;
    const shown = this.found.slice(first, first + count);
    if (this.drawn !== null && first === this.drawn && !this.isStale) return;
    this.drawn = first;
    const columns = this.shownColumns();
    const before = new Map([...this.table.tBodies[0].rows].filter((row) => row.dataset.key).map((row) => [row.dataset.key, row]));
    const rows = shown.map((row) => this.row(row, columns, before.get(String(row.id))));
    const below = this.found.length - first - shown.length;
    this.table.setAttribute("aria-rowcount", this.found.length + 1);
    const wanted = [...spacer(first, columns.length), ...rows, ...spacer(below, columns.length)];
    const now = [...this.table.tBodies[0].rows];
    if (wanted.length !== now.length || wanted.some((row, index) => row !== now[index])) this.table.tBodies[0].replaceChildren(...wanted);
  }

  // Returns the element of a row: the existing one if it shows the same, so that the focus stays.
  row(row, columns, before) {
    const text = JSON.stringify([row, columns.map(({ key }) => key)]);
    if (before !== undefined && before.shownText === text) {
      before.querySelector("input").checked = this.chosen.has(row.id);
      return before;
    }
    const box = element("input", { type: "checkbox", name: this.kind, value: row.id, checked: this.chosen.has(row.id) });
    box.setAttribute("aria-label", `Compare ${this.kind} ${row.id}`);
    const cells = columns.map((column) => element("td", { className: classOf(column) }, content(column, row, this.kind)));
    const made = element("tr", { className: row.isBest ? "best" : row.state[0] === "error" ? "failed" : "" }, [element("td", { className: "choice" }, [box]), ...cells]);
    made.dataset.key = row.id;
    made.dataset.state = row.state[1];
    made.shownText = text;
    return made;
  }

  clicked(event) {
    const button = event.target.closest("[data-sort-by]");
    if (button !== null) return this.sortBy(button.dataset.sortBy);
    const box = event.target.closest("input[type=checkbox]");
    if (box === null) return;
    if ("chooseAll" in box.dataset) this.choose(this.found.map((row) => row.id), box.checked);
    else {
      const id = Number(box.value);
      const ids = this.found.map((row) => row.id);
      const [from, to] = [ids.indexOf(this.last), ids.indexOf(id)].sort((a, b) => a - b);
      // With shift, all rows since the last choice.
      this.choose(event.shiftKey && from >= 0 ? ids.slice(from, to + 1) : [id], box.checked);
      this.last = id;
    }
  }

  choose(ids, isChosen) {
    for (const id of ids) {
      if (isChosen) this.chosen.add(id);
      else this.chosen.delete(id);
    }
    for (const row of this.table.tBodies[0].rows) if (row.dataset.key) row.querySelector("input").checked = this.chosen.has(Number(row.dataset.key));
    this.tellChoice();
  }

  tellChoice() {
    const state = history.state ?? {};
    history.replaceState({ ...state, chosen: { ...state.chosen, [this.root.id]: [...this.chosen] } }, "");
    for (const button of this.form.querySelectorAll("[data-bulk]")) {
      const { bulk, word } = button.dataset;
      const count = this.chosenFor(bulk).length;
      button.hidden = bulk !== "csv" && count < (bulk === "compare" ? 2 : 1);
      button.textContent = count > 0 ? `${word} ${count}` : word;
    }
  }

  // The chosen rows that an action changes.
  chosenFor(bulk) {
    const applies = APPLIES[bulk] ?? (() => true);
    return this.rows.filter((row) => this.chosen.has(row.id) && applies(row)).map((row) => row.id);
  }

  // The first click begins with the best, the largest, or the first of the alphabet.
  sortBy(key) {
    const column = this.columns.find((one) => one.key === key);
    const startsDescending = column.better ? column.better === "max" : ["number", "size", "duration", "progress", "time"].includes(column.kind);
    const first = `${startsDescending ? "-" : ""}${key}`;
    const second = `${startsDescending ? "" : "-"}${key}`;
    this.sort = this.sort === first ? second : first;
    this.changed();
  }

  async act(button) {
    const { bulk, word, question, loss, method = "POST" } = button.dataset;
    const ids = this.chosenFor(bulk);
    if (bulk === "csv") return this.save();
    if (bulk === "compare") return location.assign(`/compare?${ids.map((id) => `${this.kind}=${id}`).join("&")}`);
    let label = null;
    if (bulk === "label") {
      label = await ask(`Label ${ids.length} ${this.kind}s`, "", "Add", { input: "Label" });
      if (!label) return;
    } else if (question && !(await ask(question.replace("#", `${ids.length} ${this.kind}${ids.length === 1 ? "" : "s"}`), loss, word))) return;
    const failures = [];
    for (const id of ids) {
      const path = { delete: "", label: `/labels/${encodeURIComponent(label)}` }[bulk] ?? `/${bulk}`;
      try {
        await send(`/api/v1/${this.kind}s/${id}${path}`, { method: bulk === "label" ? "PUT" : method });
      } catch (error) {
        failures.push(`${id}: ${error.message}`);
      }
    }
    const done = ids.length - failures.length;
    say(failures.length ? `${word}: ${done} of ${ids.length} done. ${failures.slice(0, 3).join(" ")}` : `${word}: done.`);
    refreshSoon();
  }

  save() {
    const columns = this.shownColumns();
    const wanted = this.chosen.size ? this.found.filter((row) => this.chosen.has(row.id)) : this.found;
    // A state is a pair of its kind and its text; a hyperparameter may be a list too.
    const plain = (column, value) => (column.kind === "state" ? value[1] : (value ?? ""));
    const rows = [columns.map((column) => column.title), ...wanted.map((row) => columns.map((column) => plain(column, row[column.key])))];
    download(csv(rows), `${this.kind}s.csv`);
  }
}

const classOf = (column) => (column.kind === "name" ? "title" : NUMBERS.has(column.kind) ? "number" : "");

function spacer(rows, columns) {
  if (rows <= 0) return [];
  const cell = element("td", { colSpan: columns + 1 });
  cell.style.height = `${rows * ROW_PX}px`;
  const row = element("tr", { className: "space" }, [cell]);
  row.setAttribute("aria-hidden", "true");
  return [row];
}

function comparison(column, isDescending) {
  const sign = isDescending ? -1 : 1;
  const value = (row) => (column.kind === "state" ? row.state[1] : row[column.key]);
  const isNothing = (one) => one === null || one === undefined || one === "";
  return (left, right) => {
    const [a, b] = [value(left), value(right)];
    // Rows without a value are last in both directions.
    if (isNothing(a) || isNothing(b)) return isNothing(a) - isNothing(b);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  };
}

function content(column, row, kind) {
  const value = row[column.key];
  if (column.kind === "id") {
    const link = element("a", { href: `/${kind}s/${value}`, textContent: value });
    return [link];
  }
  if (column.kind === "name") {
    const labels = (row.labels ?? []).map((label) => element("span", { className: "label", textContent: label }));
    const parts = [element("a", { href: `/${kind}s/${row.id}`, textContent: value }), ...labels.flatMap((label) => [" ", label])];
    if (row.description) parts.push(element("span", { className: "faint clip", textContent: row.description, title: row.description.slice(0, 500) }));
    return parts;
  }
  if (column.kind === "state") return [stateMark(...value)];
  if (value === null || value === undefined) return ["-"];
  if (column.kind === "progress") {
    const bar = element("progress", { max: 1, value });
    bar.setAttribute("aria-label", `Progress of ${kind} ${row.id}`);
    return [element("span", { className: "progress" }, [bar, element("span", { className: "number", textContent: `${Math.floor(value * 100 + 1e-9)}%` })])];
  }
  if (column.kind === "metric") {
    const star = column.key === "best" && row.isBest ? [stateMark("best", "", "best")] : [];
    return [...star, metricText(value)];
  }
  if (column.kind === "duration") return [durationText(value)];
  if (column.kind === "size") return [sizeText(value)];
  if (column.kind === "time") return [momentText(new Date(value))];
  if (column.kind === "hparam") return [element("span", { className: "clip", textContent: numberText(value), title: String(value).slice(0, 500) })];
  return [column.kind === "number" ? value.toLocaleString("en") : element("span", { className: "clip", textContent: value, title: value })];
}

const grids = new Map();
const adopt = () => {
  for (const root of document.querySelectorAll("[data-grid]")) if (!grids.has(root)) grids.set(root, new Grid(root));
};
adopt();
onRefresh(adopt);
