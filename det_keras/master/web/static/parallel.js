// Parallel coordinates: each trial of a search is a line through its hyperparameters to its metric.

import { metricText, numberText } from "./formats.js";
import { cut, drawIn, label, svg } from "./svg.js";

// The axes with their scales: each hyperparameter that differs, and the metric.
export function axesOf(data) {
  const shown = data.trials.filter(({ value }) => value !== null);
  const made = data.axes.map(({ name, scale }, index) =>
    axis(
      name,
      scale,
      data.trials.map(({ hparams }) => hparams[index]),
      ({ hparams }) => hparams[index],
    ),
  );
  return [
    ...made,
    axis(
      data.metric,
      "linear",
      shown.map(({ value }) => value),
      ({ value }) => value,
    ),
  ];
}

function axis(name, scale, values, read) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (scale === "category") {
    const kinds = [...new Set(known.map(String))].sort();
    // The values of a part of the axis, as the trials have them.
    const originals = new Map(known.map((value) => [String(value), value]));
    const inside = ([from, to]) =>
      kinds
        .filter(
          (_, index) => kinds.length === 1 || (index / (kinds.length - 1) >= from && index / (kinds.length - 1) <= to),
        )
        .map((kind) => originals.get(kind));
    return {
      name,
      read,
      kinds,
      inside,
      at: (value) => (kinds.length === 1 ? 0.5 : kinds.indexOf(String(value)) / (kinds.length - 1)),
      labels: kinds.map((kind) => [kind, kinds.length === 1 ? 0.5 : kinds.indexOf(kind) / (kinds.length - 1)]),
    };
  }
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const bend = scale === "log" && low > 0 ? Math.log : (value) => value;
  const at = (value) => (high === low ? 0.5 : (bend(value) - bend(low)) / (bend(high) - bend(low)));
  const back = bend === Math.log ? Math.exp : (value) => value;
  const inside = (ends) =>
    high === low ? [low, high] : ends.map((fraction) => back(bend(low) + fraction * (bend(high) - bend(low))));
  return {
    name,
    read,
    at,
    inside,
    labels:
      high === low
        ? [[numberText(low), 0.5]]
        : [
            [numberText(low), 0],
            [numberText(high), 1],
          ],
  };
}

// Draws the lines. `wrap(line, trial)` returns what is drawn for a line, and `above(axis, x, y, [top, bottom])` what is
// drawn above an axis.
export function drawParallel(target, data, all, trials, { colorOf, wrap = null, above = null }) {
  const known = trials.filter(({ value }) => value !== null);
  const best = known.sort((a, b) => (data.smallerIsBetter ? b.value - a.value : a.value - b.value));
  // The best are on top, and below all are those without a value, which end before the axis of the metric.
  const order = [...trials.filter(({ value }) => value === null), ...best];
  drawIn(target, `Hyperparameters and ${data.metric} of ${trials.length} trials`, trials, (width, height) => {
    const [top, bottom] = [34, height - 26];
    const x = (index) => 40 + ((width - 140) * index) / Math.max(all.length - 1, 1);
    const y = (fraction) => bottom - (bottom - top) * fraction;
    return [
      ...order.map((trial) => {
        const line = trialLine(trial, all, x, y, colorOf(trial.id));
        return wrap?.(line, trial) ?? line;
      }),
      ...all.flatMap((one, index) => [
        svg("line", { x1: x(index), x2: x(index), y1: top, y2: bottom, class: "axis" }),
        label(cut(one.name, 18), x(index), 16),
        ...one.labels.map(([content, fraction]) =>
          label(cut(content, 16), x(index) + 7, y(fraction) + (fraction === 0 ? 14 : fraction === 1 ? -4 : 4), "start"),
        ),
        ...(above?.(one, x(index), y, [top, bottom]) ?? []),
      ]),
    ];
  });
}

function trialLine(trial, all, x, y, color) {
  const points = all
    .map((one, index) => [index, one.read(trial)])
    .filter(([, value]) => value !== null && value !== undefined);
  const line = svg(
    "polyline",
    {
      points: points.map(([index, value]) => `${x(index).toFixed(1)},${y(all[index].at(value)).toFixed(1)}`).join(" "),
      class: "trial-line",
      stroke: color,
    },
    [
      svg("title", {}, [
        `Trial ${trial.id}: ${trial.value === null ? "no value to compare" : metricText(trial.value)}`,
      ]),
    ],
  );
  line.dataset.trial = trial.id;
  return line;
}
