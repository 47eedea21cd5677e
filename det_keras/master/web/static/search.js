// The plots of a search: importance, the best so far, parallel coordinates with brushes, trials in time; and the list of
// its runs beside them.

import { viridis } from "./colors.js";
import { drawEffect, effectPlots } from "./effects.js";
import { element } from "./elements.js";
import { metricText, numberText } from "./formats.js";
import { onTick } from "./live.js";
import { axesOf, drawParallel as parallel } from "./parallel.js";
import { textOf } from "./parts.js";
import { RunList } from "./runlist.js";
import { Scatter } from "./scatter.js";
import { bindForm, keepSettings, setting } from "./settings.js";
import { drawIn, label, svg, ticks } from "./svg.js";
import { momentText } from "./times.js";

const LEAST_MS = 2000;
const KINDS = {
  completed: "--completed",
  error: "--error",
  stopping: "--paused",
  canceled: "--canceled",
  running: "--running",
  paused: "--paused",
  waiting: "--waiting",
};
const MOST_SPARKS = 50;
const MARGIN = { left: 62, right: 20, top: 14, bottom: 30 };

let data = null;
let text = "";
let earliest = 0;
let timer = null;
let isBrushing = false;
// The controls may come with the first trial that has validated.
const bound = new WeakSet();
// The chosen range of each axis, by name, as fractions of its height.
const brushes = new Map();

let list = null;
let scatter = null;
// What the list asks of the page beside it.
const board = {
  get source() {
    return root().dataset.wallSource;
  },
  runs: new Map(),
  ranks: new Map(),
  metric: "",
  hidden: new Set(setting("hidden").split(".").filter(Boolean).map(Number)),
  ownColorName: "best is yellow",
  // A trial without a value to compare is neither good nor bad.
  ownColor: (id) => (board.ranks.has(id) ? viridis(board.ranks.get(id)) : "var(--faint)"),
  isShown: (id) => !board.hidden.has(id),
  setShown(ids, isShown) {
    for (const id of ids) board.hidden[isShown ? "delete" : "add"](id);
    keepSettings({ hidden: [...board.hidden].join(".") });
    list.mark();
    draw();
  },
  load: () => draw(),
  redraw: () => draw(),
  scattered: () => visible().flatMap(({ id }) => board.runs.get(id) ?? []),
  pointColor: (id) => colorOf(id),
  highlight(id) {
    for (const line of document.querySelectorAll(".trial-line"))
      line.classList.toggle("lit", Number(line.dataset.trial) === id);
    list?.highlight(id);
  },
};

const colorOf = (id) => list?.colorOf(id) ?? board.ownColor(id);
const controls = () => document.getElementById("search-controls");
const root = () => document.querySelector("[data-search]");
const place = (name) => root().querySelector(`[data-draw=${name}]`);

async function load() {
  if (root() === null) return;
  const began = performance.now();
  const address = new URL(root().dataset.search, location.href);
  const form = controls();
  if (!bound.has(form)) {
    bound.add(form);
    bindForm(form, () => {
      draw();
      load();
    });
  }
  const { rung } = form.elements;
  if (rung) address.searchParams.set("rung", rung.value);
  try {
    const now = await textOf(`${address.pathname}${address.search}`);
    if (now === text) return;
    data = JSON.parse(now);
    await loadRuns();
    draw();
    text = now;
  } catch {
    // The next refresh tries again.
  } finally {
    earliest = performance.now() + Math.max(LEAST_MS, 4 * (performance.now() - began));
  }
}

