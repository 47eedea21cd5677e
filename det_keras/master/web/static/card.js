// One card of the wall: the curves of a metric, drawn by uPlot.

import { bytesAxis, bytesText, numberTicks, short, timeAxis, timeText, widthOf } from "./axis.js";
import { csvFile, pngFile, svgFile } from "./card_files.js";
import { runColor } from "./colors.js";
import { download } from "./downloads.js";
import { element, iconButton } from "./elements.js";
import { DASHES, showLegend } from "./legend.js";
import { makeTip, showTip } from "./tip.js";

const FAINT = 0.12;
const LINE_WIDTH = 1.6;
const BASELINE_WIDTH = 3.2;
const NEAR_POINTS = 200;

export class Card {
  constructor(wall, spec) {
    this.wall = wall;
    this.spec = spec;
    this.data = null;
    this.plot = null;
    this.isSeen = false;
    this.wanted = 0;
    this.text = "";
    this.heading = element("h3", { textContent: spec.title, title: spec.title, dir: "auto" });
    this.readout = element("output", { className: "readout" });
    this.pin = iconButton("pin", "Pin", () => wall.togglePin(spec.title));
    this.legend = element("ul", { className: "legend", hidden: true });
    this.body = element("div", { className: "canvas", tabIndex: 0 });
    this.tip = makeTip();
    this.body.addEventListener("keydown", (event) => this.walk(event));
    this.body.addEventListener("blur", () => this.leave());
    this.failure = element("p", { className: "faint small", hidden: true });
    this.failure.setAttribute("role", "status");
    const tools = element("span", { className: "tools" }, [
      // In a report no card is pinned or edited. System metrics have a source of their own, without expressions.
      ...(wall.isFixed ? [] : [this.pin]),
      ...(wall.isFixed || spec.source ? [] : [iconButton("edit", "Edit", () => wall.edit(this.spec))]),
      iconButton("full", "Full screen", () => this.toggleFull()),
      iconButton("png", "PNG", () => this.save(pngFile)),
      iconButton("svg", "SVG", () => this.save(svgFile)),
      iconButton("csv", "CSV", () => this.save(csvFile)),
    ]);
    this.root = element("figure", { className: spec.isSearched ? "card searched" : "card" }, [
      element("figcaption", {}, [this.heading, tools]),
      this.legend,
      this.body,
      this.failure,
      this.readout,
    ]);
    this.root.dataset.card = spec.title;
    this.root.card = this;
    this.observer = new IntersectionObserver(
      (entries) => {
        this.isNear = entries.at(-1).isIntersecting;
        if (this.isNear && (!this.isSeen || this.isStale)) this.load();
      },
      { rootMargin: "300px" },
    );
    this.observer.observe(this.root);
    this.sizes = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.sizes.observe(this.body);
  }

  // Takes another description; a card that the user has changed requests and draws its lines again.
  describe(spec) {
    if (JSON.stringify(spec) !== JSON.stringify(this.spec)) this.text = "";
    this.spec = spec;
  }

  remove() {
    this.observer.disconnect();
    this.sizes.disconnect();
    this.plot?.destroy();
    this.root.remove();
  }

  size() {
    return { width: Math.max(this.body.clientWidth, 120), height: Math.max(this.body.clientHeight, 120) };
  }

  // Requests the curves and draws them, if the card is near the view; later otherwise.
  async load() {
    this.isStale = !this.isNear;
    if (this.isStale) return;
    this.isSeen = true;
    const wanted = ++this.wanted;
    try {
      const text = await this.wall.lines(this.spec, this.size().width);
      // A later request has replaced this one.
      if (wanted !== this.wanted) return;
      this.failure.hidden = true;
      if (text === this.text) return;
      const { x, lines } = JSON.parse(text);
      this.text = text;
      this.data = {
        x,
        lines: lines.map((line) => ({
          ...line,
          y: line.y.map((value) => (value === null ? undefined : value === "NaN" ? null : value)),
        })),
      };
      this.draw();
      this.wall.loaded(this);
    } catch (error) {
      if (wanted !== this.wanted || error.name === "AbortError") return;
      if (this.plot === null)
        this.body.replaceChildren(
          element("p", { className: "faint", textContent: `Could not be drawn: ${error.message}` }),
        );
      else this.tell(`Not up to date: ${error.message}`);
      this.isSeen = false;
    }
  }

