// Tables of trials and of experiments. The master filters, sorts, groups and pages; the address holds what is shown.

import { act, offerActions } from "./bulk.js";
import { classOf, content } from "./cells.js";
import { runColor } from "./colors.js";
import { columnMenu } from "./columns.js";
import { element } from "./elements.js";
import { onRefresh, onTick } from "./live.js";
import { textOf } from "./parts.js";
import { keepSettings, setting } from "./settings.js";
import { apply, arm as armWidth, widthsOf, widthsText } from "./widths.js";

const ROWS = 100;
const MOST_DRAWN = 50;
const MOST_FOUND = 10000;
// As many numbers as the master takes in an address.
const MOST_NAMED = 1250;
// More of them would not fit into an address.
const MOST_KEPT = 500;
const TYPING_MS = 250;
const LEAST_MS = 1000;
const GROUPED = new Set(["text", "state", "labels", "hparam", "experiment"]);
const FROM_LARGEST = new Set(["metric", "number", "duration", "size", "progress", "time", "id"]);
const listOf = (text) => text.split(",").filter(Boolean);

class Table {
  constructor(root) {
    const { table: source, csv, kind, scope = "", sort = "", groupName = "group" } = root.dataset;
    this.root = root;
    this.source = source;
    this.csv = csv;
    this.kind = kind;
    this.scope = scope;
    this.groupName = groupName;
    this.defaultSort = sort;
    // The trials that brushes have chosen; null for all.
    this.numbers = null;
    this.earliest = 0;
    this.asked = 0;
    this.form = root.querySelector("form");
    this.table = root.querySelector("table");
    this.menu = root.querySelector("[data-columns]");
    this.refused = root.querySelector("[data-refused]");
    this.count = root.querySelector("[data-count]");
    this.draw = root.querySelector("[data-draw]");
    this.actions = [...root.querySelectorAll("[data-bulk]")];
    this.wanted = setting("sort", sort);
    this.page = Math.max(1, Number(setting("page", "1")) || 1);
    this.columns = listOf(setting("columns"));
    this.pinned = new Set(listOf(setting("pin")));
    this.widths = widthsOf(setting("widths"));
    this.groupBy = setting(groupName);
    this.isDrawn = this.draw !== null && setting("draw") === "true";
    // The state of each, as far as it is known: it decides what can be done with them.
    this.chosen = new Map(listOf(setting("chosen")).map((id) => [Number(id), undefined]));
    this.form.elements.q.value = setting("q");
    this.arm();
    this.load();
    this.tellChoice();
  }

