// The list of runs beside the wall, or beside the plots of a search: which are shown, in which colour, with their best
// values; best first. The master finds the runs that its filter means.

import { scale } from "./colors.js";
import { element, iconButton, svg } from "./elements.js";
import { showRamp } from "./legend.js";
import { textOf } from "./parts.js";
import { keepSettings, setting } from "./settings.js";

const LABEL = "label";
const TYPING_MS = 250;
const MOST_FOUND = 10000;

export class RunList {
  // `wall` is what is beside the list: it says which runs it shows, and draws again after a change. Its `source` is the
  // address of its runs.
  constructor(root, wall) {
    this.root = root;
    this.wall = wall;
    this.filter = root.querySelector("[name=filter]");
    this.colorSelect = root.querySelector("[name=color]");
    this.groupSelect = root.querySelector("[name=group]");
    this.all = root.querySelector("[data-all]");
    this.bar = root.querySelector("[data-bar]");
    this.count = root.querySelector("[data-run-count]");
    this.list = root.querySelector("ol");
    this.rows = new Map();
    this.filter.value = setting("filter");
    this.colorBy = setting("color");
    this.groupBy = this.groupSelect ? setting("group") : "";
    this.among = null;
    this.refused = root.querySelector("[data-filter-refused]");
    // The numbers of the runs that the filter finds; null for all. None is known before the master has answered.
    this.found = this.filter.value.trim() ? new Set() : null;
    this.asked = 0;
    this.filter.addEventListener("input", () => {
      keepSettings({ filter: this.filter.value });
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.find(), TYPING_MS);
    });
    this.colorSelect.addEventListener("change", () => this.choose("color", this.colorSelect.value));
    this.groupSelect?.addEventListener("change", () => this.choose("group", this.groupSelect.value));
    this.all.addEventListener("click", () => {
      const ids = this.order.filter((run) => this.isListed(run)).map((run) => run.id);
      wall.setShown(ids, !ids.every((id) => wall.isShown(id)));
    });
    this.list.addEventListener("pointerover", (event) => wall.highlight(idOf(event.target)));
    this.list.addEventListener("pointerleave", () => wall.highlight(null));
    this.list.addEventListener("focusin", (event) => wall.highlight(idOf(event.target)));
    this.list.addEventListener("focusout", () => wall.highlight(null));
    root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  }

  choose(name, value) {
    this[`${name}By`] = value;
    keepSettings({ [name]: value });
    this.paint();
    this.wall.redraw();
  }

  update(order) {
    this.order = order;
    const varied = variedNames(order);
    offer(this.colorSelect, ["", this.wall.metric, ...varied], this.colorBy, this.wall.ownColorName);
    if (this.groupSelect) offer(this.groupSelect, ["", LABEL, ...varied], this.groupBy, "no group");
    const ids = new Set(order.map((run) => run.id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.root.remove();
      this.rows.delete(id);
    }
    order.forEach((run) => this.row(run));
    const wanted = order.map((run) => this.rows.get(run.id).root);
    if (wanted.some((row, index) => row !== this.list.children[index])) this.list.replaceChildren(...wanted);
    this.showFound();
    this.paint();
    // What a run has reported since may make it match, or no longer.
    this.find();
  }

  row(run) {
    let row = this.rows.get(run.id);
    if (row === undefined) {
      const eye = iconButton("eye", `Show ${run.name}`, () => this.wall.setShown([run.id], !this.wall.isShown(run.id)));
      const swatch = element("span", { className: "swatch" });
      const link = element("a", { href: `/trials/${run.id}`, textContent: run.name, dir: "auto" });
      const spark = svg("svg", { class: "spark", viewBox: "0 0 60 18", "aria-hidden": "true" });
      const best = element("span", { className: "number" });
      // Beside the plots of a search nothing is compared with one run.
      const flag = this.wall.setBaseline
        ? iconButton("baseline", `Baseline ${run.name}`, () => this.wall.setBaseline(run.id))
        : null;
      const root = element("li", {}, [eye, swatch, link, spark, best, ...(flag === null ? [] : [flag])]);
      root.dataset.run = run.id;
      row = { root, eye, swatch, spark, best, flag };
      this.rows.set(run.id, row);
    }
    row.root.dataset.state = run.state;
    row.root.title = Object.entries(run.hparams)
      .map(([name, value]) => `${name}=${value}`)
      .join("  ");
    row.best.textContent = run.best === null ? "-" : String(Number(run.best.toPrecision(4)));
    return row;
  }

  // Asks the master which runs the filter finds; the wall then draws them.
  async find() {
    const query = this.filter.value.trim();
    this.asked += 1;
    const number = this.asked;
    const before = this.found;
    try {
      const found = query ? await trialsFound(query, this.wall.source) : null;
      // A later question may have been answered before.
      if (number !== this.asked) return;
      this.found = found;
      this.refused.hidden = true;
    } catch (error) {
      // Otherwise the next refresh asks again.
      if (!error.isRefusal || number !== this.asked) return;
      // The runs that were found stay.
      if (!this.isAnswered) this.found = null;
      this.refused.textContent = error.message;
      this.refused.hidden = false;
    }
    this.isAnswered = true;
    this.showFound();
    if (!isSame(before, this.found)) this.wall.load();
  }

  passes = (run) => this.found === null || this.found.has(run.id);

  // Shows the runs that the filter finds.
  showFound() {
    let count = 0;
    for (const run of this.order ?? []) {
      const isIn = this.isListed(run);
      this.rows.get(run.id).root.hidden = !isIn;
      count += isIn;
    }
    this.listed = count === (this.order ?? []).length ? `${count}` : `${count} of ${this.order.length}`;
    this.mark();
  }

  isListed(run) {
    return this.passes(run) && (this.among === null || this.among.has(run.id));
  }

  // Shows only these runs, beside those that the filter leaves out; null for all.
  narrow(ids) {
    this.among = ids;
    this.showFound();
  }

  // Shows which runs are drawn.
  mark() {
    for (const [id, { root, eye, flag }] of this.rows) {
      flag?.setAttribute("aria-pressed", id === this.wall.baseline);
      eye.setAttribute("aria-pressed", this.wall.isShown(id));
      root.classList.toggle("off", !this.wall.isShown(id));
    }
    const shown = this.wall.shown?.().length ?? 0;
    this.count.textContent =
      shown > this.wall.most ? `${this.listed}, the best ${this.wall.most} of ${shown} are drawn` : this.listed;
  }

  paint() {
    this.scale = this.colorBy
      ? scale((this.order ?? []).map((run) => valueOf(run, this.colorBy, this.wall.metric)))
      : null;
    for (const [id, { swatch }] of this.rows) swatch.style.background = this.colorOf(id);
    this.bar.hidden = !this.scale || this.scale.kinds !== undefined;
    if (!this.bar.hidden) showRamp(this.bar, this.scale);
  }

  colorOf(id) {
    const run = this.wall.runs.get(id);
    if (id === this.wall.baseline) return "var(--text)";
    if (!this.scale || run === undefined) return this.wall.ownColor(id);
    return this.scale.color(valueOf(run, this.colorBy, this.wall.metric));
  }

  groupOf(id) {
    const run = this.wall.runs.get(id);
    if (run === undefined) return "";
    return this.groupBy === LABEL
      ? run.labels.join(", ") || "no label"
      : `${this.groupBy}=${run.hparams[this.groupBy] ?? "-"}`;
  }

  // Runs of one group have one line.
  highlight(id) {
    const isLit = (known) =>
      known === id || (id !== null && this.groupBy !== "" && this.groupOf(known) === this.groupOf(id));
    for (const [known, { root }] of this.rows) root.classList.toggle("lit", isLit(known));
  }

  // Draws the searched metric of each shown run in its row.
  sparklines(card) {
    const { x, lines } = card.data;
    for (const line of lines) {
      const row = this.rows.get(line.trial);
      if (row === undefined || line.isRaw) continue;
      const points = line.y.map((value, index) => [x[index], value]).filter(([, value]) => typeof value === "number");
      if (points.length < 2) continue;
      const values = points.map(([, value]) => value);
      const [low, high] = [Math.min(...values), Math.max(...values)];
      const step = Math.max(1, Math.floor(points.length / 40));
      const [from, to] = [x[0], x.at(-1)];
      const path = points
        .filter((_, index) => index % step === 0 || index === points.length - 1)
        .map(
          ([at, value]) =>
            `${((60 * (at - from)) / (to - from || 1)).toFixed(1)} ${(16 - (14 * (value - low)) / (high - low || 1) + 1).toFixed(1)}`,
        );
      row.spark.replaceChildren(svg("path", { d: `M${path.join("L")}` }));
    }
  }
}