  // Says what went wrong.
  tell(text) {
    this.failure.textContent = text;
    this.failure.hidden = false;
  }

  draw() {
    if (this.data === null) return;
    const began = performance.now();
    const { logY: wallLogY, groupBy, ...rest } = this.wall.settings();
    const logX = rest.logX && !this.spec.source;
    const logY = wallLogY || Boolean(this.spec.log);
    const shown = groupBy && !this.spec.source ? this.wall.grouped(this) : this.data;
    this.scale = this.wall.scaleOf(this.spec);
    const styled = shown.lines.map((line) => this.styled(line));
    // The baseline is painted above the others; the bands of groups know the places of their lines.
    const lines = shown.bands
      ? styled
      : [...styled.filter(({ isBaseline }) => !isBaseline), ...styled.filter(({ isBaseline }) => isBaseline)];
    this.bands = shown.bands ?? [];
    this.groups = shown.groups ?? [];
    const clean = (y) =>
      logY ? y.map((value) => (value !== undefined && value !== null && value <= 0 ? undefined : value)) : y;
    const data = [shown.x, ...lines.map((line) => clean(line.y))];
    const key = JSON.stringify([
      this.wall.axisName(this.spec),
      logX,
      logY,
      this.spec.low,
      this.spec.high,
      shown.bands ?? [],
      lines.map(({ y, ...line }) => line),
    ]);
    this.lines = lines;
    // A report has no list of runs beside the card.
    showLegend(this.legend, this.meaning({ isWhole: this.wall.isFixed }));
    if (lines.length === 0) {
      this.plot?.destroy();
      this.plot = null;
      this.key = "";
      this.body.replaceChildren(element("p", { className: "faint", textContent: "No shown run has reported it." }));
    } else if (this.plot !== null && key === this.key) {
      this.plot.setData(data);
    } else {
      this.key = key;
      this.plot?.destroy();
      this.body.replaceChildren();
      this.plot = new uPlot(this.options(lines, shown.bands, { logX, logY }), data, this.body);
      // uPlot draws in a microtask.
    }
    this.body.setAttribute("role", "img");
    this.body.setAttribute("aria-label", `${this.spec.title}: ${lines.length} lines`);
    this.root.dataset.lines = lines.length;
    this.root.dataset.points = shown.x.length;
    this.root.dataset.scriptMs = (performance.now() - began).toFixed(1);
  }

  styled(line) {
    const metric = this.spec.metrics.find(({ key }) => key === line.metric) ?? {
      style: "solid",
      name: line.metric,
      group: "",
    };
    const { baseline } = this.wall;
    const isBaseline = baseline !== null && !line.isEdge && isOf(line, baseline);
    // uPlot paints a band with the alpha of its edge, so that an edge is invisible by its width.
    const width = line.isEdge ? 0 : line.isRaw ? 1 : isBaseline ? BASELINE_WIDTH : LINE_WIDTH;
    return {
      ...line,
      color: line.color ?? this.colorOf(line),
      dash: metric.style,
      label: this.labelOf(line, metric),
      isBaseline,
      width,
    };
  }

  colorOf({ trial, metric }) {
    // The lines of one run have no colour of a run to tell.
    if (this.spec.isOwn && this.wall.runs.size === 1)
      return runColor(this.spec.metrics.findIndex(({ key }) => key === metric));
    return this.scale === null || trial === this.wall.baseline ? this.wall.color(trial) : this.scale.colorOf(trial);
  }

  // What the colours and the dashes mean, for the legend. The whole legend also names what the page shows beside the card:
  // the runs, and the styles of the groups of metrics.
  meaning({ isWhole = false } = {}) {
    const { isOwn, metrics, source } = this.spec;
    if (source)
      return {
        scale: null,
        items: isWhole ? this.lines.map(({ label, color, dash }) => ({ name: label, color, dash })) : [],
      };
    const dashes =
      (isOwn || isWhole) && metrics.length > 1
        ? metrics.map(({ name, group, key, style }) => ({
            name: [group, name].filter(Boolean).join(" "),
            dash: style,
            color: this.wall.runs.size === 1 ? this.lines.find((line) => line.metric === key)?.color : undefined,
          }))
        : [];
    if (this.groups.length) return { scale: null, items: [...this.groups, ...dashes] };
    const runs = isWhole && this.wall.runs.size > 1 ? this.runMarks() : [];
    if (this.scale === null) return { scale: null, items: [...runs, ...dashes] };
    const { name, kinds = [], color } = this.scale;
    const values = kinds.map((kind) => ({ name: kind, color: color(kind) }));
    return {
      name,
      scale: this.scale.kinds ? null : this.scale,
      items: [...values, ...runs.filter(({ isBaseline }) => isBaseline), ...dashes],
    };
  }

