// Keys: `/` finds, `j` and `k` walk through the rows of a table, `x` ticks one, `o` opens it, `c` compares, `?` shows the keys.

const ACTIONS = {
  "/": () => visible("main input[type=search]")?.focus(),
  j: () => walk(1),
  k: () => walk(-1),
  x: () => current()?.querySelector("input[type=checkbox]")?.click(),
  o: () => current()?.querySelector("a[href]")?.click(),
  c: () => visible("[data-compare], [data-bulk=compare]")?.click(),
  "?": () => document.getElementById("shortcuts").showModal(),
};

export function armShortcuts() {
  document.addEventListener("keydown", (event) => {
    const action = ACTIONS[event.key];
    if (action === undefined || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]") !== null) return;
    event.preventDefault();
    action();
  });
}

// A select takes letters, too.
const isTyping = (target) =>
  target.isContentEditable ||
  target.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=range])");
const visible = (selector) =>
  [...document.querySelectorAll(selector)].find((found) => found.checkVisibility() && !found.disabled);
const rows = () => [...document.querySelectorAll(".grid tbody tr[data-key]")];
// A table that is drawn again has new elements, so the row is known by its key.
const current = () =>
  rows().find((row) => row.contains(document.activeElement)) ?? rows().find((row) => row.dataset.key === walked);
let walked = null;

function walk(step) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.indexOf(current());
  const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + step))];
  walked = next.dataset.key;
  next.tabIndex = -1;
  next.focus();
}
