// Shows the media of a trial: a card for each name, with a slider over its steps. Every text comes from users: it is only
// ever inserted as text, and images are the only files that a browser displays itself.

import { element, svg } from "./elements.js";
import { onTick } from "./live.js";
import { textOf } from "./parts.js";
import { reasonOf, request } from "./requests.js";
import { OPTIONS, themed } from "./theme.js";

// Cards outside of the view are filled when they come near it, and the cards after these on request.
const FIRST_CARDS = 50;
const MOST_ROWS = 200;
const DRAWERS = {
  image: drawImage,
  figure: (item, address) => (item.mediaType === "image/png" ? drawImage(item, address) : drawPlot(item, address)),
  text: async (item, address) => scrollable(element("pre", { textContent: await load(address) }), item),
  table: async (item, address) => table(JSON.parse(await load(address)), item),
  histogram: async (item, address) => histogram(JSON.parse(await load(address)), item),
  confusion_matrix: async (item, address) => confusionMatrix(JSON.parse(await load(address)), item),
  file: (item) => element("p", { className: "faint", textContent: sizeText(Number(item.size)) }),
};

const form = document.querySelector("form[data-media]");
const cards = new Map();
let most = FIRST_CARDS;
let known = "";

if (form) {
  form.addEventListener("submit", (event) => event.preventDefault());
  onTick(update);
  update();
}

async function update() {
  let text = "";
  try {
    text = await textOf(`${form.dataset.media}/groups`);
  } catch {
    // The next event causes another attempt.
    return;
  }
  if (text === known) return;
  known = text;
  show(JSON.parse(text).groups);
}

function show(groups) {
  form.closest("section").hidden = groups.length === 0;
  const wanted = groups.slice(0, most);
  const keys = new Set(wanted.map(keyOf));
  for (const [key, card] of cards) {
    if (keys.has(key)) continue;
    card.root.remove();
    cards.delete(key);
  }
  wanted.forEach((group, index) => {
    const key = keyOf(group);
    const card = cards.get(key) ?? new Card(group);
    cards.set(key, card);
    if (form.children[index] !== card.root) form.insertBefore(card.root, form.children[index] ?? null);
    card.take(group);
  });
  form.querySelector(":scope > button")?.remove();
  if (groups.length > wanted.length) {
    const button = element("button", { type: "button", textContent: `Show all ${groups.length}` });
    button.addEventListener("click", () => {
      most = Infinity;
      show(groups);
    });
    form.append(button);
  }
}

const keyOf = (group) => JSON.stringify([group.kind, group.name]);

// The items of one kind and name. The newest step is shown until the user chooses another one.
class Card {
  constructor(group) {
    this.group = group;
    this.items = [];
    this.chosen = null;
    this.wanted = 0;
    this.shown = "";
    this.isNear = false;
    this.root = element("article", { className: "medium" });
    this.root.dataset.kind = group.kind;
    const title = element("h3");
    title.append(element("bdi", { textContent: group.name }));
    this.slider = element("input", { type: "range", min: "0", step: "1", hidden: true });
    this.slider.setAttribute("aria-label", `Step of ${group.name}`);
    this.step = element("output");
    this.link = element("a", { textContent: "Download" });
    const line = element("p", { className: "step" });
    line.append(this.slider, this.step, this.link);
    this.body = element("div", { className: "body" });
    this.caption = element("p", { className: "caption faint" });
    this.root.append(title, line, this.body, this.caption);
    this.slider.addEventListener("input", () => {
      const place = Number(this.slider.value);
      // At the right end it follows the training again.
      this.chosen = place === this.items.length - 1 ? null : this.items[place].step;
      this.draw();
    });
    const observer = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        this.isNear = true;
        this.fetchItems();
      },
      { rootMargin: "400px" },
    );
    observer.observe(this.root);
  }

  take(group) {
    const isChanged = group.reportTime !== this.group.reportTime || group.count !== this.group.count;
    this.group = group;
    if (this.isNear && (isChanged || this.hasFailed)) this.fetchItems();
  }

  async fetchItems() {
    const { name, kind } = this.group;
    this.hasFailed = false;
    try {
      const query = new URLSearchParams({ name, kind });
      this.items = JSON.parse(await load(`${form.dataset.media}?${query}`)).media;
    } catch (error) {
      this.say(error);
      return;
    }
    this.slider.max = String(this.items.length - 1);
    this.draw();
  }

  async draw() {
    if (this.items.length === 0) return;
    const found = this.items.findIndex((item) => item.step === this.chosen);
    const place = found < 0 ? this.items.length - 1 : found;
    const item = this.items[place];
    this.slider.hidden = this.items.length < 2;
    this.slider.value = String(place);
    this.slider.setAttribute("aria-valuetext", `step ${item.step}`);
    this.step.textContent = `step ${Number(item.step).toLocaleString("en")}`;
    this.caption.textContent = item.caption;
    this.caption.hidden = item.caption === "";
    const address = `${form.dataset.media}/${item.id}/content?v=${encodeURIComponent(item.version)}`;
    this.link.href = address;
    this.link.download = "";
    if (this.shown === address) return;
    const wanted = ++this.wanted;
    try {
      const drawn = await DRAWERS[item.kind](item, address);
      // A later step has been chosen in the meantime.
      if (wanted !== this.wanted) return;
      for (const plot of this.body.querySelectorAll(".plot")) window.Plotly?.purge(plot);
      this.body.replaceChildren(drawn);
      this.shown = address;
      // A plot measures its card once, so that the card has its width before.
      this.root.classList.toggle("spread", item.kind === "table" || drawn.plot !== undefined);
      drawn.plot?.();
    } catch (error) {
      if (wanted === this.wanted) this.say(error);
    }
  }

  say(error) {
    this.shown = "";
    // The next refresh of the page tries again.
    this.hasFailed = true;
    known = "";
    this.body.replaceChildren(
      element("p", { className: "faint", textContent: `Could not be shown: ${error.message}` }),
    );
  }
}