  // The runs of the card with their colours.
  runMarks() {
    const lines = new Map(this.lines.map((line) => [line.trial, line]));
    return [...lines].map(([trial, { color, isBaseline }]) => ({
      name: `${this.wall.nameOf(trial)}${isBaseline ? " (baseline)" : ""}`,
      color,
      isBaseline,
    }));
  }

  // Lines of groups of runs and of machines have labels.
  labelOf(line, metric) {
    const { runs } = this.wall;
    if (line.label === undefined)
      return [this.wall.nameOf(line.trial), metric.group, metric.name].filter(Boolean).join(" ");
    return line.trial !== null && runs.size > 1 ? `${this.wall.nameOf(line.trial)} ${line.label}` : line.label;
  }

  // The range of the y axis that the user has chosen; an end that is open follows the values.
  range(logY) {
    const { low = null, high = null } = this.spec;
    if (low === null && high === null) return {};
    return {
      range: (_, least, most) => {
        const [from, to] =
          least === null
            ? [0, 1]
            : logY
              ? uPlot.rangeLog(least, most, 10, false)
              : uPlot.rangeNum(least, most, 0.1, true);
        const [first, last] = [low ?? Math.min(from, high), high ?? Math.max(to, low)];
        return first < last ? [first, last] : logY ? [first / 10, last * 10] : [first - 1, last + 1];
      },
    };
  }

