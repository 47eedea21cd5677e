// The menu of a table's columns: the shown ones in their order, and the others by name.

import { entrySearch } from "./chooser.js";
import { element } from "./elements.js";

// Fills the menu. `changed` gets the new `columns`, and with them the `pinned` ones if they changed.
export function columnMenu(menu, { columns, names, chosen, pinned }, changed) {
  const keys = columns.map(({ key }) => key);
  const text = JSON.stringify([keys, names, [...pinned], chosen]);
  if (text === menu.dataset.offered) return;
  menu.dataset.offered = text;
  const shown = chosen.length ? chosen : keys.filter((key) => names.some((name) => name.key === key));
  const choose = (wanted) => changed({ columns: wanted });
  const swap = (from, to) => choose(shown.map((_, index) => shown[index === from ? to : index === to ? from : index]));
  const order = shown.map((key, index) =>
    element("li", {}, [
      element("span", { textContent: key, dir: "auto" }),
      small(`Move ${key} to the left`, "\u2191", () => swap(index - 1, index), { disabled: index === 0 }),
      small(`Move ${key} to the right`, "\u2193", () => swap(index, index + 1), {
        disabled: index === shown.length - 1,
      }),
      small(`Keep ${key} in view`, pinned.has(key) ? "unpin" : "pin", () => changed(withPin(key, shown, pinned))),
      small(`Remove ${key}`, "\u00d7", () => choose(shown.filter((other) => other !== key)), {
        disabled: shown.length === 1,
      }),
    ]),
  );
  const others = names
    .filter(({ key }) => !shown.includes(key))
    .map(({ key }) => element("li", {}, [small(`Add ${key}`, key, () => choose([...shown, key]))]));
  const list = element("ul", {}, others);
  const { field, apply } = entrySearch(list);
  field.value = menu.querySelector("input")?.value ?? "";
  apply();
  const reset = element("button", {
    type: "button",
    textContent: "Columns that fit",
    hidden: chosen.length === 0,
    onclick: () => choose([]),
  });
  menu.replaceChildren(element("ol", {}, order), field, list, reset);
}

function small(title, sign, action, properties = {}) {
  const button = element("button", {
    type: "button",
    className: "quiet",
    textContent: sign,
    title,
    onclick: action,
    ...properties,
  });
  button.setAttribute("aria-label", title);
  return button;
}

// A column that is kept in view comes to the front.
function withPin(key, shown, before) {
  const pinned = new Set(before);
  if (!pinned.delete(key)) pinned.add(key);
  return {
    pinned,
    columns: [...shown.filter((other) => pinned.has(other)), ...shown.filter((other) => !pinned.has(other))],
  };
}
