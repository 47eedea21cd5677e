// The wall of metrics: a card for each metric, and the list of runs beside it. All cards share zoom and crosshair.

import { Card } from "./card.js";
import { runColor, scale } from "./colors.js";
import { element } from "./elements.js";
import { grouped } from "./groups.js";
import { onRefresh, onTick } from "./live.js";
import { CardEditor, keepCards, readCards, withOwn } from "./own_cards.js";
import { textOf } from "./parts.js";
import { RunList, valueOf, variedNames } from "./runlist.js";
import { Scatter } from "./scatter.js";
import { bindForm, keepSettings, setting } from "./settings.js";

// A card that takes long to draw is drawn less often.
const LEAST_MS = 1500;
const SHOWN_AT_FIRST = 50;
const HEIGHT = { s: 190, m: 260, l: 400 };

class Wall {
  constructor(root) {
    this.root = root;
    this.form = root.querySelector("form.controls");
    this.grid = root.querySelector(".cards-grid");
    this.reset = this.form.querySelector("[data-reset]");
    this.cards = new Map();
    this.runs = new Map();
    this.order = [];
    this.highlighted = null;
    this.editor = null;
    // The titles of sections, by their names.
    this.heads = new Map();
    this.range = setting("range") ? setting("range").split("~").map(Number) : null;
    this.hidden = new Set(setting("hidden").split(".").filter(Boolean).map(Number));
    this.shownMore = new Set(setting("shown").split(".").filter(Boolean).map(Number));
    this.pinned = new Set(JSON.parse(localStorage.getItem("pinned") ?? "[]"));
    // The run with which the others are compared.
    this.baseline = Number(setting("baseline")) || null;
    this.own = readCards();
    this.given = [];
    this.ownColorName = "each run";
    this.isFixed = false;
    this.earliest = 0;
    const list = root.querySelector("[data-runs]");
    this.list = list === null ? null : new RunList(list, this);
    const scatter = root.querySelector("[data-scatter]");
    this.scatter = scatter === null ? null : new Scatter(scatter, this);
    bindForm(this.form, () => this.changed());
    this.reset.addEventListener("click", () => this.setRange(null));
    this.reset.hidden = this.range === null;
    this.form.querySelector("[data-new-card]").addEventListener("click", () => this.edit(null));
    this.tell();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    onTick(() => this.refreshLater());
    this.refresh();
  }

  get source() {
    return this.root.dataset.wall;
  }

  settings() {
    const { elements } = this.form;
    return {
      x: elements.x.value,
      smoothing: Number(elements.smoothing.value),
      logX: elements.log_x.checked,
      logY: elements.log_y.checked,
      size: elements.size.value,
      search: elements.cards.value.trim().toLowerCase(),
      groupBy: this.list?.groupBy ?? "",
    };
  }

  axisName(spec) {
    return this.isOverTime(spec) ? "seconds" : { batches: "batch", epochs: "epoch" }[this.settings().x];
  }

  // System metrics have times only.
  isOverTime(spec) {
    return Boolean(spec.source) || this.settings().x === "time";
  }

  refreshLater() {
    this.timer ??= setTimeout(
      () => {
        this.timer = undefined;
        if (!document.hidden) this.refresh();
      },
      Math.max(0, this.earliest - performance.now()),
    );
  }

  // Requests the wall and the curves of its cards at the same time; again where the wall has other runs or cards.
  async refresh() {
    const began = performance.now();
    const before = this.asked();
    const loading = [...this.cards.values()].map((card) => card.load());
    try {
      this.describe(JSON.parse(await textOf(this.source)));
    } catch {
      // The stream of events shows that the master is unavailable, and refreshes the page when it is back.
      return;
    } finally {
      this.earliest = performance.now() + Math.max(LEAST_MS, 4 * (performance.now() - began));
    }
    await Promise.all(loading);
    if (this.asked() !== before) await Promise.all([...this.cards.values()].map((card) => card.load()));
  }

  // What the requests of all cards follow from.
  asked() {
    return JSON.stringify([this.drawn(), [...this.cards.values()].map(({ spec }) => spec)]);
  }