// Returns the names of the hyperparameters that differ between runs.
export function variedNames(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.hparams)))];
  return names.filter((name) => new Set(runs.map((run) => JSON.stringify(run.hparams[name]))).size > 1);
}

// Returns the value by which a run is coloured: its best one, or a hyperparameter.
export const valueOf = (run, name, metric) => (name === metric ? (run.best ?? undefined) : run.hparams[name]);

// Returns the numbers of the trials of a wall that match a query.
async function trialsFound(query, source) {
  const { searchParams: scope } = new URL(source, location.href);
  const params = new URLSearchParams({ q: query, columns: "id", limit: String(MOST_FOUND) });
  if (scope.has("experiment")) params.set("experiments", scope.get("experiment"));
  else params.set("trials", scope.getAll("trial").join(","));
  const ids = [];
  for (;;) {
    if (ids.length) params.set("offset", String(ids.length));
    const { trialIds, found } = JSON.parse(await textOf(`/api/v1/trials?${params}`));
    ids.push(...trialIds);
    if (ids.length >= found || trialIds.length === 0) return new Set(ids);
  }
}

const isSame = (one, other) => one === other || (one?.size === other?.size && one?.isSubsetOf(other));

function idOf(target) {
  const row = target.closest("[data-run]");
  return row === null ? null : Number(row.dataset.run);
}

function offer(select, names, chosen, first) {
  const known = [...select.options].map((option) => option.value);
  if (names.length === known.length && names.every((name, index) => name === known[index])) return;
  select.replaceChildren(...names.map((name) => new Option(name === "" ? first : name, name)));
  select.value = names.includes(chosen) ? chosen : "";
}
