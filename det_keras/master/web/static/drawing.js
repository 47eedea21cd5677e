// A card as SVG for papers: on white, with its title, the names of its axes, its legend, and the shown range. It is drawn
// from the data: a canvas has no paths. Text stays text, so that it can be searched and edited.

import { onPaper } from "./colors.js";
import { DASHES, ramp } from "./legend.js";

const FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";
const INK = "#444444";
const GRID = "#e4e7ec";
const SIZE = 11;
const TITLE_SIZE = 13;
const EDGE = 12;
const ROW = 17;
const MARK = 24;
const SWATCH = 10;
const RAMP = 120;
const MOST_ITEMS = 40;
const MOST_CHARACTERS = 70;
const FEW_POINTS = 3;

const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

// Characters that no XML may have, such as those of a terminal, are left out.
const escaped = (content) =>
  String(content)
    .replace(/[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu, "")
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");

const clipped = (content) => (content.length > MOST_CHARACTERS ? `${content.slice(0, MOST_CHARACTERS - 1)}…` : content);
const place = (value) => String(Number(value.toFixed(2)));

function tag(name, attributes, content = "") {
  const written = Object.entries(attributes).map(
    ([key, value]) => ` ${key}="${escaped(typeof value === "number" ? place(value) : value)}"`,
  );
  return `<${name}${written.join("")}${content === "" ? "/>" : `>${content}</${name}>`}`;
}

const text = (content, x, y, attributes = {}) => tag("text", { x, y, ...attributes }, escaped(clipped(content)));

// Viewers know few forms of colours.
function paint(color) {
  pen.fillStyle = onPaper(color);
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  return `rgb(${red},${green},${blue})`;
}

function widthOf(content) {
  pen.font = `${SIZE}px ${FONT}`;
  return pen.measureText(clipped(content)).width;
}

// Returns the SVG of a card as text, with its size.
export function drawing(card) {
  const { plot, spec } = card;
  const inner = { width: plot.over.clientWidth, height: plot.over.clientHeight };
  const left = plot.axes[1]._size + EDGE + ROW;
  // Half of the last label is behind the end of the axis.
  const width = left + inner.width + 2 * EDGE;
  const legend = legendRows(card.meaning({ isWhole: true }), width);
  const top = EDGE + TITLE_SIZE + 8 + legend.height;
  const height = top + inner.height + plot.axes[0]._size + ROW;
  const toX = (value) => left + plot.valToPos(value, "x");
  const toY = (value) => top + plot.valToPos(value, "y");
  const area = { x: left, y: top, width: inner.width, height: inner.height };
  const parts = [
    tag("title", {}, escaped(spec.title)),
    tag("defs", {}, tag("clipPath", { id: "area" }, tag("rect", area)) + legend.defs),
    tag("rect", { width, height, fill: "#ffffff" }),
    text(spec.title, EDGE, EDGE + TITLE_SIZE - 2, { "font-size": TITLE_SIZE, "font-weight": "bold" }),
    tag("g", { transform: `translate(0 ${EDGE + TITLE_SIZE + 6})` }, legend.parts.join("") || " "),
    ...axes(card, area, toX, toY),
    tag(
      "g",
      { "clip-path": "url(#area)", fill: "none", "stroke-linejoin": "round" },
      [
        ...bands(card, toX, toY),
        ...card.lines.flatMap((line, index) => curve(line, plot.data, index + 1, toX, toY)),
      ].join("") || " ",
    ),
  ];
  const attributes = {
    xmlns: "http://www.w3.org/2000/svg",
    width,
    height,
    viewBox: `0 0 ${place(width)} ${place(height)}`,
    role: "img",
    "font-family": FONT,
    "font-size": SIZE,
    fill: INK,
  };
  return {
    svg: `<?xml version="1.0" encoding="UTF-8"?>\n${tag("svg", attributes, parts.join("\n"))}\n`,
    width,
    height,
  };
}

function axes({ plot, spec, wall }, { x, y, width, height }, toX, toY) {
  const labels = (axis) =>
    (axis._splits ?? []).flatMap((value, index) =>
      value === null || (axis._values?.[index] ?? null) === null ? [] : [[value, axis._values[index]]],
    );
  const across = labels(plot.axes[0]).flatMap(([value, label]) => [
    tag("line", { x1: toX(value), y1: y, x2: toX(value), y2: y + height, stroke: GRID }),
    text(label, toX(value), y + height + 15, { "text-anchor": "middle" }),
  ]);
  const up = labels(plot.axes[1]).flatMap(([value, label]) => [
    tag("line", { x1: x, y1: toY(value), x2: x + width, y2: toY(value), stroke: GRID }),
    text(label, x - 6, toY(value) + 4, { "text-anchor": "end" }),
  ]);
  const names = [...new Set(spec.metrics.map(({ name }) => name))].join(", ");
  const [middle, beside] = [y + height / 2, EDGE + SIZE - 2];
  return [
    ...across,
    ...up,
    text(wall.isOverTime(spec) ? "time" : wall.axisName(spec), x + width / 2, y + height + 33, {
      "text-anchor": "middle",
    }),
    text(spec.source ? spec.title : names, beside, middle, {
      "text-anchor": "middle",
      transform: `rotate(-90 ${place(beside)} ${place(middle)})`,
    }),
  ];
}

function bands({ bands: shown, plot, lines }, toX, toY) {
  const edge = (index) =>
    plot.data[index].flatMap((value, at) =>
      typeof value === "number" ? [`${place(toX(plot.data[0][at]))} ${place(toY(value))}`] : [],
    );
  return shown.map(({ series: [high, low] }) =>
    tag("path", {
      d: `M${[...edge(high), ...edge(low).reverse()].join("L")}Z`,
      fill: paint(lines[high - 1].color),
      "fill-opacity": "0.18",
    }),
  );
}

// The paths of a line, one for each part between gaps; few points are seen as dots, as on the page.
function curve(line, data, index, toX, toY) {
  if (line.isEdge) return [];
  const strokes = [[]];
  data[index].forEach((value, at) => {
    if (value === null) strokes.push([]);
    else if (value !== undefined) strokes.at(-1).push([toX(data[0][at]), toY(value)]);
  });
  const color = paint(line.color);
  const points = strokes.flat();
  const dots = (points.length < FEW_POINTS ? points : strokes.filter(({ length }) => length === 1).flat()).map(
    ([cx, cy]) => tag("circle", { cx, cy, r: 3, fill: color }),
  );
  const dash = DASHES[line.dash].length ? { "stroke-dasharray": DASHES[line.dash].join(" ") } : {};
  const look = {
    stroke: color,
    "stroke-width": line.width,
    ...dash,
    ...(line.isRaw ? { "stroke-opacity": "0.3" } : {}),
  };
  const title = tag("title", {}, escaped(line.label));
  return [
    ...strokes
      .filter(({ length }) => length > 1)
      .map((stroke) =>
        tag("path", { d: `M${stroke.map(([x, y]) => `${place(x)} ${place(y)}`).join("L")}`, ...look }, title),
      ),
    ...dots,
  ];
}

// The legend in rows as wide as the drawing.
function legendRows({ name, scale, items }, width) {
  let [x, y] = [EDGE, 0];
  const next = (wide) => {
    if (x > EDGE && x + wide > width - EDGE) [x, y] = [EDGE, y + ROW];
    x += wide;
    return x - wide;
  };
  const parts = [];
  let defs = "";
  if (scale) {
    const { low, high, colors } = ramp(scale);
    defs = tag(
      "linearGradient",
      { id: "scale" },
      colors
        .map((color, index) => tag("stop", { offset: String(index / (colors.length - 1)), "stop-color": paint(color) }))
        .join(""),
    );
    const begin = `${clipped(name)}: ${low}`;
    const at = next(widthOf(begin) + RAMP + widthOf(high) + 26);
    const from = at + widthOf(begin) + 6;
    parts.push(
      text(begin, at, y + 11),
      tag("rect", { x: from, y: y + 3, width: RAMP, height: 8, fill: "url(#scale)" }),
      text(high, from + RAMP + 6, y + 11),
    );
  } else if (name) parts.push(text(`${name}:`, next(widthOf(`${name}:`) + 8), y + 11));
  const shown = items.slice(0, MOST_ITEMS);
  for (const item of shown) {
    const mark = item.dash === undefined ? SWATCH : MARK;
    const at = next(mark + 5 + widthOf(item.name) + 14);
    parts.push(legendMark(item, at, y), text(item.name, at + mark + 5, y + 11));
  }
  if (items.length > shown.length) parts.push(text(`and ${items.length - shown.length} more`, next(80), y + 11));
  return { parts, defs, height: parts.length ? y + ROW + 4 : 0 };
}

function legendMark({ color = INK, dash }, x, y) {
  if (dash === undefined) return tag("rect", { x, y: y + 2, width: SWATCH, height: SWATCH, fill: paint(color) });
  const pattern = DASHES[dash].length ? { "stroke-dasharray": DASHES[dash].join(" ") } : {};
  return tag("line", {
    x1: x,
    y1: y + 7,
    x2: x + MARK,
    y2: y + 7,
    stroke: paint(color),
    "stroke-width": 2,
    ...pattern,
  });
}