  options(lines, bands, { logX, logY }) {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = {
      stroke: color("--faint"),
      grid: { stroke: color("--grid"), width: 1 },
      ticks: { stroke: color("--grid"), width: 1 },
      font: "11px system-ui, sans-serif",
    };
    const wall = this.wall;
    const numbers = { values: (_, ticks) => numberTicks(ticks) };
    return {
      ...this.size(),
      legend: { show: false },
      scales: {
        x: {
          time: false,
          distr: logX ? 3 : 1,
          range: (_, low, high) => wall.rangeOf(this.spec) ?? (low === high ? [low - 0.5, high + 0.5] : [low, high]),
        },
        y: { distr: logY ? 3 : 1, ...this.range(logY) },
      },
      axes: [
        { ...axis, size: 30, ...(wall.isOverTime(this.spec) ? timeAxis : numbers) },
        { ...axis, size: widthOf, ...(this.spec.unit ? bytesAxis(this.spec.unit) : numbers) },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          label: line.label,
          stroke: resolved(line.color, color),
          dash: DASHES[line.dash],
          width: line.width,
          alpha: this.alphaOf(line, this.wall.highlighted),
          spanGaps: false,
          // Of the data at the time of drawing: a zoom replaces them.
          points: {
            show: (plot, index) => !line.isEdge && plot.data[index].filter((value) => value !== undefined).length < 3,
            size: 6,
          },
        })),
      ],
      bands,
      cursor: {
        // The other cards follow the pointer, not the drag: the range that it chooses is set once, for all cards.
        sync: {
          key: this.wall.axisName(this.spec),
          scales: ["x", null],
          setSeries: false,
          filters: { pub: (type) => type === "mousemove" || type === "mouseleave" },
        },
        drag: { x: true, y: false, setScale: false },
        points: { show: false },
        bind: { dblclick: () => () => wall.setRange(null) },
      },
      hooks: {
        // Not by the cursor of uPlot: a mouse event comes after the pointer event that has entered the list of runs.
        ready: [(plot) => plot.over.addEventListener("pointerleave", () => wall.highlight(null))],
        setCursor: [(plot) => this.moved(plot)],
        setSelect: [
          (plot) => {
            const { left, width } = plot.select;
            if (width < 4) return;
            const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
            plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            if (wall.hasAxis(this.spec)) wall.setRange(range);
          },
        ],
      },
    };
  }

  // Says what is below the pointer, and highlights its run in all cards.
  moved(plot) {
    const { idx, top } = plot.cursor;
    const isOurs = this.isWalked || plot.over.matches(":hover");
    this.tip.hidden = true;
    if (idx === null || idx === undefined || top < 0) {
      this.readout.textContent = "";
      return;
    }
    const found = this.lines
      .map((line, index) => ({ line, at: nearest(plot.data[index + 1], idx) }))
      .filter(({ line, at }) => at !== null && !line.isRaw && !line.isEdge)
      .map(({ line, at }) => ({
        line,
        at,
        value: line.y[at],
        distance: Math.abs(plot.valToPos(line.y[at], "y") - top),
      }))
      .sort((a, b) => a.distance - b.distance);
    if (isOurs && found.length && !this.isWalked) this.wall.highlight(found[0].line.trial ?? found[0].line.runs[0]);
    const listed = isOurs
      ? found.slice(0, 1)
      : found.filter(({ line }) => isOf(line, this.wall.highlighted)).slice(0, 2);
    const x = plot.data[0][idx];
    const place = this.wall.isOverTime(this.spec) ? timeText(x) : `${this.wall.axisName(this.spec)} ${short(x)}`;
    const valueText = (value) => (this.spec.unit ? bytesText(value, this.spec.unit) : exact(value));
    if (isOurs) showTip(this.tip, plot, place, found, valueText);
    this.readout.textContent = listed.length
      ? `${place}: ${listed.map(({ line, value }) => `${line.label} ${valueText(value)}`).join(", ")}`
      : "";
  }

  // The arrow keys move the crosshair from one position to the next.
  walk(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || this.plot === null || event.target !== this.body) return;
    event.preventDefault();
    const { cursor, data, over } = this.plot;
    const { min, max } = this.plot.scales.x;
    const seen = data[0].flatMap((x, index) => (x >= min && x <= max ? [index] : []));
    const at = seen.indexOf(cursor.idx);
    const next = at < 0 ? seen.at(step > 0 ? 0 : -1) : seen[Math.min(Math.max(at + step, 0), seen.length - 1)];
    if (next === undefined) return;
    this.isWalked = true;
    this.plot.setCursor({ left: this.plot.valToPos(data[0][next], "x"), top: over.clientHeight / 2 });
  }

  leave() {
    if (!this.isWalked) return;
    this.isWalked = false;
    this.plot?.setCursor({ left: -10, top: -10 });
  }

  alphaOf(line, trial) {
    const full = line.isRaw ? 0.3 : 1;
    return trial === null || line.isBaseline || isOf(line, trial) ? full : Math.min(full, FAINT);
  }

  highlight(trial) {
    if (this.plot === null || !this.isNear) return;
    this.brighten(trial);
    // The crosshair came here before its card had found the run.
    if (!this.plot.over.matches(":hover")) this.moved(this.plot);
  }

  brighten(trial) {
    this.lines.forEach((line, index) => {
      this.plot.series[index + 1].alpha = this.alphaOf(line, trial);
    });
    this.plot.redraw(false);
  }

  async save(file) {
    try {
      const { blob, extension } = await file(this);
      download(blob, `${this.spec.title.replaceAll(/[^\w.-]+/g, "_")}.${extension}`);
    } catch (error) {
      this.tell(`Could not be saved: ${error.message}`);
    }
  }

  async toggleFull() {
    if (document.fullscreenElement === this.root) await document.exitFullscreen();
    else await this.root.requestFullscreen();
  }
}

// Returns whether a line shows a run, alone or in a group.
const isOf = (line, trial) => line.trial === trial || (line.runs?.includes(trial) ?? false);

// The nearest position with a value: curves that share an axis have values at different positions.
function nearest(values, index) {
  for (let step = 0; step <= NEAR_POINTS; step += 1) {
    for (const place of [index - step, index + step]) if (typeof values[place] === "number") return place;
  }
  return null;
}

function resolved(text, color) {
  const name = text.match(/^var\((--[\w-]+)\)$/)?.[1];
  return name ? color(name) : text;
}

const exact = (value) => (value === null || value === undefined ? "NaN" : String(Number(value.toPrecision(5))));