  describe({ cards, runs, metric, smallerIsBetter, most }) {
    this.most = most;
    this.metric = metric;
    this.smallerIsBetter = smallerIsBetter;
    const sign = smallerIsBetter ? 1 : -1;
    const value = (run) => (run.best === null ? Infinity : sign * run.best);
    // The difference of two infinities is NaN, so runs without a value are ordered by their numbers.
    this.order = [...runs].sort((a, b) => value(a) - value(b) || a.id - b.id);
    this.runs = new Map(runs.map((run) => [run.id, run]));
    // What a card can be coloured by.
    this.colorNames = this.runs.size > 1 ? [metric, ...variedNames(this.order)] : [];
    this.scales = new Map();
    this.first = new Set(this.order.slice(0, SHOWN_AT_FIRST).map((run) => run.id));
    this.list?.update(this.order);
    this.scatter?.update(this.order, metric);
    this.arrange(cards);
  }

  // The runs whose curves are drawn: the best ones, unless the user hid them, and those that the user added.
  shown() {
    const passes = this.list?.passes ?? (() => true);
    return this.order.filter((run) => this.isShown(run.id) && passes(run)).map((run) => run.id);
  }

  // The runs of which curves are requested: the baseline, whether shown or not, and as many others as a card has room for.
  drawn() {
    const others = this.shown().filter((id) => id !== this.baseline);
    return [...(this.runs.has(this.baseline) ? [this.baseline] : []), ...others].slice(0, this.most);
  }

  setBaseline(id) {
    this.baseline = this.baseline === id ? null : id;
    keepSettings({ baseline: this.baseline });
    this.list.mark();
    this.list.paint();
    this.redraw();
    this.load();
  }

  isShown(id) {
    return this.first.has(id) ? !this.hidden.has(id) : this.shownMore.has(id);
  }

  setShown(ids, isShown) {
    for (const id of ids) {
      const set = this.first.has(id) ? this.hidden : this.shownMore;
      if (this.first.has(id) === isShown) set.delete(id);
      else set.add(id);
    }
    keepSettings({ hidden: [...this.hidden].join("."), shown: [...this.shownMore].join(".") });
    this.list?.mark();
    this.load();
  }

  arrange(given) {
    this.given = given;
    const specs = withOwn(given, this.own);
    const known = new Set(specs.map((spec) => spec.title));
    for (const [title, card] of this.cards) {
      if (known.has(title)) continue;
      card.remove();
      this.cards.delete(title);
    }
    for (const spec of specs) {
      const card = this.cards.get(spec.title);
      if (card === undefined) this.cards.set(spec.title, new Card(this, spec));
      else card.describe(spec);
    }
    this.specs = specs;
    this.place();
  }

  edit(spec) {
    this.editor ??= new CardEditor(this);
    this.editor.open(spec);
  }

  keepOwn(cards) {
    this.own = cards;
    keepCards(cards);
    this.arrange(this.given);
    this.load();
  }

  // The scale of the colours of a card: its own, or that of the list of runs; null if each run has its colour.
  scaleOf({ color = "" }) {
    const name = color || this.list?.colorBy;
    if (!name || !this.colorNames.includes(name)) return null;
    if (!this.scales.has(name)) {
      const found = scale(this.order.map((run) => valueOf(run, name, this.metric)));
      this.scales.set(name, {
        ...found,
        name,
        colorOf: (id) => found.color(valueOf(this.runs.get(id), name, this.metric)),
      });
    }
    return this.scales.get(name);
  }

  // Orders the cards: pinned ones, then the searched metric and the others without a section, then section by section.
  place() {
    const { search, size } = this.settings();
    this.grid.style.setProperty("--card-height", `${HEIGHT[size]}px`);
    this.grid.dataset.size = size;
    const sections = new Map();
    for (const spec of this.specs ?? []) {
      const card = this.cards.get(spec.title);
      const isPinned = this.pinned.has(spec.title);
      card.pin.setAttribute("aria-pressed", isPinned);
      card.root.hidden = !spec.title.toLowerCase().includes(search);
      const name = isPinned ? " pinned" : spec.section;
      sections.set(name, [...(sections.get(name) ?? []), card.root]);
    }
    const rank = (name) => (name === " pinned" ? 0 : name === "" ? 1 : name === "System" ? 3 : 2);
    const names = [...sections.keys()].sort((a, b) => rank(a) - rank(b));
    const wanted = names.flatMap((name) => {
      const cards = sections.get(name);
      const isEmpty = cards.every((card) => card.hidden);
      return name === "" || isEmpty ? cards : [this.sectionHead(name === " pinned" ? "Pinned" : name), ...cards];
    });
    // Moving an element would stop its drawing, so nothing is moved without need.
    const now = [...this.grid.children];
    if (now.length !== wanted.length || now.some((node, index) => node !== wanted[index]))
      this.grid.replaceChildren(...wanted);
  }

