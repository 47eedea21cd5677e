// The cells of tables, by the kind of their column.

import { element, stateMark } from "./elements.js";
import { durationText, metricText, numberText, sizeText } from "./formats.js";
import { momentText } from "./times.js";

const NUMBERS = new Set(["id", "experiment", "metric", "number", "duration", "size", "progress", "hparam"]);
const MARKED = new Set(["running", "paused", "completed", "error", "canceled"]);

export const isOver = (state) => ["completed", "error", "canceled", "deleted"].includes(state);

export function classOf({ kind }) {
  if (kind === "name") return "title";
  return NUMBERS.has(kind) ? "number" : "";
}

export function state(value) {
  const kind = MARKED.has(value) ? value : value.startsWith("stopping") ? "stopping" : "waiting";
  return stateMark(kind, value.replaceAll("_", " "));
}

// `row` says what belongs to a cell besides its value: its `id`, `kind`, `labels`, `description` and whether it `isBest`.
export function content({ key, kind }, value, row) {
  if (value === null || (Array.isArray(value) && value.length === 0)) return ["-"];
  switch (kind) {
    case "id":
      return [element("a", { href: `/${row.kind}s/${value}`, textContent: value })];
    case "experiment":
      return [element("a", { href: `/experiments/${value}`, textContent: value })];
    case "name":
      return name(value, row);
    case "state":
      return [state(value)];
    case "labels":
      return value.map((label) => element("span", { className: "label", textContent: label }));
    case "progress":
      return [progress(value, row)];
    case "metric": {
      const text = typeof value === "number" ? metricText(value) : value;
      return key === "best" && row.isBest ? [stateMark("best", "", "best"), text] : [text];
    }
    case "duration":
      return [durationText(value)];
    case "size":
      return [sizeText(value)];
    case "time":
      return [momentText(new Date(value))];
    case "number":
      return [Number.isInteger(value) ? value.toLocaleString("en") : numberText(value)];
    default:
      return [
        element("span", {
          className: "clip",
          dir: "auto",
          textContent: numberText(value),
          title: String(value).slice(0, 500),
        }),
      ];
  }
}

function name(value, { id, kind, labels = [], description = "" }) {
  const link = element("a", { href: `/${kind}s/${id}`, textContent: value, dir: "auto" });
  const parts = [
    link,
    ...labels.flatMap((label) => [" ", element("span", { className: "label", textContent: label })]),
  ];
  if (description)
    parts.push(
      element("span", { className: "faint clip", textContent: description, title: description.slice(0, 500) }),
    );
  return parts;
}

function progress(value, { id, kind }) {
  const bar = element("progress", { max: 1, value });
  bar.setAttribute("aria-label", `Progress of ${kind} ${id}`);
  const text = element("span", { className: "number", textContent: `${Math.floor(value * 100 + 1e-9)}%` });
  return element("span", { className: "progress" }, [bar, text]);
}