// Fills the list: best first, as on the wall, with the curves of the first.
async function loadRuns() {
  const { runs, cards, metric, smallerIsBetter } = JSON.parse(await textOf(board.source));
  const sign = smallerIsBetter ? 1 : -1;
  const value = (run) => (run.best === null ? Infinity : sign * run.best);
  const order = [...runs].sort((a, b) => value(a) - value(b) || a.id - b.id);
  board.metric = metric;
  board.runs = new Map(runs.map((run) => [run.id, run]));
  // By the values that the plots compare, which are those of a rung, or the best.
  const known = data.trials.filter((trial) => trial.value !== null).sort((a, b) => sign * (a.value - b.value));
  board.ranks = new Map(known.map((trial, index) => [trial.id, 1 - index / Math.max(known.length - 1, 1)]));
  list ??= new RunList(root().querySelector("[data-runs]"), board);
  list.update(order);
  scatter ??= new Scatter(root().querySelector("[data-scatter]"), board);
  scatter.update(order, metric);
  const searched = cards.find((card) => card.isSearched)?.metrics.find(({ name }) => name === metric);
  if (searched === undefined) return;
  const params = new URLSearchParams({ metric: searched.key, points: "60" });
  for (const run of order.slice(0, MOST_SPARKS)) params.append("trial", run.id);
  list.sparklines({ data: JSON.parse(await textOf(`/figures/lines?${params}`)) });
}

// The trials that the list shows.
function visible() {
  return data.trials.filter(({ id }) => {
    const run = board.runs.get(id);
    return board.isShown(id) && (list === null || run === undefined || list.passes(run));
  });
}

function draw() {
  // The axis under the user's pointer must not be replaced.
  if (data === null || root() === null || isBrushing) return;
  tellLeftOut();
  drawImportance();
  drawProgress();
  drawEffects(drawParallel());
  drawTime();
  scatter?.draw();
  root().dataset.drawn = visible().length;
}

// Says how many trials the plots cannot compare.
function tellLeftOut() {
  const count = data.trials.filter(({ value }) => value === null).length;
  const select = controls().elements.rung;
  const where = select && select.value !== "0" ? select.selectedOptions[0].textContent : "yet";
  const text = `${count} of ${data.trials.length} trials ${count === 1 ? "has" : "have"} no value ${where}`;
  document.querySelector("[data-left-out]").textContent = count ? text : "";
}

function drawImportance() {
  root().querySelector("[data-method]").textContent = data.method ? `by ${data.method}` : "";
  const rows = data.importances.map(({ name, value }) => {
    const bar = element("span", { className: "amount" });
    bar.style.width = `${Math.max(0.5, 100 * value)}%`;
    return element("li", {}, [
      element("span", { className: "clip", textContent: name, title: name, dir: "auto" }),
      element("span", { className: "track" }, [bar]),
      element("span", { className: "number", textContent: value.toFixed(2) }),
    ]);
  });
  const none = element("p", {
    className: "faint",
    textContent: "Needs at least four trials whose hyperparameters and metrics differ.",
  });
  place("importance").replaceChildren(rows.length ? element("ol", { className: "importances" }, rows) : none);
}

const canvas = (name, title, trials, children) => drawIn(place(name), title, trials, children);

function drawProgress() {
  const shown = visible()
    .filter(({ best }) => best !== null)
    .sort((a, b) => a.end - b.end);
  canvas("progress", `Best ${data.metric} so far over ${shown.length} trials`, shown, (width, height) => {
    const values = shown.map(({ best }) => best);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (index) => MARGIN.left + ((width - MARGIN.left - MARGIN.right) * (index + 0.5)) / shown.length;
    const y = (value) =>
      MARGIN.top + (height - MARGIN.top - MARGIN.bottom) * (high === low ? 0.5 : (high - value) / (high - low));
    const parts = ticks(low, high).flatMap((value) => [
      svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value), class: "rule" }),
      label(numberText(value), MARGIN.left - 8, y(value) + 4, "end"),
    ]);
    let best = null;
    const steps = shown.map(({ best: value }, index) => {
      best = best === null ? value : data.smallerIsBetter ? Math.min(best, value) : Math.max(best, value);
      return `${index ? "L" : "M"}${x(index).toFixed(1)} ${y(best).toFixed(1)}`;
    });
    parts.push(svg("path", { d: steps.join(""), class: "best-line" }));
    shown.forEach((trial, index) => {
      const dot = svg(
        "circle",
        {
          cx: x(index).toFixed(1),
          cy: y(trial.best).toFixed(1),
          r: 4,
          style: `fill: var(${KINDS[trial.kind] ?? "--faint"})`,
        },
        [svg("title", {}, [`Trial ${trial.id}: ${metricText(trial.best)}, ${trial.state}`])],
      );
      parts.push(svg("a", { href: `/trials/${trial.id}` }, [dot]));
    });
    parts.push(label("trials, in the order of their ends; colours are states", width / 2, height - 8));
    return parts;
  });
}

