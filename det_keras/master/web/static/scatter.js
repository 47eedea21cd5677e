// The scatter plot of two columns of runs, shaded by a third: hyperparameters, metrics, durations. On top of the points it
// draws the Pareto front of the two, or beneath them the third between the points.

import { scale, viridis } from "./colors.js";
import { numberText } from "./formats.js";
import { showLegend } from "./legend.js";
import { variedNames } from "./runlist.js";
import { bindForm, setting } from "./settings.js";
import { areaOf, dot, drawIn, frame, svg, valueAxis } from "./svg.js";

const MARGIN = { left: 72, right: 24, top: 16, bottom: 44 };
const CELLS = 48;
const LEVELS = 10;
const FRONT = "front";
const CONTOUR = "contour";

export class Scatter {
  // `board` highlights runs, gives them colours, and says by `scattered()` which are drawn.
  constructor(root, board) {
    this.board = board;
    this.form = root.querySelector("form");
    this.target = root.querySelector("[data-scatter-plot]");
    this.legend = root.querySelector(".legend");
    this.told = root.querySelector("[role=status]");
    this.isBound = false;
    // On a wall it is drawn when it is opened.
    this.details = root.closest("details");
    this.details?.addEventListener("toggle", () => this.draw());
    new ResizeObserver(() => this.target.clientWidth !== this.width && this.draw()).observe(this.target);
  }

  // Offers the columns of the runs, those that are chosen in the page's address chosen, and draws.
  update(runs, metric) {
    const columns = columnsOf(runs, metric);
    const names = [...columns.keys()];
    const { across, up, shade } = this.form.elements;
    const best = names.find((name) => name.startsWith("best ")) ?? names[0];
    this.columns = columns;
    offer(across, names);
    offer(up, [best, ...names.filter((name) => name !== best)]);
    offer(shade, ["", ...names]);
    if (!this.isBound) {
      bindForm(this.form, () => this.draw());
      if (this.details !== null && ["across", "up", "shade", "draw"].some((name) => setting(name) !== ""))
        this.details.open = true;
    }
    this.isBound = true;
    this.draw();
  }

  draw() {
    if (!this.isBound || this.details?.open === false || this.target.clientWidth === 0) return;
    this.width = this.target.clientWidth;
    const { across, up, shade, draw, across_better: acrossBetter, up_better: upBetter } = this.form.elements;
    for (const field of [acrossBetter, upBetter]) field.parentElement.hidden = draw.value !== FRONT;
    const read = (name) => this.columns.get(name) ?? (() => undefined);
    const points = this.board
      .scattered()
      .map((run) => ({
        run,
        x: read(across.value)(run),
        y: read(up.value)(run),
        z: shade.value ? read(shade.value)(run) : undefined,
      }))
      .filter(({ x, y }) => isValue(x) && isValue(y));
    const shades = shade.value ? scale(points.map(({ z }) => z).filter(isValue)) : null;
    const isScale = shades !== null && shades.kinds === undefined;
    showLegend(this.legend, {
      name: shade.value,
      scale: isScale ? shades : null,
      items: shades?.kinds?.map((kind) => ({ name: kind, color: shades.color(kind) })) ?? [],
    });
    const names = { x: across.value, y: up.value, z: shade.value };
    const front = draw.value === FRONT ? paretoFront(points, acrossBetter.value, upBetter.value) : null;
    this.told.textContent = this.tell(points, front, draw.value === CONTOUR ? isScale : null);
    drawIn(this.target, `${names.y} against ${names.x} of ${points.length} trials`, points, (width, height) => {
      const area = areaOf(width, height, MARGIN);
      const x = valueAxis(
        points.map((point) => point.x),
        area.left,
        area.right,
      );
      const y = valueAxis(
        points.map((point) => point.y),
        area.bottom,
        area.top,
      );
      const parts = [];
      if (draw.value === CONTOUR && isScale) parts.push(...contour(points, x, y, shades));
      parts.push(...frame(x, y, names, area));
      if (front?.length) parts.push(svg("path", { d: staircase(front, x, y, upBetter.value), class: "front-line" }));
      const best = new Set(front?.map(({ run }) => run.id));
      parts.push(...points.map((point) => this.point(point, x, y, names, shades, best.has(point.run.id))));
      return parts;
    });
    this.target.dataset.points = points.length;
  }

  tell(points, front, hasScale) {
    if (hasScale === false) return "Contours need a column of numbers to shade by.";
    if (front !== null) return `${front.length} of ${points.length} trials are on the front.`;
    const left = this.board.scattered().length - points.length;
    return left ? `${left} trial${left === 1 ? " has" : "s have"} no value in both columns.` : "";
  }

  point({ run, x: across, y: up, z }, x, y, names, shades, isBest) {
    const values = [[names.x, across], [names.y, up], ...(names.z ? [[names.z, z]] : [])];
    const text = `${run.name}: ${values.map(([name, value]) => `${name} ${numberText(value ?? null)}`).join(", ")}${isBest ? ", on the front" : ""}`;
    const mark = dot(x.at(across), y.at(up), shades === null ? this.board.pointColor(run.id) : shades.color(z), text);
    if (isBest) {
      mark.setAttribute("r", "7");
      mark.classList.add("front");
    }
    const link = svg("a", { href: `/trials/${run.id}`, "aria-label": text }, [mark]);
    link.addEventListener("pointerenter", () => this.board.highlight(run.id));
    link.addEventListener("pointerleave", () => this.board.highlight(null));
    return link;
  }
}

