// What is below the pointer of a card: the lines by value, with their differences to the baseline.

import { element } from "./elements.js";

const MOST_LINES = 12;
const GAP = 14;
const LEAST_WIDTH = 140;

export const makeTip = () => element("div", { className: "tip", hidden: true });

// Fills the tip of a card and puts it beside its cursor. `found` are the lines with their values, the nearest first;
// `tell(value)` returns a value as text.
export function showTip(tip, plot, place, found, tell) {
  const bases = new Map(found.filter(({ line }) => line.isBaseline).map(({ line, value }) => [line.metric, value]));
  // The baseline is told however far it is from the pointer.
  const told = [...new Set([...found.filter(({ line }) => line.isBaseline), ...found])]
    .slice(0, MOST_LINES)
    .sort((a, b) => b.value - a.value);
  const rows = told.map(({ line, value }) =>
    row(line, tell(value), bases.has(line.metric) ? difference(line, value - bases.get(line.metric), tell) : ""),
  );
  const more = found.length - told.length;
  tip.replaceChildren(
    element("strong", { textContent: place }),
    element("ol", {}, rows),
    ...(more > 0 ? [element("span", { className: "faint", textContent: `and ${more} more` })] : []),
  );
  tip.hidden = rows.length === 0;
  if (plot.over !== tip.parentElement) plot.over.append(tip);
  moveTip(tip, plot);
}

function row(line, value, apart) {
  const swatch = element("span", { className: "swatch" });
  swatch.style.background = line.color;
  const item = element("li", {}, [
    swatch,
    element("span", { className: "clip", textContent: line.label, dir: "auto" }),
    element("span", { className: "number", textContent: value }),
    element("span", { className: "number faint", textContent: apart }),
  ]);
  item.classList.toggle("baseline", line.isBaseline);
  return item;
}

function difference({ isBaseline }, apart, tell) {
  if (isBaseline) return "baseline";
  return `${apart > 0 ? "+" : apart < 0 ? "\u2212" : "\u00b1"}${tell(Math.abs(apart))}`;
}

// On the side of the cursor that has more room.
function moveTip(tip, plot) {
  const { left, top } = plot.cursor;
  const { clientWidth: width, clientHeight: height } = plot.over;
  const isLeft = left > width / 2;
  tip.style.left = isLeft ? "auto" : `${left + GAP}px`;
  tip.style.right = isLeft ? `${width - left + GAP}px` : "auto";
  tip.style.maxWidth = `${Math.max(LEAST_WIDTH, Math.max(left, width - left) - GAP)}px`;
  tip.style.top = `${Math.max(0, Math.min(top - tip.offsetHeight / 2, height - tip.offsetHeight))}px`;
}