function drawParallel() {
  const all = axesOf(data);
  const wrap = (line, trial) => {
    line.addEventListener("pointerenter", () => board.highlight(trial.id));
    line.addEventListener("pointerleave", () => board.highlight(null));
    return svg("a", { href: `/trials/${trial.id}` }, [line]);
  };
  parallel(place("parallel"), data, all, visible(), { colorOf, wrap, above: grips });
  return chosenBy(all);
}

// The chosen range of an axis, and where it is dragged.
function grips(one, x, y, [top, bottom]) {
  const range = brushes.get(one.name);
  const mark = svg("rect", {
    x: x - 6,
    width: 12,
    y: range ? y(range[1]) : top,
    height: range ? y(range[0]) - y(range[1]) : 0,
    class: "brush",
  });
  const grip = svg("rect", { x: x - 12, width: 24, y: top - 8, height: bottom - top + 16, class: "grip" }, [
    svg("title", {}, [`Drag to choose values of ${one.name}`]),
  ]);
  grip.dataset.axis = one.name;
  const fraction = (clientY) =>
    Math.min(1, Math.max(0, (bottom - (clientY - grip.ownerSVGElement.getBoundingClientRect().top)) / (bottom - top)));
  grip.addEventListener("pointerdown", (event) => brush(event, one, mark, fraction, y));
  return [mark, grip];
}

function brush(event, one, mark, fraction, y) {
  event.preventDefault();
  const grip = event.currentTarget;
  grip.setPointerCapture(event.pointerId);
  const from = fraction(event.clientY);
  let range = null;
  isBrushing = true;
  const move = (now) => {
    const to = fraction(now.clientY);
    if (range === null && Math.abs(to - from) < 0.01) return;
    range = [Math.min(from, to), Math.max(from, to)];
    mark.setAttribute("y", y(range[1]));
    mark.setAttribute("height", y(range[0]) - y(range[1]));
  };
  const listening = new AbortController();
  const { signal } = listening;
  const end = () => {
    listening.abort();
    isBrushing = false;
    draw();
  };
  const choose = () => {
    if (range === null) brushes.delete(one.name);
    else brushes.set(one.name, range);
    end();
  };
  grip.addEventListener("pointermove", move, { signal });
  grip.addEventListener("pointerup", choose, { signal });
  // The browser has taken the gesture for another one: the former range stays.
  grip.addEventListener("pointercancel", end, { signal });
}

// Returns the trials that the list and the brushes choose, fades the others, and filters the list and the table of trials.
function chosenBy(all) {
  const shown = visible();
  const chosen = new Set(
    shown
      .filter((trial) =>
        all.every((one) => {
          const range = brushes.get(one.name);
          if (range === undefined) return true;
          const value = one.read(trial);
          return value !== null && value !== undefined && one.at(value) >= range[0] && one.at(value) <= range[1];
        }),
      )
      .map(({ id }) => id),
  );
  for (const line of place("parallel").querySelectorAll(".trial-line"))
    line.classList.toggle("off", !chosen.has(Number(line.dataset.trial)));
  // The last axis is that of the metric, which nobody chooses beforehand.
  const ranges = all
    .slice(0, -1)
    .filter(({ name }) => brushes.has(name))
    .map(({ name, inside }) => [name, inside(brushes.get(name))]);
  document.dispatchEvent(new CustomEvent("ranges-chosen", { detail: Object.fromEntries(ranges) }));
  list?.narrow(brushes.size ? chosen.union(board.hidden) : null);
  const isPart = brushes.size > 0 || shown.length < data.trials.length;
  document.dispatchEvent(new CustomEvent("trials-chosen", { detail: isPart ? chosen : null }));
  return chosen;
}