const isValue = (value) =>
  value !== null && value !== undefined && !(typeof value === "number" && !Number.isFinite(value));

// Returns the columns of runs as functions from a run to its value, by name: those that differ, and the metrics.
export function columnsOf(runs, metric) {
  const columns = new Map(variedNames(runs).map((name) => [name, (run) => plain(run.hparams[name])]));
  columns.set(`best ${metric}`, (run) => run.best);
  for (const name of [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].sort())
    columns.set(`last ${name}`, (run) => run.metrics[name]);
  columns.set("batches", (run) => run.batches);
  columns.set("duration (s)", (run) => run.duration);
  return columns;
}

const plain = (value) => (typeof value === "boolean" ? String(value) : value);

function offer(select, names) {
  const chosen = select.value;
  const known = [...select.options].map((option) => option.value);
  if (names.length === known.length && names.every((name, index) => name === known[index])) return;
  select.replaceChildren(...names.map((name) => new Option(name || "runs", name)));
  select.value = names.includes(chosen) ? chosen : names[0];
}

// Returns the points that no other beats in both values, ordered by x. Each direction is "larger", or smaller is better.
export function paretoFront(points, xBetter, yBetter) {
  const cost = (value, better) => (better === "larger" ? -value : value);
  const numbers = points.filter(({ x, y }) => typeof x === "number" && typeof y === "number");
  const ordered = numbers
    .map((point) => ({ point, a: cost(point.x, xBetter), b: cost(point.y, yBetter) }))
    .sort((one, two) => one.a - two.a || one.b - two.b);
  let least = Infinity;
  let at = null;
  const front = ordered.filter(({ a, b }) => {
    // Of equal points none beats the other.
    if (b > least || (b === least && a !== at)) return false;
    [least, at] = [b, a];
    return true;
  });
  return front.map(({ point }) => point).sort((one, two) => one.x - two.x);
}

// The border of what the front beats: it keeps the worse of two neighbours until the better one begins.
function staircase(front, x, y, yBetter) {
  const places = front.map((point) => [x.at(point.x), y.at(point.y)]);
  const isBetter = (one, two) => (yBetter === "larger" ? two.y > one.y : two.y < one.y);
  return places
    .map(([across, up], index) => {
      if (index === 0) return `M${across} ${up}`;
      return isBetter(front[index - 1], front[index]) ? `H${across}V${up}` : `V${up}H${across}`;
    })
    .join("");
}

// Returns the value at a place between points, by Shepard's inverse distance weighting; at a point it is the point's.
// Source: Shepard, "A two-dimensional interpolation function for irregularly-spaced data", ACM 1968.
export function interpolated(points, x, y) {
  let [sum, weights] = [0, 0];
  for (const point of points) {
    const squared = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (squared === 0) return point.z;
    const weight = 1 / squared ** 1.5;
    sum += weight * point.z;
    weights += weight;
  }
  return sum / weights;
}

// Bands of the third column between the points, over the two others as they are drawn.
function contour(points, x, y, shades) {
  const known = points.filter(({ z }) => isValue(z));
  if (known.length < 3 || x.fraction === undefined || y.fraction === undefined) return [];
  const bend = shades.isLog ? Math.log : (value) => value;
  const [low, high] = [bend(shades.low), bend(shades.high)];
  const placed = known.map((point) => ({
    x: x.fraction(point.x),
    y: y.fraction(point.y),
    z: high === low ? 0.5 : (bend(point.z) - low) / (high - low),
  }));
  const level = (column, row) =>
    Math.min(LEVELS - 1, Math.floor(LEVELS * interpolated(placed, (column + 0.5) / CELLS, (row + 0.5) / CELLS)));
  const parts = [];
  for (let row = 0; row < CELLS; row += 1) {
    const levels = Array.from({ length: CELLS }, (_, column) => level(column, row));
    // Neighbours of one level are one part.
    levels.forEach((one, column) => {
      if (column > 0 && one === levels[column - 1]) parts.at(-1).end = column + 1;
      else parts.push({ row, begin: column, end: column + 1, level: one });
    });
  }
  return parts.map((part) => {
    const [left, right] = [part.begin / CELLS, part.end / CELLS].map((fraction) => x.placeOf(fraction));
    const [bottom, top] = [part.row / CELLS, (part.row + 1) / CELLS].map((fraction) => y.placeOf(fraction));
    const cell = svg("rect", {
      x: left.toFixed(1),
      y: top.toFixed(1),
      width: (right - left + 0.5).toFixed(1),
      height: (bottom - top + 0.5).toFixed(1),
      class: "cell",
    });
    cell.style.fill = viridis((part.level + 0.5) / LEVELS);
    return cell;
  });
}