async function load(address) {
  const answer = await request(address, {}, "It is shown when the master answers again.");
  if (answer.ok) return answer.text();
  throw new Error(await reasonOf(answer));
}

// The old image stays until the new one has come, so that a slider does not flicker.
function drawImage(item, address) {
  const image = element("img", { alt: item.caption || item.name, src: address });
  return image.decode().then(
    () => {
      image.className = image.naturalWidth < 160 ? "small" : "";
      return image;
    },
    () => {
      throw new Error("the file is missing, or no image");
    },
  );
}

async function drawPlot(item, address) {
  const [text] = await Promise.all([load(address), plotly()]);
  const figure = JSON.parse(text);
  const canvas = element("div", { className: "plot" });
  canvas.setAttribute("role", "group");
  canvas.setAttribute("aria-label", item.name);
  // Plotly measures the element, which must be in the page by then. The template of a figure brings a background.
  canvas.plot = () =>
    window.Plotly.newPlot(canvas, figure.data, themed({ ...figure.layout, template: undefined }, canvas), OPTIONS);
  return canvas;
}

// The script that other plots of the page load too; it is run once.
function plotly() {
  if (window.Plotly) return Promise.resolve();
  const address = document.querySelector("meta[name=plotly]").content;
  const present = [...document.scripts].find((script) => script.getAttribute("src") === address);
  const script = present ?? element("script", { src: address });
  const loaded = new Promise((resolve, reject) => {
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => {
      // The next figure loads it again.
      script.remove();
      reject(new Error("the plotting script did not come"));
    });
  });
  if (!present) document.head.append(script);
  return loaded;
}

function table({ columns, rows }, item) {
  const head = element("tr");
  const body = element("tbody");
  const shown = rows.slice(0, MOST_ROWS);
  const fill = (sorted) =>
    body.replaceChildren(
      ...sorted.map((cells) => {
        const row = element("tr");
        for (const cell of cells) {
          const isNumber = typeof cell === "number";
          row.append(
            element("td", {
              textContent: isNumber ? sixDigits(cell) : (cell ?? ""),
              className: isNumber ? "number" : "",
              title: cell ?? "",
            }),
          );
        }
        return row;
      }),
    );
  columns.forEach((title, column) => {
    const button = element("button", { type: "button", textContent: title });
    const cell = element("th", { scope: "col" });
    cell.append(button);
    button.addEventListener("click", () => {
      const isDescending = cell.getAttribute("aria-sort") === "ascending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      fill([...shown].sort((a, b) => (isDescending ? -1 : 1) * compare(a[column], b[column])));
    });
    head.append(cell);
  });
  fill(shown);
  const grid = element("table");
  const thead = element("thead");
  thead.append(head);
  grid.append(thead, body);
  const box = scrollable(grid, item);
  if (rows.length <= MOST_ROWS) return box;
  const both = element("div");
  both.append(
    box,
    element("p", {
      className: "faint",
      textContent: `The first ${MOST_ROWS} of ${rows.length.toLocaleString("en")} rows; the download has all.`,
    }),
  );
  return both;
}

