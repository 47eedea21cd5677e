// What the colours and the dashes of a card mean.

import { short } from "./axis.js";
import { viridis } from "./colors.js";
import { element, svg } from "./elements.js";

const STOPS = 7;
export const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3] };

// Returns the ends of a scale of numbers as texts, and the colours between them.
export function ramp({ low, high, isLog }) {
  const colors = Array.from({ length: STOPS }, (_, index) => viridis(index / (STOPS - 1)));
  return { low: short(low), high: `${short(high)}${isLog ? " (log)" : ""}`, colors };
}

// Shows a scale of numbers in an element.
export function showRamp(target, scale) {
  const { low, high, colors } = ramp(scale);
  const drawn = element("span", { className: "ramp" });
  drawn.style.background = `linear-gradient(to right, ${colors.join(", ")})`;
  target.replaceChildren(low, drawn, high);
}

// Shows a legend: `{ name, scale }` of a scale of numbers, if there is one, and items with a name, and a colour or a dash.
export function showLegend(list, { name = "", scale, items }) {
  const parts = items.map((item) =>
    element("li", {}, [
      mark(item),
      element("span", { className: "clip", textContent: item.name, title: item.name, dir: "auto" }),
    ]),
  );
  if (scale !== null) {
    const bar = element("span", { className: "bar" });
    showRamp(bar, scale);
    parts.unshift(
      element("li", { className: "scale" }, [
        element("span", { className: "clip", textContent: name, title: name, dir: "auto" }),
        bar,
      ]),
    );
  } else if (name) parts.unshift(element("li", { className: "faint", textContent: `${name}:` }));
  list.hidden = parts.length === 0;
  list.replaceChildren(...parts);
}

function mark({ color, dash }) {
  if (dash === undefined) {
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = color;
    return swatch;
  }
  const path = svg("path", { d: "M0 6H24", "stroke-dasharray": DASHES[dash].join(" ") });
  path.style.stroke = color ?? "var(--text)";
  return svg("svg", { class: "dash", viewBox: "0 0 24 12", "aria-hidden": "true" }, [path]);
}
