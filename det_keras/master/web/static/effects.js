// The metric of a search against each hyperparameter: a plot for each, the most important first.

import { element } from "./elements.js";
import { metricText, numberText } from "./formats.js";
import { areaOf, dot, drawIn, frame, valueAxis } from "./svg.js";

const MARGIN = { left: 68, right: 16, top: 12, bottom: 44 };

// Returns an element for each hyperparameter; those that are there stay.
export function effectPlots(target, axes) {
  const known = new Map([...target.children].map((plot) => [plot.dataset.effect, plot]));
  const plots = axes.map(({ name }) => {
    if (known.has(name)) return known.get(name);
    const made = element("div", { className: "drawing" });
    made.dataset.effect = name;
    return made;
  });
  if (plots.length !== target.children.length || plots.some((plot, index) => plot !== target.children[index]))
    target.replaceChildren(...plots);
  if (plots.length === 0)
    target.replaceChildren(element("p", { className: "faint", textContent: "The trials have no hyperparameters." }));
  return plots;
}

// Draws the plot of a hyperparameter. Trials that the search stopped are rings; `wrap(dot, trial, text)` returns what is
// drawn for a point.
export function drawEffect(target, { metric, axes, trials }, index, { colorOf, logY = false, wrap = null }) {
  const { name, scale } = axes[index];
  const shown = trials.filter(
    ({ hparams, value }) => (hparams[index] ?? null) !== null && value !== null && (!logY || value > 0),
  );
  drawIn(target, `${metric} against ${name} of ${shown.length} trials`, shown, (width, height) => {
    const area = areaOf(width, height, MARGIN);
    const x = valueAxis(
      shown.map(({ hparams }) => hparams[index]),
      area.left,
      area.right,
      scale,
    );
    const y = valueAxis(
      shown.map(({ value }) => value),
      area.bottom,
      area.top,
      logY ? "log" : "linear",
    );
    return [
      ...frame(x, y, { x: name, y: metric }, area),
      ...shown.map((trial) => {
        const { id, value, stopped, hparams } = trial;
        const text = `Trial ${id}${stopped ? ` ${stopped}` : ""}: ${name} ${numberText(hparams[index])}, ${metric} ${metricText(value)}`;
        const mark = dot(x.at(hparams[index]), y.at(value), colorOf(id), text, { isRing: Boolean(stopped) });
        return wrap?.(mark, trial, text) ?? mark;
      }),
    ];
  });
}
