// Cards that the user makes: expressions, a range, colours. They are part of the page's address. A card with the title of
// one of the master's cards takes its place.

import { element } from "./elements.js";
import { reasonOf, request } from "./requests.js";
import { keepSettings, setting } from "./settings.js";

const STYLES = ["solid", "dashed", "dotted"];
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

// Returns the cards of the address; what is no card, such as in a link that was cut off, is left out.
export function readCards() {
  let found = [];
  try {
    found = JSON.parse(setting("own", "[]"));
  } catch {
    // The other cards are shown.
  }
  if (!Array.isArray(found)) return [];
  return found.filter(isCard).map(({ title, lines, low, high, log, color }) => ({
    title,
    lines,
    low: number(low),
    high: number(high),
    log: log === true,
    color: typeof color === "string" ? color : "",
  }));
}

const isCard = (card) =>
  typeof card?.title === "string" && Array.isArray(card.lines) && card.lines.every((line) => typeof line === "string");

export function keepCards(cards) {
  const shortest = cards.map((card) =>
    Object.fromEntries(Object.entries(card).filter(([, value]) => value !== null && value !== "" && value !== false)),
  );
  keepSettings({ own: cards.length ? JSON.stringify(shortest) : "" });
}

// Returns the cards of a wall: those of the master, with the user's in the place of those with the same title, and the
// user's other cards behind the searched metric.
export function withOwn(specs, cards) {
  const made = new Map(cards.map((card) => [card.title, spec(card)]));
  const placed = specs.map((known) =>
    made.has(known.title) ? { ...made.get(known.title), section: known.section, isSearched: known.isSearched } : known,
  );
  const titles = new Set(specs.map(({ title }) => title));
  const added = [...made.values()].filter(({ title }) => !titles.has(title));
  return [
    ...placed.filter(({ isSearched }) => isSearched),
    ...added,
    ...placed.filter(({ isSearched }) => !isSearched),
  ];
}

function spec(card) {
  const metrics = card.lines.map((line, index) => ({
    key: line,
    group: "",
    name: line,
    style: STYLES[index % STYLES.length],
  }));
  return { ...card, section: "", isSearched: false, isOwn: true, metrics };
}

// Returns how a metric is written in an expression.
const written = ({ key, name }, metrics) => {
  const isPlain = /^[A-Za-z_]\w*$/.test(name) && metrics.filter((other) => other.name === name).length === 1;
  return isPlain ? name : JSON.stringify(key);
};

const labelled = (text, field) => element("label", {}, [element("span", { textContent: text }), field]);

// The dialog in which a card is made, changed and removed.
export class CardEditor {
  // `wall` has the user's cards in `own` and the master's in `given`; `wall.keepOwn(cards)` stores and shows others.
  constructor(wall) {
    this.wall = wall;
    this.title = element("input", { type: "text", name: "title", maxLength: 100 });
    this.lines = element("textarea", { name: "lines", rows: 4, required: true, spellcheck: false });
    this.metric = element("select", { name: "metric" });
    this.low = element("input", { type: "number", step: "any", name: "low" });
    this.high = element("input", { type: "number", step: "any", name: "high" });
    this.log = element("input", { type: "checkbox", name: "log" });
    this.color = element("select", { name: "color" });
    this.wrong = element("p", { className: "wrong", hidden: true });
    this.wrong.setAttribute("role", "alert");
    this.remove = element("button", { type: "button", className: "danger", onclick: () => this.keep([]) });
    this.heading = element("h2", { id: "card-editor-title" });
    const buttons = element("div", { className: "buttons" }, [
      this.remove,
      element("button", { type: "button", textContent: "Back", onclick: () => this.dialog.close() }),
      element("button", { type: "submit", textContent: "Save" }),
    ]);
    const form = element("form", { autocomplete: "off" }, [
      this.heading,
      labelled("Title", this.title),
      labelled("Lines", this.lines),
      element("p", {
        className: "faint small",
        textContent: "One metric or expression per line, such as val_loss - ema(loss, .9).",
      }),
      labelled("Add a metric", this.metric),
      labelled("y from", this.low),
      labelled("y to", this.high),
      labelled("log y", this.log),
      labelled("Colour", this.color),
      this.wrong,
      buttons,
    ]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.save();
    });
    this.metric.addEventListener("change", () => {
      this.lines.value = [...this.lines.value.split("\n").filter((line) => line.trim()), this.metric.value].join("\n");
      this.metric.value = "";
    });
    this.dialog = element("dialog", { className: "card-editor" }, [form]);
    this.dialog.setAttribute("aria-labelledby", "card-editor-title");
    wall.root.append(this.dialog);
  }

  // Opens the dialog for a card of the wall, or for a new one.
  open(shown = null) {
    const { given, own } = this.wall;
    this.shown = shown;
    const metrics = given.filter((card) => !card.source).flatMap((card) => card.metrics);
    const card = own.find(({ title }) => title === shown?.title);
    this.heading.textContent = shown === null ? "New card" : "Card";
    this.title.value = shown?.title ?? "";
    this.lines.value = (card?.lines ?? shown?.metrics.map((metric) => written(metric, metrics)) ?? []).join("\n");
    this.low.value = card?.low ?? "";
    this.high.value = card?.high ?? "";
    this.log.checked = card?.log ?? false;
    this.metric.replaceChildren(
      new Option("", ""),
      ...metrics.map((metric) => new Option(metric.key, written(metric, metrics))),
    );
    this.color.replaceChildren(
      new Option("as on the wall", ""),
      ...this.wall.colorNames.map((name) => new Option(name, name)),
    );
    this.color.value = card?.color ?? "";
    this.color.selectedIndex = Math.max(0, this.color.selectedIndex);
    this.remove.hidden = card === undefined;
    this.remove.textContent = given.some(({ title }) => title === shown?.title) ? "Restore" : "Remove";
    this.wrong.hidden = true;
    this.dialog.showModal();
    this.lines.focus();
  }

  async save() {
    const lines = this.lines.value
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean);
    const value = (field) => (field.value === "" ? null : Number(field.value));
    const card = {
      title: this.title.value.trim() || lines[0],
      lines,
      low: value(this.low),
      high: value(this.high),
      log: this.log.checked,
      color: this.color.value,
    };
    try {
      await this.check(card);
      this.keep([card]);
    } catch (error) {
      // What the user has typed stays.
      this.wrong.textContent = error.message;
      this.wrong.hidden = false;
    }
  }

  async check({ lines, low, high, log }) {
    if (lines.length === 0) throw new Error("A card needs a metric or an expression.");
    if (low !== null && high !== null && low >= high)
      throw new Error(`The range ends at ${high}, which is not above its begin ${low}.`);
    if (log && [low, high].some((edge) => edge !== null && edge <= 0))
      throw new Error("On a logarithmic axis both ends of the range are above 0.");
    const params = new URLSearchParams({ points: "4" });
    for (const id of [...this.wall.runs.keys()].slice(0, this.wall.most)) params.append("trial", id);
    for (const line of lines) params.append("expression", line);
    const answer = await request(`/figures/lines?${params}`, {}, "The card is saved when you press Save again.");
    if (!answer.ok) throw new Error(await reasonOf(answer));
  }

  // Stores the cards that take the place of the one that was open.
  keep(cards) {
    const gone = new Set([this.shown?.title, ...cards.map(({ title }) => title)]);
    this.wall.keepOwn([...this.wall.own.filter(({ title }) => !gone.has(title)), ...cards]);
    this.dialog.close();
    for (const { title } of cards) this.wall.cards.get(title).root.scrollIntoView({ block: "nearest" });
  }
}