  sectionHead(name) {
    if (!this.heads.has(name)) this.heads.set(name, element("h3", { className: "section", textContent: name }));
    return this.heads.get(name);
  }

  changed() {
    this.tell();
    this.place();
    const { x, logX } = this.settings();
    // A range of batches is not a range of seconds.
    if (this.axis !== undefined && this.axis !== x) return this.setRange(null);
    this.axis = x;
    if (logX !== this.wasLog) this.cards.forEach((card) => (card.text = ""));
    this.wasLog = logX;
    this.load();
    this.redraw();
  }

  tell() {
    this.form.elements.smoothing.nextElementSibling.textContent = this.form.elements.smoothing.value;
    this.axis ??= this.settings().x;
  }

  setRange(range) {
    this.range = range;
    this.axis = this.settings().x;
    this.reset.hidden = range === null;
    keepSettings({ range: range === null ? "" : range.map((value) => Number(value.toPrecision(7))).join("~") });
    this.cards.forEach((card) => (card.text = ""));
    this.load();
  }

  load() {
    this.cards.forEach((card) => card.load());
    this.scatter?.draw();
  }

  // The runs of the scatter plot: all that the user has not hidden, also beyond those whose curves are drawn.
  scattered() {
    const passes = this.list?.passes ?? (() => true);
    return this.order.filter((run) => !this.hidden.has(run.id) && passes(run));
  }

  pointColor(id) {
    return this.color(id);
  }

  redraw() {
    this.scatter?.draw();
    this.cards.forEach((card) => {
      card.key = "";
      if (card.isSeen) card.draw();
    });
  }

  // Requests the curves of a card, at the resolution of its width, for the range of the zoom.
  async lines(spec, width) {
    const { x, smoothing, logX } = this.settings();
    if (spec.source) return this.system(spec, width);
    const params = new URLSearchParams({ x, points: String(Math.round(Math.min(Math.max(width, 200), 2000))) });
    for (const id of this.drawn()) params.append("trial", id);
    for (const metric of spec.metrics) params.append(spec.isOwn ? "expression" : "metric", metric.key);
    if (smoothing) params.set("smoothing", String(smoothing));
    if (logX) params.set("log_x", "true");
    if (this.range !== null) {
      params.set("start", String(this.range[0]));
      params.set("end", String(this.range[1]));
    }
    return text(`/figures/lines?${params}`);
  }

  // System metrics have times only: they follow the zoom of an axis of times.
  async system(spec, width) {
    const params = new URLSearchParams({ points: String(Math.round(Math.min(Math.max(width, 200), 2000))) });
    for (const id of this.drawn()) params.append("trial", id);
    for (const metric of spec.metrics) params.append("metric", metric.key);
    const range = this.rangeOf(spec);
    if (range !== null) {
      params.set("start", String(range[0]));
      params.set("end", String(range[1]));
    }
    return text(`${spec.source}?${params}`);
  }

  // Whether a card has the axis of the wall: system metrics are always over time.
  hasAxis(spec) {
    return !spec.source || this.settings().x === "time";
  }

  rangeOf(spec) {
    return this.hasAxis(spec) ? this.range : null;
  }

  loaded(card) {
    if (card.spec.isSearched) this.list?.sparklines(card);
  }

  nameOf(id) {
    return this.runs.get(id)?.name ?? `Trial ${id}`;
  }

  color(id) {
    return this.list?.colorOf(id) ?? runColor(id);
  }

  // The colour of a run unless the user colours by a value.
  ownColor(id) {
    return runColor(id);
  }

  grouped(card) {
    const groupOf = (id) => this.list.groupOf(id);
    const names = [...new Set(this.order.map((run) => groupOf(run.id)))].sort((a, b) =>
      a.localeCompare(b, undefined, { numeric: true }),
    );
    return grouped(card.data, groupOf, card.spec.metrics, names);
  }

  highlight(id) {
    if (id === this.highlighted) return;
    this.highlighted = id;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.cards.forEach((card) => card.highlight(this.highlighted));
      this.list?.highlight(this.highlighted);
    });
  }

  togglePin(title) {
    if (!this.pinned.delete(title)) this.pinned.add(title);
    localStorage.setItem("pinned", JSON.stringify([...this.pinned]));
    this.place();
  }
}

const text = (address) => textOf(address, { next: "The curves are drawn when it answers again." });

const walls = new Map();
const adopt = () => {
  for (const root of document.querySelectorAll("[data-wall]")) if (!walls.has(root)) walls.set(root, new Wall(root));
};
adopt();
onRefresh(adopt);
