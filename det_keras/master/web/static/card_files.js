// The files of a card: a picture, a drawing, a table.

import { csv } from "./downloads.js";

const MARGIN = { left: 64, right: 16, top: 34, bottom: 34 };
const DASHES = { solid: "", dashed: "7 4", dotted: "2 3" };

const SWATCH = 10;
const LEGEND_ROW = 16;

// Returns the groups of a card with their places in rows as wide as the picture, and the height of these rows.
function legend(card, width) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "11px sans-serif";
  let [x, y] = [10, 0];
  const items = card.groups.map((group) => {
    const wide = SWATCH + 5 + pen.measureText(group.name).width + 14;
    if (x > 10 && x + wide > width) [x, y] = [10, y + LEGEND_ROW];
    const item = { ...group, x, y };
    x += wide;
    return item;
  });
  return { items, height: items.length ? y + LEGEND_ROW : 0 };
}

export async function pngFile(card) {
  const source = card.plot.ctx.canvas;
  const scale = source.width / card.size().width;
  const canvas = document.createElement("canvas");
  canvas.width = source.width;
  const { items, height } = legend(card, card.size().width);
  const top = 28 + height;
  canvas.height = source.height + top * scale;
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  context.fillStyle = style.getPropertyValue("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = style.getPropertyValue("--text");
  context.font = `600 ${14 * scale}px system-ui, sans-serif`;
  context.fillText(card.spec.title, 10 * scale, 20 * scale);
  context.font = `${11 * scale}px system-ui, sans-serif`;
  for (const { name, color, x, y } of items) {
    context.fillStyle = color;
    context.fillRect(x * scale, (28 + y) * scale, SWATCH * scale, SWATCH * scale);
    context.fillStyle = style.getPropertyValue("--text");
    context.fillText(name, (x + SWATCH + 5) * scale, (28 + y + SWATCH - 1) * scale);
  }
  await card.unlit((drawn) => context.drawImage(drawn, 0, top * scale));
  return { blob: await new Promise((resolve) => canvas.toBlob(resolve, "image/png")), extension: "png" };
}

export async function csvFile(card) {
  const axis = card.wall.axisName(card.spec);
  const [x, ...curves] = card.plot.data;
  const isGrouped = card.bands.length > 0;
  const rows = [isGrouped ? ["group", "metric", axis, "mean", "deviation"] : ["run", "metric", axis, "value"]];
  card.lines.forEach((line, index) => {
    if (line.isRaw || line.isEdge) return;
    // Behind the mean of a group are the edges of its band.
    const more = (at) => (isGrouped ? [curves[index + 1][at] - line.y[at]] : []);
    const names = [line.group ?? card.wall.nameOf(line.trial), card.spec.source ? line.label : line.metric];
    line.y.forEach((value, at) => value === undefined || rows.push([...names, x[at], value === null ? "NaN" : value, ...more(at)]));
  });
  return { blob: csv(rows), extension: "csv" };
}

export async function svgFile(card) {
  const { width, height: shownHeight } = card.size();
  const { plot } = card;
  const marks = legend(card, width);
  const height = shownHeight + marks.height;
  const top = MARGIN.top + marks.height;
  // Labels of the vertical axis may be wide.
  const left = Math.max(MARGIN.left, plot.axes[1]._size + 6);
  const inner = { width: width - left - MARGIN.right, height: shownHeight - MARGIN.top - MARGIN.bottom };
  const place = (name, length) => (value) => (plot.valToPos(value, name) / (name === "x" ? plot.bbox.width : plot.bbox.height)) * devicePixelRatio * length;
  const [toX, toY] = [place("x", inner.width), place("y", inner.height)];
  const text = (content, x, y, anchor = "middle", more = "") => `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}"${more}>${escaped(content)}</text>`;
  const parts = [`<rect width="${width}" height="${height}" fill="white"/>`, text(card.spec.title, left, 20, "start", ' font-weight="600" font-size="13"')];
  plot.axes.forEach((axis, side) => {
    (axis._splits ?? []).forEach((value, index) => {
      const label = axis._values?.[index];
      if (value === null || label === null || label === undefined) return;
      const at = side === 0 ? left + toX(value) : top + toY(value);
      const [x1, y1, x2, y2] = side === 0 ? [at, top, at, top + inner.height] : [left, at, left + inner.width, at];
      parts.push(`<line x1="${x1.toFixed(1)}" y1="${y1.toFixed(1)}" x2="${x2.toFixed(1)}" y2="${y2.toFixed(1)}" stroke="#e4e7ec"/>`);
      parts.push(side === 0 ? text(label, at, height - 14) : text(label, left - 6, at + 4, "end"));
    });
  });
  const pen = document.createElement("canvas").getContext("2d");
  const painted = (color) => {
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
    return `rgb(${red} ${green} ${blue})`;
  };
  const colorOf = (index) => painted(plot.series[index].stroke());
  for (const { name, color, x, y } of marks.items) {
    parts.push(`<rect x="${x.toFixed(1)}" y="${(28 + y).toFixed(1)}" width="${SWATCH}" height="${SWATCH}" fill="${painted(color)}"/>`, text(name, x + SWATCH + 5, 28 + y + SWATCH - 1, "start"));
  }
  const point = (at, value) => `${(left + toX(plot.data[0][at])).toFixed(1)} ${(top + toY(value)).toFixed(1)}`;
  for (const { series } of card.bands) {
    const [high, low] = series.map((index) => plot.data[index].flatMap((value, at) => (typeof value === "number" ? [point(at, value)] : [])));
    parts.push(`<path d="M${[...high, ...low.reverse()].join("L")}Z" fill="${colorOf(series[0])}" fill-opacity="0.18"/>`);
  }
  plot.data.slice(1).forEach((values, index) => {
    const line = card.lines[index];
    if (line.isEdge) return;
    const strokes = [[]];
    values.forEach((value, at) => {
      if (value === null) strokes.push([]);
      else if (value !== undefined) strokes.at(-1).push(point(at, value));
    });
    const look = `fill="none" stroke="${colorOf(index + 1)}" stroke-width="1.5" stroke-dasharray="${DASHES[line.dash]}" opacity="${line.isRaw ? 0.3 : 1}"`;
    for (const points of strokes) if (points.length) parts.push(`<path d="M${points.join("L")}" ${look}><title>${escaped(line.label)}</title></path>`);
  });
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif" font-size="11" fill="#444">${parts.join("")}</svg>`;
  return { blob: new Blob([svg], { type: "image/svg+xml" }), extension: "svg" };
}

const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
