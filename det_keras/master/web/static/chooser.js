// Menus of columns: the shown ones in their order, and the others by name.

import { element } from "./elements.js";

// Closes an open menu on Escape, and on a click elsewhere.
export function armChoosers() {
  const open = () => document.querySelectorAll("details.chooser[open]");
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of open()) {
      const hadFocus = menu.contains(document.activeElement);
      menu.open = false;
      if (hadFocus) menu.querySelector("summary").focus();
    }
  });
  document.addEventListener("pointerdown", (event) => {
    for (const menu of open()) if (event.target.closest("details.chooser") !== menu) menu.open = false;
  });
}

// A field that shows only the entries of a menu with its words.
export function entrySearch(list) {
  const field = element("input", { type: "search", placeholder: "name of a column" });
  field.setAttribute("aria-label", "Find a column");
  const apply = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const entry of list.children)
      entry.hidden = !words.every((word) => entry.textContent.toLowerCase().includes(word));
  };
  field.addEventListener("input", apply);
  return { field, apply };
}