  arm() {
    const { q, group } = this.form.elements;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    q.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.changed({ page: 1 }), TYPING_MS);
    });
    group.addEventListener("change", () => this.changed({ groupBy: group.value, page: 1 }));
    this.table.addEventListener("click", (event) => this.clicked(event));
    this.draw?.addEventListener("click", () => this.changedChoice({ isDrawn: !this.isDrawn }));
    this.root
      .querySelector("[data-none-chosen]")
      .addEventListener("click", () => this.changedChoice({ chosen: new Map() }));
    this.root.querySelector("[data-choose-found]").addEventListener("click", () => this.chooseFound());
    for (const button of this.actions) button.addEventListener("click", () => act(button, this.kind, this.chosen));
    this.root.querySelector(".pages").addEventListener("click", ({ target }) => {
      if (target.dataset.page) this.changed({ page: this.page + Number(target.dataset.page) });
    });
    // The brushes of a search choose trials.
    document.addEventListener("trials-chosen", ({ detail }) => {
      const numbers = detail === null || detail.size > MOST_NAMED ? null : [...detail].join(",") || "0";
      if (numbers !== this.numbers) this.changed({ numbers, page: 1 });
    });
    onTick(() => this.later());
  }

  // Takes over settings, stores them in the address, and asks for the rows.
  changed(settings) {
    Object.assign(this, settings);
    this.keep();
    this.load();
  }

  keep() {
    const values = {
      q: this.form.elements.q.value.trim(),
      sort: this.wanted,
      columns: this.columns.join(","),
      [this.groupName]: this.groupBy,
      page: this.page,
      pin: [...this.pinned].join(","),
      widths: widthsText(this.widths),
      chosen: [...this.chosen.keys()].slice(0, MOST_KEPT).join(","),
      draw: this.isDrawn ? "true" : "",
    };
    keepSettings(values, { page: 1, sort: this.defaultSort });
  }

  question(more = {}) {
    const asked = {
      q: this.form.elements.q.value.trim(),
      sort: this.wanted,
      columns: this.columns.join(","),
      group: this.groupBy,
      ...(this.numbers === null ? {} : { trials: this.numbers }),
      ...more,
    };
    const question = new URLSearchParams(this.scope);
    for (const [name, value] of Object.entries(asked)) if (value !== "") question.set(name, value);
    return question;
  }

  later() {
    this.timer ??= setTimeout(
      () => {
        this.timer = undefined;
        if (!document.hidden) this.load();
      },
      Math.max(0, this.earliest - performance.now()),
    );
  }

  async load() {
    const began = performance.now();
    this.asked += 1;
    const number = this.asked;
    try {
      const text = await textOf(`${this.source}?${this.question({ offset: (this.page - 1) * ROWS, limit: ROWS })}`);
      // A later question may have been answered before.
      if (number !== this.asked) return;
      this.refused.hidden = true;
      this.take(JSON.parse(text), text);
      await this.readStates();
    } catch (error) {
      // Otherwise the stream of events shows that the master is unavailable, and refreshes the page when it is back.
      if (error.isRefusal && number === this.asked) this.refuse(error.message);
    } finally {
      this.earliest = performance.now() + Math.max(LEAST_MS, 5 * (performance.now() - began));
    }
  }

  refuse(reason) {
    this.refused.hidden = false;
    this.refused.replaceChildren(reason);
    const query = this.form.elements.q.value.trim();
    // Experiments have neither hyperparameters nor the metrics of trials.
    if (this.kind === "experiment" && query)
      this.refused.append(
        " ",
        element("a", { href: `/trials?q=${encodeURIComponent(query)}`, textContent: "Search all trials" }),
      );
  }

  take(answer, sent) {
    this.answer = answer;
    answer.ids ??= answer.trialIds;
    this.root.dataset.found = answer.found;
    const pages = Math.max(1, Math.ceil(answer.found / ROWS));
    if (this.page > pages) return this.changed({ page: pages });
    this.offerGroups(answer.names);
    columnMenu(this.menu, { ...answer, chosen: this.columns, pinned: this.pinned }, (settings) =>
      this.changed(settings),
    );
    this.redraw(answer, JSON.stringify([sent, this.wanted, [...this.pinned], [...this.widths]]));
    this.count.textContent = this.countText(answer);
    for (const button of this.root.querySelectorAll("[data-page]"))
      button.disabled = Number(button.dataset.page) < 0 ? this.page <= 1 : this.page >= pages;
    this.tellChoice();
    return undefined;
  }

  countText({ found, total, rows }) {
    const text = (value) => value.toLocaleString("en");
    const all = `${text(total)} ${this.kind}${total === 1 ? "" : "s"}`;
    if (found === 0) return total ? `No ${this.kind} matches, of ${text(total)}.` : `No ${this.kind} yet.`;
    const first = (this.page - 1) * ROWS;
    const what = this.groupBy ? "groups" : `${this.kind}s`;
    const range = `${text(first + 1)} to ${text(first + rows.length)} of ${text(found)} ${what}`;
    return this.groupBy || found !== total ? `${range}, among ${all}` : range;
  }

  // Draws the rows, unless they are drawn already; the focus stays on its row.
  redraw(answer, text) {
    if (text === this.drawnText) return;
    this.drawnText = text;
    const focused = this.table.contains(document.activeElement) ? document.activeElement.closest("tr") : null;
    const wasBox = document.activeElement?.matches("input");
    this.head(answer.columns);
    const best = new Set(answer.bestIds);
    const rows = answer.rows.map((cells, index) => this.row(cells, answer, index, best));
    this.table.tBodies[0].replaceChildren(...rows);
    this.place(answer.columns);
    const again =
      focused === null
        ? undefined
        : rows.find((row) => row.dataset.key !== undefined && row.dataset.key === focused.dataset.key);
    if (again === undefined) return;
    again.tabIndex = -1;
    (wasBox ? again.querySelector("input") : again).focus();
  }

  offerGroups(names) {
    const select = this.form.elements.group;
    const keys = ["", ...names.filter(({ kind }) => GROUPED.has(kind)).map(({ key }) => key)];
    if (this.groupBy && !keys.includes(this.groupBy)) keys.push(this.groupBy);
    if (keys.join("\n") !== [...select.options].map((option) => option.value).join("\n"))
      select.replaceChildren(...keys.map((key) => new Option(key || "nothing", key)));
    select.value = this.groupBy;
  }

  head(columns) {
    const cells = columns.map((column) => {
      const button = element("button", { type: "button", textContent: column.title, dir: "auto" });
      button.dataset.sortBy = column.key;
      const cell = element("th", { scope: "col", className: classOf(column) }, [button]);
      cell.dataset.key = column.key;
      armWidth(cell, (width) => this.resize(column.key, width));
      if (this.wanted.replace(/^-/, "") === column.key)
        cell.setAttribute("aria-sort", this.wanted.startsWith("-") ? "descending" : "ascending");
      return cell;
    });
    const all = element("input", { type: "checkbox" });
    all.setAttribute("aria-label", "Choose all rows of this page");
    all.dataset.chooseAll = "";
    const choice = this.groupBy ? [] : [element("th", { scope: "col", className: "choice" }, [all])];
    this.table.tHead.replaceChildren(element("tr", {}, [...choice, ...cells]));
  }

  row(cells, answer, index, best) {
    const id = answer.ids[index];
    const facts = {
      id,
      kind: this.kind,
      isBest: best.has(id),
      labels: answer.labels?.[index],
      description: answer.descriptions?.[index],
    };
    const shown = cells.map((value, place) =>
      element("td", { className: classOf(answer.columns[place]) }, content(answer.columns[place], value, facts)),
    );
    if (id === undefined) return element("tr", {}, shown);
    const state = answer.states[index];
    const box = element("input", { type: "checkbox", value: id, checked: this.chosen.has(id) });
    box.setAttribute("aria-label", `Choose ${this.kind} ${id}`);
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = this.colorOf(id);
    const row = element("tr", { className: facts.isBest ? "best" : state === "error" ? "failed" : "" }, [
      element("td", { className: "choice" }, [box, swatch]),
      ...shown,
    ]);
    Object.assign(row.dataset, { key: id, state });
    return row;
  }

  colorOf(id) {
    return this.chosen.has(id) && this.isDrawn ? runColor(id) : "transparent";
  }

  // Gives columns their widths, and keeps pinned ones in view; those are at the left already.
  place(columns) {
    const before = this.groupBy ? 0 : 1;
    for (const [place, { key }] of columns.entries()) {
      const width = this.widths.get(key);
      if (width !== undefined) for (const row of this.table.rows) apply(row.cells[place + before], width);
    }
    const pinned = columns
      .map(({ key }, place) => (this.pinned.has(key) ? place + before : -1))
      .filter((place) => place >= 0);
    const heads = this.table.tHead.rows[0].cells;
    for (const place of pinned) {
      const left = `${heads[place].offsetLeft - heads[pinned[0]].offsetLeft}px`;
      for (const row of this.table.rows) {
        row.cells[place].classList.add("pinned");
        row.cells[place].style.left = left;
      }
    }
  }

  resize(key, width) {
    if (width === null) this.widths.delete(key);
    else this.widths.set(key, width);
    this.keep();
    const place = this.answer.columns.findIndex((column) => column.key === key) + (this.groupBy ? 0 : 1);
    for (const row of this.table.rows) apply(row.cells[place], width ?? undefined);
    this.place(this.answer.columns);
  }

  clicked({ target, shiftKey }) {
    const button = target.closest("[data-sort-by]");
    if (button !== null) return this.sortBy(this.answer.columns.find(({ key }) => key === button.dataset.sortBy));
    const box = target.closest("input[type=checkbox]");
    if (box === null) return undefined;
    const { ids, states } = this.answer;
    let wanted = ids;
    if (!("chooseAll" in box.dataset)) {
      const id = Number(box.value);
      const [from, to] = [ids.indexOf(this.last), ids.indexOf(id)].sort((a, b) => a - b);
      // With shift, all rows since the last choice.
      wanted = shiftKey && from >= 0 ? ids.slice(from, to + 1) : [id];
      this.last = id;
    }
    const chosen = new Map(this.chosen);
    for (const id of wanted) {
      if (box.checked) chosen.set(id, states[ids.indexOf(id)]);
      else chosen.delete(id);
    }
    return this.changedChoice({ chosen });
  }

  // The first click begins with the best, the largest, or the first of the alphabet.
  sortBy({ key, kind, better }) {
    const isDescending = better ? better === "max" : FROM_LARGEST.has(kind);
    const [first, second] = isDescending ? [`-${key}`, key] : [key, `-${key}`];
    this.changed({ wanted: this.wanted === first ? second : first, page: 1 });
  }

  async chooseFound() {
    const answer = await fetch(`${this.source}?${this.question({ columns: "id", limit: MOST_FOUND })}`);
    if (!answer.ok) return;
    const { ids, trialIds = ids, states } = await answer.json();
    this.changedChoice({ chosen: new Map(trialIds.map((id, index) => [id, states[index]])) });
  }

  changedChoice(settings) {
    Object.assign(this, settings);
    this.keep();
    for (const row of this.table.tBodies[0].rows) {
      const box = row.querySelector("input");
      if (box === null) continue;
      const id = Number(row.dataset.key);
      box.checked = this.chosen.has(id);
      row.querySelector(".swatch").style.background = this.colorOf(id);
    }
    this.tellChoice();
  }

  // Learns the states of chosen rows: those of other pages, and of a sent address, are not in the answer.
  async readStates() {
    const { ids, states } = this.answer;
    for (const [index, id] of ids.entries()) if (this.chosen.has(id)) this.chosen.set(id, states[index]);
    const others = [...this.chosen.keys()].filter((id) => !ids.includes(id));
    for (let from = 0; from < others.length && this.actions.length > 0; from += MOST_NAMED) {
      const asked = others.slice(from, from + MOST_NAMED);
      const question = new URLSearchParams({
        [`${this.kind}s`]: asked.join(","),
        columns: "id",
        limit: String(MOST_NAMED),
      });
      const answer = await (await fetch(`${this.source}?${question}`)).json();
      const known = new Map((answer.ids ?? answer.trialIds).map((id, index) => [id, answer.states[index]]));
      for (const id of asked) {
        if (known.has(id)) this.chosen.set(id, known.get(id));
        else this.chosen.delete(id);
      }
    }
    this.tellChoice();
  }

  tellChoice() {
    const ids = [...this.chosen.keys()];
    this.root.querySelector("[data-none-chosen]").hidden = ids.length === 0;
    const found = this.root.querySelector("[data-choose-found]");
    const isPage = this.answer?.ids.length > 0 && this.answer.ids.every((id) => this.chosen.has(id));
    found.hidden = !isPage || this.answer.found <= ids.length || this.answer.found > MOST_FOUND;
    found.textContent = `Choose all ${this.answer?.found.toLocaleString("en")} found`;
    const query = ids
      .slice(0, MOST_DRAWN)
      .map((id) => `${this.kind}=${id}`)
      .join("&");
    const compare = this.root.querySelector("[data-compare]");
    Object.assign(compare, { hidden: ids.length < 2, textContent: `Compare ${ids.length}`, href: `/compare?${query}` });
    const file = this.root.querySelector("[data-csv]");
    const isSome = ids.length > 0 && ids.length <= MOST_NAMED && !this.groupBy;
    file.textContent = isSome ? `CSV ${ids.length}` : "CSV";
    file.href = `${this.csv}?${this.question(isSome ? { [`${this.kind}s`]: ids.join(",") } : {})}`;
    offerActions(this.actions, new Map([...this.chosen].filter(([, state]) => state !== undefined)));
    if (this.draw !== null) this.drawChosen(ids, query);
  }

  drawChosen(ids, query) {
    const drawn = this.root.querySelector("[data-drawn]");
    this.draw.hidden = ids.length === 0;
    this.draw.textContent = ids.length > MOST_DRAWN ? `Draw ${MOST_DRAWN} of ${ids.length}` : `Draw ${ids.length}`;
    this.draw.setAttribute("aria-pressed", this.isDrawn);
    const source = this.isDrawn && ids.length > 0 ? `/figures/wall?${query}` : "";
    drawn.hidden = source === "";
    if ((drawn.dataset.source ?? "") === source) return;
    drawn.dataset.source = source;
    const copy = this.root.querySelector("template").content.cloneNode(true);
    copy.firstElementChild.dataset.wall = source;
    drawn.replaceChildren(...(source === "" ? [] : [copy]));
    // The script of walls adopts it.
    document.dispatchEvent(new Event("refreshed"));
  }
}

const known = new WeakSet();
const adopt = () => {
  for (const root of document.querySelectorAll("[data-table]")) {
    if (known.has(root)) continue;
    known.add(root);
    new Table(root);
  }
};
adopt();
onRefresh(adopt);
