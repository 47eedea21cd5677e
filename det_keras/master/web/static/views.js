// The menu of saved views: pages with their settings, which the address holds, under names.

import { say, send } from "./actions.js";
import { element } from "./elements.js";

export function armViews() {
  const menu = document.querySelector("details.views");
  if (menu === null) return;
  const list = menu.querySelector("ul");
  const form = menu.querySelector("form");
  menu.addEventListener("toggle", () => menu.open && show());

  async function show() {
    try {
      const answer = await fetch("/api/v1/views");
      const { views } = await answer.json();
      list.replaceChildren(
        ...(views.length
          ? views.map(entry)
          : [element("li", { className: "faint", textContent: "No view is saved yet." })]),
      );
    } catch {
      list.replaceChildren(element("li", { className: "faint", textContent: "The master does not answer." }));
    }
  }

  function entry({ id, name, address, isShared, isOwn, username }) {
    const link = element("a", { href: address, textContent: name, dir: "auto" });
    const whose = isOwn ? (isShared ? "for all" : "") : `of ${username}`;
    const remove = element("button", {
      type: "button",
      className: "quiet",
      textContent: "\u00d7",
      title: `Delete the view ${name}`,
    });
    remove.setAttribute("aria-label", remove.title);
    remove.addEventListener("click", () => change(() => send(`/api/v1/views/${id}`, { method: "DELETE" })));
    return element("li", {}, [
      element("span", {}, [link]),
      element("span", { className: "faint small", textContent: whose }),
      ...(isOwn ? [remove] : []),
    ]);
  }

  async function change(action) {
    try {
      await action();
      await show();
    } catch (error) {
      say(error.message);
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { name, shared } = form.elements;
    const body = JSON.stringify({
      name: name.value.trim(),
      address: location.pathname + location.search,
      isShared: shared.checked,
    });
    change(async () => {
      await send("/api/v1/views", { method: "PUT", body });
      form.reset();
    });
  });
}
