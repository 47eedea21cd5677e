// Parts of plots that pages draw as SVG from data.

import { scale } from "./colors.js";
import { element, svg } from "./elements.js";
import { numberText } from "./formats.js";

export { svg };

const PAD = 0.06;
// Labels that would touch the one before are left out.
const LABEL_WIDTH = 34;

// Draws in an element; `children(width, height)` returns the content. Without trials it says so.
export function drawIn(target, name, trials, children) {
  if (trials.length === 0) {
    target.replaceChildren(element("p", { className: "faint", textContent: "No trial is shown." }));
    return;
  }
  const { clientWidth: width, clientHeight: height } = target;
  const made = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": name });
  made.append(...children(width, height));
  target.replaceChildren(made);
}

export function label(content, x, y, anchor = "middle") {
  return svg("text", { x, y, "text-anchor": anchor, class: "tick" }, [String(content)]);
}

export function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step)
    found.push(Number(value.toPrecision(12)));
  return found;
}

export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// The part of a drawing inside of its margin.
export const areaOf = (width, height, { left, right, top, bottom }) => ({
  left,
  right: width - right,
  top,
  bottom: height - bottom,
});

// An axis from values to places. Its kind is "log", "linear" or "category"; without one, that of the values: logarithmic
// if positive values span decades, or of texts.
export function valueAxis(values, from, to, kind = "") {
  const known = scale(kind === "category" ? values.map(String) : values);
  const place = (fraction) => from + (to - from) * (PAD + (1 - 2 * PAD) * fraction);
  if (known.kinds !== undefined) {
    const fraction = (kind) =>
      known.kinds.length === 1 ? 0.5 : known.kinds.indexOf(String(kind)) / (known.kinds.length - 1);
    return {
      kinds: known.kinds,
      at: (value) => place(fraction(value)),
      labels: known.kinds.map((kind) => [kind, place(fraction(kind))]),
    };
  }
  const { low, high } = known;
  const isLog = kind === "" ? known.isLog : kind === "log" && low > 0;
  const bend = isLog ? Math.log10 : (value) => value;
  const fraction = (value) => (high === low ? 0.5 : (bend(value) - bend(low)) / (bend(high) - bend(low)));
  const marks = isLog ? [...new Set([low, ...decades(low, high), high])] : ticks(low, high);
  return {
    at: (value) => place(fraction(value)),
    fraction,
    placeOf: place,
    isLog,
    labels: marks.map((value) => [numberText(value), place(fraction(value))]),
  };
}

const decades = (low, high) =>
  Array.from(
    { length: Math.max(0, Math.floor(Math.log10(high)) - Math.ceil(Math.log10(low)) + 1) },
    (_, index) => 10 ** (Math.ceil(Math.log10(low)) + index),
  );

// The rules, labels and names of two axes around an area.
export function frame(x, y, names, { left, right, top, bottom }) {
  const title = label(cut(names.y, 40), 14, (top + bottom) / 2);
  title.setAttribute("transform", `rotate(-90 14 ${(top + bottom) / 2})`);
  const across = [];
  for (const pair of x.labels) if (across.length === 0 || pair[1] - across.at(-1)[1] > LABEL_WIDTH) across.push(pair);
  return [
    ...across.flatMap(([text, at]) => [
      svg("line", { x1: at, x2: at, y1: top, y2: bottom, class: "rule" }),
      label(cut(text, 10), at, bottom + 16),
    ]),
    ...y.labels.flatMap(([text, at]) => [
      svg("line", { x1: left, x2: right, y1: at, y2: at, class: "rule" }),
      label(cut(text, 9), left - 6, at + 4, "end"),
    ]),
    label(`${cut(names.x, 40)}${x.isLog ? " (log)" : ""}`, (left + right) / 2, bottom + 36),
    title,
  ];
}

// A point with its tooltip; a ring is a point of another kind.
export function dot(x, y, color, text, { isRing = false } = {}) {
  const made = svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 5, class: isRing ? "point ring" : "point" }, [
    svg("title", {}, [text]),
  ]);
  made.style[isRing ? "stroke" : "fill"] = color;
  return made;
}
