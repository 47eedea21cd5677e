// Parts of plots that pages draw as SVG from data.

import { element, svg } from "./elements.js";

export { svg };

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
