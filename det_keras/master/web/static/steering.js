// What users change of a search while it runs: a trial with values of their own, and a narrower space.

import { ask, say, send } from "./actions.js";
import { numberText } from "./formats.js";
import { refreshSoon } from "./live.js";

const root = () => document.getElementById("steering");
let ranges = null;

// The brushes of the page choose values of hyperparameters: the ends of ranges, or values of lists, by name.
document.addEventListener("ranges-chosen", ({ detail }) => {
  ranges = Object.keys(detail).length ? detail : null;
  offer();
});
document.addEventListener("refreshed", offer);
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-narrow]")) narrow();
});
document.addEventListener("submit", (event) => {
  if (event.target.id !== "new-trial") return;
  event.preventDefault();
  addTrial(event.target);
});

function offer() {
  const button = root()?.querySelector("[data-narrow]");
  if (button) button.disabled = ranges === null;
}

const fieldOf = (name) => root().querySelector(`#new-trial [name="${CSS.escape(name)}"]`);
const isList = (name) => fieldOf(name)?.tagName === "SELECT";

// Numbers of a list have an axis of numbers: the chosen range has some of them.
function values(name, chosen) {
  const known = isList(name) ? [...fieldOf(name).options].map(({ value }) => JSON.parse(value)) : [];
  if (known.length === 0 || !known.every((value) => typeof value === "number")) return chosen;
  return known.filter((value) => value >= Math.min(...chosen) && value <= Math.max(...chosen));
}

async function narrow() {
  const { narrow: address } = root().querySelector("[data-narrow]").dataset;
  const hyperparameters = Object.fromEntries(
    Object.entries(ranges).map(([name, chosen]) => [name, values(name, chosen)]),
  );
  const what = Object.entries(hyperparameters).map(
    ([name, chosen]) => `${name} ${isList(name) ? chosen.map(String).join(", ") : chosen.map(numberText).join(" to ")}`,
  );
  const question = `Further trials are drawn from ${what.join("; ")}. Waiting trials outside are replaced.`;
  if (await ask("Narrow the search?", question, "Narrow", { isHarmless: true }))
    await change(address, { hyperparameters }, () => "Narrow: done.");
}

async function addTrial(form) {
  const fields = [...form.elements].filter(({ name }) => name);
  const hparams = Object.fromEntries(
    fields.map((field) => [field.name, field.tagName === "SELECT" ? JSON.parse(field.value) : Number(field.value)]),
  );
  await change(form.dataset.address, { hparams }, ({ trialId }) => `Trial ${trialId} was added.`);
}

async function change(address, body, done) {
  try {
    say(done(await send(address, { body: JSON.stringify(body) })));
  } catch (error) {
    say(error.message);
  }
  refreshSoon();
}
