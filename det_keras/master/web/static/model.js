// Shows the model of a trial: its totals, a drawing of its layers, and the same as a table. Names come from users: they are
// only ever inserted as text.

import { element } from "./elements.js";
import { sizeText } from "./formats.js";
import { BOX, layout } from "./layers.js";
import { onRefresh } from "./live.js";
import { svg } from "./svg.js";

// A model with more layers is drawn with its groups closed, and its drawing is folded.
const MOST_OPEN = 60;
const MARGIN = 8;
const INDENT = 12;
const ARROW = 7;

const section = document.getElementById("model");
const pen = document.createElement("canvas").getContext("2d");
const family = getComputedStyle(section).fontFamily;
let shown = "";
let model = null;
// The paths of the open groups.
let open = new Set();

async function update() {
  const source = document.getElementById("model-source")?.textContent ?? "";
  if (source === shown || source === "") return;
  try {
    const answer = await fetch(source);
    if (!answer.ok || answer.redirected) return;
    const found = await answer.json();
    shown = source;
    show(found.model);
  } catch {
    // The next refresh tries again.
  }
}

function show(found) {
  section.hidden = found === null;
  if (found === null) return;
  model = found;
  open = new Set(model.count > MOST_OPEN ? [] : groupsOf(model.layers));
  section
    .querySelector("[data-model]")
    .replaceChildren(
      totals(),
      ...(model.isCut ? [cutNote()] : []),
      ...(model.layers.length ? [drawing(), table()] : []),
    );
  draw();
}

function groupsOf(layers, path = []) {
  return layers.flatMap((layer, index) =>
    layer.layers ? [[...path, index].join("/"), ...groupsOf(layer.layers, [...path, index])] : [],
  );
}

function totals() {
  const facts = [
    [
      model.kind === "models" ? "Models" : model.class || "Model",
      model.kind === "models" ? String(model.layers.length) : model.name,
    ],
    ["Layers", countText(model.count)],
    ["Parameters", countText(parametersOf(model))],
    ["Trainable", countText(model.trainable)],
    ["Not trainable", countText(model.frozen)],
    ["Weights", model.bytes === null ? "-" : sizeText(model.bytes)],
  ];
  return element(
    "dl",
    { className: "facts" },
    facts.map(([name, value]) =>
      element("div", {}, [
        element("dt", {}, [element("bdi", { textContent: name })]),
        element("dd", {}, [element("bdi", { textContent: value })]),
      ]),
    ),
  );
}

function cutNote() {
  return element("p", {
    className: "faint",
    textContent: "The model has more layers than are recorded. The numbers of parameters are those of the whole model.",
  });
}

// The drawing.

function drawing() {
  const groups = groupsOf(model.layers);
  const buttons =
    groups.length === 0
      ? []
      : [
          element("div", { className: "buttons" }, [
            element("button", { type: "button", textContent: "Open all groups", onclick: () => setOpen(groups) }),
            element("button", { type: "button", textContent: "Close all groups", onclick: () => setOpen([]) }),
          ]),
        ];
  const graph = element("div", { className: "scroll graph", tabIndex: 0 });
  graph.setAttribute("role", "region");
  graph.setAttribute("aria-label", "Graph of the layers");
  const details = element("details", { open: model.layers.length <= MOST_OPEN }, [
    element("summary", { textContent: "Graph" }),
    ...buttons,
    graph,
  ]);
  return details;
}

function setOpen(paths) {
  open = new Set(paths);
  draw();
}

function toggle(path) {
  open[open.has(path) ? "delete" : "add"](path);
  draw();
  section.querySelector(`[data-toggle="${path}"]`)?.focus();
}

function draw() {
  const graph = section.querySelector(".graph");
  if (graph === null) return;
  const { width, height, boxes, edges } = layout(model.layers, (path) => open.has(path));
  const [whole, tall] = [width + 2 * MARGIN, height + 2 * MARGIN];
  const drawn = svg("svg", {
    width: whole,
    height: tall,
    viewBox: `${-MARGIN} ${-MARGIN} ${whole} ${tall}`,
    role: "group",
    "aria-label": "Layers and their connections",
  });
  // An open group is below its layers, and connections are between them.
  const frames = boxes.filter(({ isOpen }) => isOpen);
  drawn.append(...frames.map(box), ...edges.map(edge), ...boxes.filter(({ isOpen }) => !isOpen).map(box));
  graph.replaceChildren(drawn);
}

function box(place) {
  const { layer, path, x, y, width, height, isOpen } = place;
  const isGroup = layer.layers !== undefined;
  const rows = [
    svg("text", { x: INDENT, y: 20, class: "name" }, [
      cut(isGroup ? `${isOpen ? "▾" : "▸"} ${layer.name}` : layer.name, "600"),
    ]),
    svg("text", { x: INDENT, y: 35 }, [cut(layer.class)]),
    svg("text", { x: INDENT, y: 50 }, [
      cut([shapesText(layer.shapes), shortCount(parametersOf(layer))].filter(Boolean).join("  ")),
    ]),
  ];
  const made = svg(
    "g",
    {
      class: `layer${isGroup ? " group" : ""}${isOpen ? " open" : ""}`,
      transform: `translate(${x} ${y})`,
      "data-path": path,
    },
    [
      svg("title", {}, [describe(layer)]),
      svg("rect", { width, height, rx: 6 }),
      ...(isGroup ? [opener(layer, path, width, isOpen, rows)] : rows),
    ],
  );
  return made;
}

