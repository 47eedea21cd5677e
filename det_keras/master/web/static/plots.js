// Draws the master's figures in the colours of the user's theme.

import { say } from "./actions.js";
import { onTick } from "./live.js";
import { textOf } from "./parts.js";
import { bindForm } from "./settings.js";
import { OPTIONS, themed } from "./theme.js";

// The minimum time between two drawings of a running trial's curve.
const LEAST_MS = 2000;
// The maximum time, however long a drawing takes.
const MOST_MS = 10000;
const drawn = new WeakMap();
const armed = new WeakSet();
const dark = matchMedia("(prefers-color-scheme: dark)");
let canvases = [];
let script = null;
// The trials that the list and the brushes of a search choose; null for all.
let chosen = null;

adopt();
document.addEventListener("trials-chosen", ({ detail }) => {
  if (chosen === detail || (chosen?.size === detail?.size && chosen?.isSubsetOf(detail))) return;
  chosen = detail;
  for (const canvas of canvases) if (drawn.get(canvas)?.figure) show(canvas, drawn.get(canvas).figure);
});
onTick(() => {
  adopt();
  canvases.forEach((canvas) => draw(canvas, { isRefresh: true }));
});
dark.addEventListener("change", () => canvases.forEach((canvas) => draw(canvas)));

// Plots and their controls may be added and removed while the page is open.
function adopt() {
  const present = [...document.querySelectorAll("[data-figure]")];
  for (const canvas of canvases) if (!canvas.isConnected) window.Plotly?.purge(canvas);
  for (const canvas of present) if (!canvases.includes(canvas)) watch(canvas);
  canvases = present;
  for (const form of document.querySelectorAll("form.controls")) {
    if (armed.has(form)) continue;
    if (!canvases.some((canvas) => controls(canvas) === form)) continue;
    armed.add(form);
    bindForm(form, () => canvases.filter((canvas) => controls(canvas) === form).forEach((canvas) => draw(canvas)));
  }
}

function controls(canvas) {
  return canvas.dataset.controls ? document.getElementById(canvas.dataset.controls) : null;
}

// Plots outside of the view are drawn when they come near it.
function watch(canvas) {
  const observer = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      canvas.dataset.seen = "";
      draw(canvas);
    },
    { rootMargin: "400px" },
  );
  observer.observe(canvas);
}

async function draw(canvas, { isRefresh = false } = {}) {
  if (!("seen" in canvas.dataset)) return;
  const state = drawn.get(canvas) ?? { earliest: 0, wanted: 0, text: "", drawing: 0, timer: 0 };
  drawn.set(canvas, state);
  if (isRefresh && (state.drawing || performance.now() < state.earliest)) return drawLater(canvas, state);
  const wanted = ++state.wanted;
  state.drawing += 1;
  let began = performance.now();
  const form = controls(canvas);
  const address = new URL(canvas.dataset.figure, location.href);
  address.searchParams.set("width", canvas.clientWidth);
  if (form)
    new FormData(/** @type {any} */ (form)).forEach((value, name) => address.searchParams.append(name, String(value)));
  try {
    const [text] = await Promise.all([
      textOf(`${address.pathname}${address.search}`, { next: "The plot is drawn when it answers again." }),
      plotly(),
    ]);
    // The time for loading the script is not part of the time for drawing.
    if (state.text === "") began = performance.now();
    // A later request has replaced this one, nothing has changed, or the plot was removed.
    if (wanted !== state.wanted || (isRefresh && text === state.text) || !canvas.isConnected) return;
    state.text = text;
    state.figure = JSON.parse(text);
    if (canvas.firstElementChild?.tagName === "P") canvas.replaceChildren();
    canvas.setAttribute("role", "group");
    await show(canvas, state.figure);
    arm(canvas);
  } catch (error) {
    if (wanted !== state.wanted) return;
    // The next event causes another attempt.
    state.text = "";
    const isDrawn = canvas.querySelector(".main-svg") !== null;
    if (isDrawn && !isRefresh) say(`Could not be drawn: ${error.message}`);
    if (!isDrawn) canvas.replaceChildren(note(`Could not be drawn: ${error.message}`));
  } finally {
    state.drawing -= 1;
    state.earliest = performance.now() + Math.min(MOST_MS, Math.max(LEAST_MS, 4 * (performance.now() - began)));
  }
}

function show(canvas, { data, layout }) {
  // A figure with a height gets exactly this height.
  if (layout.height) canvas.style.minHeight = "0";
  return window.Plotly.react(canvas, data.map(ofChosen), themed(layout, canvas), OPTIONS);
}

// Leaves out the points of trials that are not chosen.
function ofChosen(trace) {
  if (chosen === null) return trace;
  const trials = trace.customdata.map((address) => Number(address.split("/").at(-1)));
  const kept = (list) => list.filter((_, index) => chosen.has(trials[index]));
  const { x, y, text, customdata, marker } = trace;
  return {
    ...trace,
    x: kept(x),
    y: kept(y),
    text: kept(text),
    customdata: kept(customdata),
    marker: { ...marker, symbol: kept(marker.symbol) },
  };
}

function note(text) {
  const element = document.createElement("p");
  element.className = "faint";
  element.textContent = text;
  return element;
}

// An event that comes too early is delayed, not dropped: it may be the last one.
function drawLater(canvas, state) {
  state.timer ||= setTimeout(
    () => {
      state.timer = 0;
      draw(canvas, { isRefresh: true });
    },
    Math.max(LEAST_MS / 4, state.earliest - performance.now()),
  );
}

// A click on a point opens the page of its trial.
function arm(canvas) {
  if (canvas.dataset.armed) return;
  canvas.dataset.armed = "yes";
  canvas.on("plotly_click", ({ points }) => {
    const target = points[0]?.customdata;
    if (typeof target === "string" && target.startsWith("/")) location.assign(target);
  });
}

// The script is large: it is loaded after the page.
function plotly() {
  script ??= new Promise((resolve, reject) => {
    const element = document.createElement("script");
    element.src = document.querySelector("meta[name=plotly]").content;
    element.onload = resolve;
    element.onerror = () => {
      // The next plot loads it again.
      script = null;
      element.remove();
      reject(new Error("the plotting script did not come"));
    };
    document.head.append(element);
  });
  return script;
}
