// Widths of columns that the user has changed: by dragging the edge of a head, or with Shift and the arrow keys on it.

import { element } from "./elements.js";

const LEAST_PX = 40;
const STEP_PX = 16;

// Returns the widths that a setting holds, by the keys of columns.
export function widthsOf(text) {
  const pairs = text
    .split(",")
    .map((part) => [part.slice(0, part.lastIndexOf(":")), Number(part.slice(part.lastIndexOf(":") + 1))]);
  return new Map(pairs.filter(([key, width]) => key && width >= LEAST_PX));
}

export const widthsText = (widths) => [...widths].map(([key, width]) => `${key}:${width}`).join(",");

// Lets the user change the width of a column by its head. `changed` gets the new width, and null for that of the content.
export function arm(head, changed) {
  const grip = element("span", {
    className: "edge",
    title: "Drag for another width, press twice for that of the content.",
  });
  grip.setAttribute("aria-hidden", "true");
  const width = () => Math.round(head.getBoundingClientRect().width);
  const set = (value) => changed(value === null ? null : Math.max(LEAST_PX, Math.round(value)));
  head.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -STEP_PX, ArrowRight: STEP_PX }[event.key];
    if (!event.shiftKey || (step === undefined && event.key !== "ArrowUp")) return;
    event.preventDefault();
    set(step === undefined ? null : width() + step);
  });
  grip.addEventListener("dblclick", () => set(null));
  grip.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    grip.setPointerCapture(event.pointerId);
    const from = width() - event.clientX;
    const listening = new AbortController();
    const { signal } = listening;
    grip.addEventListener("pointermove", (moved) => apply(head, Math.max(LEAST_PX, from + moved.clientX)), { signal });
    const end = (ended) => {
      listening.abort();
      if (ended.type === "pointerup" && from + ended.clientX !== width()) set(from + ended.clientX);
      else if (ended.type === "pointerup" && Math.abs(ended.clientX - event.clientX) > 2) set(width());
    };
    grip.addEventListener("pointerup", end, { signal });
    grip.addEventListener("pointercancel", end, { signal });
  });
  head.append(grip);
}

// Gives a cell a width, whatever is in it.
export function apply(cell, width) {
  const text = width === undefined ? "" : `${width}px`;
  Object.assign(cell.style, { width: text, minWidth: text, maxWidth: text });
  cell.classList.toggle("sized", width !== undefined);
}
