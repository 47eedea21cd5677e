// The axes of cards: ticks in units that are read at a glance, and as much room as their labels need.

import { durationText } from "./formats.js";

/** @type {[number, string][]} Seconds of each unit of time, and its sign. */
const TIMES = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];
const TIME_STEPS = [
  ...[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => 60 * minutes),
  ...[1, 2, 3, 6, 12].map((hours) => 3600 * hours),
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map((days) => 86400 * days),
];
const PREFIXES = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
const LEAST_WIDTH = 58;

// An axis of seconds.
export const timeAxis = {
  incrs: TIME_STEPS,
  values: (plot, ticks, _index, _space, step) => {
    if (plot.scales.x.distr === 3)
      return ticks.map((value) => (value === null ? null : timeTick(value, unitOf(value, value))));
    const unit = unitOf(Math.max(...ticks.map(Math.abs)), step);
    return ticks.map((value) => timeTick(value, unit));
  },
};

// Returns the largest unit of which there are at least two, and in which steps have few decimals.
const unitOf = (last, step) =>
  TIMES.find(([size]) => Math.abs(last) >= 2 * size && Number.isInteger((100 * step) / size)) ?? TIMES.at(-1);

const timeTick = (value, [size, name]) => (value === 0 ? "0" : `${plain(value / size)} ${name}`);

// A moment of a run.
export const timeText = (value) =>
  Math.abs(value) < 60 ? `${plain(Number(value.toPrecision(3)))} s` : durationText(value);

// An axis of bytes: all ticks have the unit of the largest.
export const bytesAxis = (unit) => ({
  incrs: (_plot, _index, low, high) => {
    const size = 1024 ** power(Math.max(Math.abs(low), Math.abs(high)));
    return Array.from({ length: 9 }, (_, tens) => [1, 2, 5].map((one) => one * 10 ** (tens - 4) * size)).flat();
  },
  values: (_plot, ticks) => {
    const at = power(Math.max(...ticks.map((value) => Math.abs(value ?? 0))));
    return ticks.map((value) =>
      value === null ? null : value === 0 ? "0" : `${plain(value / 1024 ** at)} ${PREFIXES[at]}${unit}`,
    );
  },
});

export function bytesText(value, unit) {
  const at = power(Math.abs(value));
  return `${Number((value / 1024 ** at).toPrecision(4))} ${PREFIXES[at]}${unit}`;
}

const power = (size) => Math.min(PREFIXES.length - 1, size < 1024 ? 0 : Math.floor(Math.log2(size) / 10));

const plain = (value) => String(Number(value.toPrecision(6)));

// Ticks of any other number: with as many digits as make them differ.
export function numberTicks(ticks) {
  const known = ticks.filter((value) => value !== null && value !== undefined);
  let texts = [];
  for (let digits = 1; digits <= 8; digits += 1) {
    texts = ticks.map((value) => short(value, digits));
    if (new Set(texts.filter(Boolean)).size === new Set(known).size) break;
  }
  return texts;
}

export function short(value, digits = 1) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(digits).replace(/\.?0*e/, "e");
  return Number(value.toPrecision(5 + digits)).toLocaleString("en", { maximumFractionDigits: 5 + digits });
}

// The width of a vertical axis. uPlot asks again until nothing changes; the first answer counts.
export function widthOf(plot, texts, index, cycle) {
  const axis = plot.axes[index];
  if (cycle > 1) return axis._size;
  plot.ctx.font = axis.font[0];
  const widest = Math.max(0, ...(texts ?? []).map((text) => plot.ctx.measureText(text ?? "").width));
  return Math.max(LEAST_WIDTH, Math.ceil(widest / devicePixelRatio + axis.ticks.size + axis.gap + 4));
}