// Cells without a value come last, numbers before texts.
function compare(a, b) {
  const rank = (value) => (value === null ? 2 : typeof value === "number" ? 0 : 1);
  if (rank(a) !== rank(b)) return rank(a) - rank(b);
  return rank(a) === 0 ? a - b : String(a ?? "").localeCompare(String(b ?? ""), undefined, { numeric: true });
}

function histogram({ counts, edges, total, not_finite: others }, item) {
  const [width, height, left, bottom] = [400, 190, 40, 20];
  const highest = Math.max(1, ...counts);
  const chart = drawing(
    width,
    height + bottom,
    `${item.name}: ${total} values from ${short(edges[0])} to ${short(edges.at(-1))}`,
  );
  const [low, high] = [edges[0], edges.at(-1)];
  const x = (value) => left + ((width - left) * (value - low)) / (high - low || 1);
  counts.forEach((count, index) => {
    const size = ((height - 10) * count) / highest;
    const bar = svg("rect", {
      class: "bar",
      x: x(edges[index]),
      y: height - size,
      width: Math.max(0.5, x(edges[index + 1]) - x(edges[index]) - 0.5),
      height: size,
    });
    bar.append(named(`${short(edges[index])} to ${short(edges[index + 1])}: ${count}`));
    chart.append(bar);
  });
  chart.append(svg("line", { class: "axis", x1: left, x2: width, y1: height, y2: height }));
  for (const [value, anchor] of [
    [low, "start"],
    [(low + high) / 2, "middle"],
    [high, "end"],
  ]) {
    chart.append(label(short(value), x(value), height + 14, anchor));
  }
  chart.append(label(String(highest), left - 4, 16, "end"));
  const note = `${total.toLocaleString("en")} values${others ? `, ${others.toLocaleString("en")} of them NaN or infinite` : ""}`;
  return noted(chart, note);
}

function confusionMatrix({ labels, counts }, item) {
  const side = labels.length;
  const cell = Math.max(4, Math.min(44, 360 / side));
  const hasText = side <= 20;
  const margin = hasText ? 74 : 4;
  const chart = drawing(
    margin + side * cell,
    margin + side * cell,
    `${item.name}: confusion matrix of ${side} classes, true classes as rows`,
  );
  counts.forEach((row, y) => {
    const sum = Math.max(
      1,
      row.reduce((all, count) => all + count, 0),
    );
    row.forEach((count, x) => {
      const [left, top] = [margin + x * cell, margin + y * cell];
      const rect = svg("rect", {
        class: "cell",
        x: left,
        y: top,
        width: cell,
        height: cell,
        "fill-opacity": (0.6 * count) / sum,
      });
      rect.append(named(`true ${labels[y]}, predicted ${labels[x]}: ${count}`));
      chart.append(rect);
      if (hasText && count > 0) chart.append(label(String(count), left + cell / 2, top + cell / 2 + 4, "middle"));
    });
  });
  chart.append(svg("rect", { class: "frame", x: margin, y: margin, width: side * cell, height: side * cell }));
  if (hasText) {
    labels.forEach((name, index) => {
      const middle = margin + (index + 0.5) * cell;
      chart.append(label(clipped(name), margin - 5, middle + 4, "end"));
      const above = label(clipped(name), 0, 0, "start");
      above.setAttribute("transform", `translate(${middle + 4} ${margin - 5}) rotate(-55)`);
      chart.append(above);
    });
  }
  return noted(chart, "Rows: true classes. Columns: predicted classes.");
}

function noted(chart, text) {
  const box = element("div");
  box.append(chart, element("p", { className: "faint small", textContent: text }));
  return box;
}

function scrollable(content, item) {
  const box = element("div", { className: "scroll", tabIndex: 0 });
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", item.name);
  box.append(content);
  return box;
}

function drawing(width, height, title) {
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  chart.style.maxWidth = `${Math.max(width, 220)}px`;
  return chart;
}

function label(text, x, y, anchor) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

function named(text) {
  return svg("title", {}, [text]);
}

// As "%.6g"; whole numbers are whole.
function sixDigits(value) {
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size < 1e-4 || size >= 1e6
    ? value.toExponential(5).replace(/\.?0*e/, "e")
    : String(Number(value.toPrecision(6)));
}

const short = (value) => String(Number(Number(value).toPrecision(4)));
const clipped = (text) => (text.length > 12 ? `${text.slice(0, 11)}\u2026` : text);

function sizeText(bytes) {
  const units = ["B", "KB", "MB"];
  let place = 0;
  while (bytes >= 1024 && place < units.length - 1) {
    bytes /= 1024;
    place += 1;
  }
  return `${place ? bytes.toFixed(1) : bytes} ${units[place]}`;
}