// Plots outside of the view are drawn when they come near it.
const effects = new WeakMap();
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      effects.get(target)();
    }
  },
  { rootMargin: "400px" },
);

function drawEffects(chosen) {
  const shown = { ...data, trials: data.trials.filter(({ id }) => chosen.has(id)) };
  const logY = controls().elements.log_y.checked;
  const wrap = (mark, { id }, text) => {
    // Not a stop of the keyboard: the table has a link to each trial.
    const link = svg("a", { href: `/trials/${id}`, "aria-label": text, tabindex: "-1" }, [mark]);
    link.addEventListener("pointerenter", () => board.highlight(id));
    link.addEventListener("pointerleave", () => board.highlight(null));
    return link;
  };
  effectPlots(document.querySelector("[data-draw=effects]"), data.axes).forEach((plot, index) => {
    effects.set(plot, () => drawEffect(plot, shown, index, { colorOf, logY, wrap }));
    seen.unobserve(plot);
    seen.observe(plot);
  });
}

function drawTime() {
  const trials = new Map(
    visible()
      .filter(({ start }) => start !== null)
      .map((trial) => [trial.id, trial]),
  );
  const runs = data.runs.length
    ? data.runs.filter(({ trial, slots }) => trials.has(trial) && slots.length)
    : withoutSlots([...trials.values()]);
  const lanes = [...new Set(runs.flatMap(({ slots }) => slots))].sort((a, b) =>
    a.localeCompare(b, undefined, { numeric: true }),
  );
  place("time").style.height = `${Math.min(60 + 22 * lanes.length, 600)}px`;
  const [from, to] = [Math.min(...runs.map(({ start }) => start)), Math.max(...runs.map(({ end }) => end))];
  canvas("time", `${trials.size} trials over time`, runs, (width, height) => {
    const row = Math.min(22, (height - 40) / Math.max(lanes.length, 1));
    const left = data.runs.length ? Math.min(width / 4, 12 + 7 * Math.max(...lanes.map(({ length }) => length))) : 8;
    const x = (time) => left + ((width - 8 - left) * (time - from)) / (to - from || 1);
    const moment = (time) => momentText(new Date(1000 * time));
    const parts = runs.map(({ trial: id, start, end, slots }) => {
      const trial = trials.get(id);
      const title = `Trial ${id}: ${trial.state}, ${moment(start)} to ${moment(end)}`;
      const bars = slots.map((slot) =>
        svg(
          "rect",
          {
            x: x(start).toFixed(1),
            width: Math.max(2, x(end) - x(start) - 1).toFixed(1),
            y: 6 + lanes.indexOf(slot) * row,
            height: Math.max(2, row - 4),
            rx: 3,
            style: `fill: var(${KINDS[trial.kind] ?? "--faint"})`,
          },
          [svg("title", {}, [title])],
        ),
      );
      return svg("a", { href: `/trials/${id}` }, bars);
    });
    if (data.runs.length && row > 9)
      parts.push(...lanes.map((name, lane) => label(name, 4, 6 + lane * row + row / 2 + 2, "start")));
    parts.push(label(moment(from), left, height - 8, "start"), label(moment(to), width - 8, height - 8, "end"));
    return parts;
  });
}

// Trials that run outside of the master have no slots: each takes the first lane that is free.
function withoutSlots(trials) {
  const ends = [];
  return trials
    .sort((a, b) => a.start - b.start)
    .map(({ id, start, end }) => {
      let lane = ends.findIndex((time) => time <= start);
      if (lane < 0) lane = ends.length;
      ends[lane] = end;
      return { trial: id, start, end, slots: [String(lane)] };
    });
}

// Only the width matters: the page becomes longer when other parts are drawn.
let width = document.getElementById("main").clientWidth;
new ResizeObserver(([{ target }]) => {
  if (target.clientWidth === width) return;
  width = target.clientWidth;
  draw();
}).observe(document.getElementById("main"));
onTick(() => {
  if (timer !== null) return;
  timer = setTimeout(
    () => {
      timer = null;
      load();
    },
    Math.max(0, earliest - performance.now()),
  );
});
setTimeout(load);