function opener(layer, path, width, isOpen, rows) {
  const made = svg(
    "g",
    {
      role: "button",
      tabindex: 0,
      "aria-expanded": isOpen,
      "aria-label": `${layer.name}, ${layer.class}, ${layer.layers.length} layers`,
      "data-toggle": path,
    },
    [svg("rect", { width, height: BOX.height, rx: 6, class: "head" }), ...rows],
  );
  made.addEventListener("click", () => toggle(path));
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle(path);
  });
  return made;
}

function edge({ from, to, points, isBack }) {
  const [x, y] = points.at(-1);
  // The last piece arrives from above, or from the right.
  const tip = isBack ? `M${x} ${y}l${ARROW} -4v8z` : `M${x} ${y}l-4 -${ARROW}h8z`;
  return svg("g", { class: "edge", "data-from": from, "data-to": to }, [
    svg("path", { class: "line", d: isBack ? angular(points) : smooth(points) }),
    svg("path", { class: "tip", d: tip }),
  ]);
}

function angular(points) {
  return points.map(([x, y], index) => `${index ? "L" : "M"}${x} ${y}`).join("");
}

function smooth(points) {
  return points
    .map(([x, y], index) => {
      if (index === 0) return `M${x} ${y}`;
      const [px, py] = points[index - 1];
      return px === x ? `L${x} ${y}` : `C${px} ${(py + y) / 2} ${x} ${(py + y) / 2} ${x} ${y}`;
    })
    .join("");
}

// The table, which says the same in words.

function table() {
  const head = ["Layer", "Class", "Output shape", "Parameters", "Not trainable", "Type", "Receives from"];
  const made = element("table", {}, [
    element("thead", {}, [
      element(
        "tr",
        {},
        head.map((text) => column(text)),
      ),
    ]),
    element("tbody", {}, rowsOf(model.layers, 0)),
  ]);
  const region = element("div", { className: "scroll layers", tabIndex: 0 }, [made]);
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", "Table of the layers");
  return region;
}

function column(text) {
  const made = element("th", {
    textContent: text,
    className: text === "Parameters" || text === "Not trainable" ? "number" : "",
  });
  made.scope = "col";
  return made;
}

function rowsOf(layers, depth) {
  return layers.flatMap((layer) => {
    const indent = element("span", { className: "faint", textContent: depth ? `${"\u2003".repeat(depth - 1)}└ ` : "" });
    indent.setAttribute("aria-hidden", "true");
    const name = element("th", {}, [indent, element("bdi", { textContent: layer.name })]);
    name.scope = "row";
    const cells = [layer.class, shapesText(layer.shapes) || "?"].map((text) => element("td", { textContent: text }));
    const numbers = [parametersOf(layer), layer.frozen].map((value) =>
      element("td", { className: "number", textContent: countText(value) }),
    );
    const sources = layer.inputs.map((index) => layers[index].name).join(", ");
    const row = element("tr", {}, [
      name,
      ...cells,
      ...numbers,
      element("td", { textContent: layer.dtype }),
      element("td", { textContent: sources }),
    ]);
    return [row, ...rowsOf(layer.layers ?? [], depth + 1)];
  });
}

// Texts.

function parametersOf({ trainable, frozen }) {
  return trainable === null || frozen === null ? null : trainable + frozen;
}

function countText(value) {
  return value === null ? "-" : value.toLocaleString("en-US");
}

function shortCount(value) {
  if (value === null || value === 0) return "";
  /** @type {[string, number][]} */
  const units = [
    ["G", 1e9],
    ["M", 1e6],
    ["K", 1e3],
  ];
  const unit = units.find(([, size]) => value >= size);
  return unit === undefined ? String(value) : `${Number((value / unit[1]).toPrecision(3))}${unit[0]}`;
}

function shapesText(shapes) {
  return shapes.map((shape) => `(${shape.map((size) => size ?? "None").join(", ")})`).join(", ");
}

function describe(layer) {
  const parts = [
    `${layer.name} (${layer.class})`,
    shapesText(layer.shapes),
    `${countText(parametersOf(layer))} parameters`,
  ];
  return parts.filter(Boolean).join("\n");
}

// Shortens a text until it fits into a box. A canvas measures it, since the browser lays out nothing for that.
function cut(text, weight = "400") {
  pen.font = `${weight} 12px ${family}`;
  const most = BOX.width - 2 * INDENT;
  if (pen.measureText(text).width <= most) return text;
  const characters = [...text];
  const fits = (count) => pen.measureText(`${characters.slice(0, count).join("")}…`).width <= most;
  let [low, high] = [0, characters.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return `${characters.slice(0, low).join("")}…`;
}

onRefresh(update);
update();
