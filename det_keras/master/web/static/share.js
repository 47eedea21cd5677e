// The dialog in which links to the report of an experiment are made and revoked: they need no login.

import { send } from "./actions.js";
import { element } from "./elements.js";
import { reasonOf, request } from "./requests.js";
import { momentText } from "./times.js";

export function armShare() {
  const dialog = document.getElementById("share");
  if (dialog === null) return;
  const list = dialog.querySelector("ul");
  const form = dialog.querySelector("form");
  const made = dialog.querySelector(".made");
  const wrong = dialog.querySelector(".wrong");
  let address = "";

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-share]");
    if (button === null) return;
    address = button.dataset.share;
    dialog.showModal();
    attempt(show);
  });
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    present("");
    list.replaceChildren();
    form.reset();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const days = form.elements.days.value;
    attempt(async () => {
      const { path } = await send(address, { body: JSON.stringify(days === "" ? {} : { days: Number(days) }) });
      // As the browser reaches the master, whatever the master knows of its address.
      if (dialog.open) present(location.origin + path);
      await show();
    });
  });

  async function attempt(action) {
    wrong.hidden = true;
    try {
      await action();
    } catch (error) {
      wrong.textContent = error.message;
      wrong.hidden = false;
    }
  }

  async function show() {
    const answer = await request(address, {}, "Open the dialog again.");
    if (!answer.ok) throw new Error(await reasonOf(answer));
    const { links } = await answer.json();
    list.replaceChildren(
      ...(links.length ? links.map(entry) : [element("li", { className: "faint", textContent: "There is no link." })]),
    );
  }

  function entry({ id, username, madeAt, expiresAt, isOver }) {
    const end = expiresAt === null ? "" : `, ${isOver ? "ended" : "until"} ${momentText(new Date(expiresAt))}`;
    const revoke = element("button", { type: "button", textContent: "Revoke" });
    revoke.setAttribute("aria-label", `Revoke link ${id}`);
    revoke.addEventListener("click", () =>
      attempt(async () => {
        await send(`${address}/${id}`, { method: "DELETE" });
        // It may be the one that is shown.
        present("");
        await show();
      }),
    );
    return element("li", {}, [
      element("span", { textContent: `Link ${id} by ${username}, made ${momentText(new Date(madeAt))}${end}` }),
      revoke,
    ]);
  }

  function present(link) {
    const field = made.querySelector("input");
    made.hidden = link === "";
    field.value = link;
    made.querySelector("[data-copy]").dataset.copy = link;
    if (link !== "") field.select();
  }
}
