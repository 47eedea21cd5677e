// Draws the figures of a report from the data in the page, with the modules of the pages.

import { Card } from "./card.js";
import { runColor, scale, viridis } from "./colors.js";
import { drawEffect, effectPlots } from "./effects.js";
import { element } from "./elements.js";
import { metricText } from "./formats.js";
import { showLegend } from "./legend.js";
import { axesOf, drawParallel } from "./parallel.js";
import { areaOf, dot, drawIn, frame, valueAxis } from "./svg.js";
import { localize } from "./times.js";

const MARGIN = { left: 72, right: 24, top: 16, bottom: 44 };

// What a card asks of the wall around it.
class Board {
  constructor({ spec, x, logX, range, baseline, runs, curves }) {
    this.isFixed = true;
    this.baseline = baseline;
    this.highlighted = null;
    this.runs = new Map(runs.map((id) => [id, { id }]));
    this.given = range;
    this.range = range;
    this.text = JSON.stringify(curves);
    this.shown = { x, logX, logY: false, groupBy: "" };
    this.card = new Card(this, spec);
    // Also for paper.
    this.card.isNear = true;
  }

  settings() {
    return this.shown;
  }

  axisName() {
    return { time: "seconds", batches: "batch", epochs: "epoch" }[this.shown.x];
  }

  isOverTime() {
    return this.shown.x === "time";
  }

  hasAxis() {
    return true;
  }

  rangeOf() {
    return this.range;
  }

  setRange(range) {
    this.range = range ?? this.given;
    this.redraw();
  }

  async lines() {
    return this.text;
  }

  loaded() {}

  scaleOf() {
    return null;
  }

  nameOf(id) {
    return `Trial ${id}`;
  }

  color(id) {
    return runColor(id);
  }

  highlight(id) {
    if (id === this.highlighted) return;
    this.highlighted = id;
    this.card.highlight(id);
  }

  redraw() {
    this.card.key = "";
    this.card.draw();
  }
}

// Colours of trials: the best is yellow.
function ranked({ trials, smallerIsBetter }) {
  const sign = smallerIsBetter ? 1 : -1;
  const known = trials.filter(({ value }) => value !== null).sort((a, b) => sign * (a.value - b.value));
  const ranks = new Map(known.map(({ id }, index) => [id, 1 - index / Math.max(known.length - 1, 1)]));
  return (id) => viridis(ranks.get(id) ?? 0);
}

// Each kind of figure fills an element, and returns what draws it again: in another theme, or at another width.
const KINDS = {
  curves(target, data) {
    const board = new Board(data);
    board.card.heading.remove();
    target.replaceChildren(board.card.root);
    board.card.load();
    return () => board.redraw();
  },

  effects(target, data) {
    target.classList.add("effects");
    const plots = effectPlots(target, data.axes);
    const colorOf = ranked(data);
    const draw = () => plots.forEach((plot, index) => drawEffect(plot, data, index, { colorOf }));
    draw();
    return draw;
  },

  parallel(target, data) {
    const drawing = element("div", { className: "drawing tall" });
    target.replaceChildren(drawing);
    const draw = () => drawParallel(drawing, data, axesOf(data), [...data.trials], { colorOf: ranked(data) });
    draw();
    return draw;
  },

  rungs(target, { metric, unit, results }) {
    const names = [...new Set(results.map(({ bracket }) => `bracket ${bracket}`))];
    const brackets = scale(names);
    const legend = element("ul", { className: "legend" });
    const drawing = element("div", { className: "drawing" });
    target.classList.add("scatter");
    target.replaceChildren(legend, drawing);
    const draw = () => {
      const items = names.length > 1 ? names.map((name) => ({ name, color: brackets.color(name) })) : [];
      showLegend(legend, { scale: null, items });
      drawIn(drawing, `${metric} at the rungs`, results, (width, height) => {
        const area = areaOf(width, height, MARGIN);
        const lengths = [...new Set(results.map(({ length }) => length))].sort((a, b) => a - b);
        const x = valueAxis(lengths, area.left, area.right, "log");
        x.labels = lengths.map((length) => [String(length), x.at(length)]);
        const values = results.map(({ value }) => value);
        const y = valueAxis(values, area.bottom, area.top, "linear");
        const points = results.map(({ bracket, length, id, value }) =>
          dot(
            x.at(length),
            y.at(value),
            brackets.color(`bracket ${bracket}`),
            `Trial ${id}: ${metricText(value)} at ${length} ${unit}`,
          ),
        );
        return [...frame(x, y, { x: `rung (${unit})`, y: metric }, area), ...points];
      });
    };
    draw();
    return draw;
  },
};

localize(document);
const drawn = [...document.querySelectorAll("[data-report-figure]")].map((target) => {
  const figure = JSON.parse(document.getElementById(target.dataset.reportFigure).textContent);
  const [[kind, data]] = Object.entries(figure);
  return KINDS[kind](target, data);
});
const again = () => drawn.forEach((draw) => draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
// Only the width matters: cards follow the size of their elements themselves.
let { clientWidth } = document.body;
new ResizeObserver(() => {
  if (document.body.clientWidth === clientWidth) return;
  clientWidth = document.body.clientWidth;
  again();
}).observe(document.body);
