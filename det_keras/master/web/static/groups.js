// Groups of runs as mean and standard deviation, by the value of a hyperparameter or by label.

import { runColor } from "./colors.js";

// Returns lines and bands for uPlot: for each group and metric the mean, and the invisible edges of its band; and the
// groups with their colours, for a legend. `names` are those of all groups of the wall: by its place among them, a group
// has the same colour in each card.
export function grouped(data, groupOf, metrics, names) {
  const groups = new Map();
  for (const line of data.lines) {
    if (line.isRaw) continue;
    const key = JSON.stringify([groupOf(line.trial), line.metric]);
    groups.set(key, [...(groups.get(key) ?? []), line]);
  }
  const colorOf = (name) => runColor((names.indexOf(name) + 1) * 7 + 1);
  const lines = [];
  const bands = [];
  for (const [key, members] of groups) {
    const [name, metric] = JSON.parse(key);
    const color = colorOf(name);
    const { mean, low, high } = statistics(
      members.map((line) => interpolated(data.x, line.y)),
      data.x.length,
    );
    const title = metrics.find((spec) => spec.key === metric)?.name ?? metric;
    const label = `${name} (${members.length} run${members.length === 1 ? "" : "s"}) ${title}`;
    const at = lines.length + 1;
    const line = { metric, color, label, trial: null, group: name, runs: members.map((member) => member.trial) };
    lines.push({ ...line, y: mean }, { ...line, y: high, isEdge: true }, { ...line, y: low, isEdge: true });
    bands.push({ series: [at + 1, at + 2], fill: color.replace(")", " / 0.18)") });
  }
  const present = new Set(lines.map((line) => line.group));
  return {
    x: data.x,
    lines,
    bands,
    groups: names.filter((name) => present.has(name)).map((name) => ({ name, color: colorOf(name) })),
  };
}

// Fills positions between two values of a curve, at which other curves have values.
function interpolated(x, y) {
  const filled = [...y];
  let last = -1;
  y.forEach((value, index) => {
    if (typeof value !== "number") return;
    for (let between = last + 1; last >= 0 && between < index; between += 1) {
      filled[between] = y[last] + ((value - y[last]) * (x[between] - x[last])) / (x[index] - x[last]);
    }
    last = index;
  });
  return filled;
}

function statistics(curves, length) {
  const result = { mean: [], low: [], high: [] };
  for (let index = 0; index < length; index += 1) {
    const values = curves.map((curve) => curve[index]).filter((value) => typeof value === "number");
    if (values.length === 0) {
      Object.values(result).forEach((list) => list.push(undefined));
      continue;
    }
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
    result.mean.push(mean);
    result.low.push(mean - deviation);
    result.high.push(mean + deviation);
  }
  return result;
}
