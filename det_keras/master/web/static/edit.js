// Editing in place: a name, a description, notes, labels and the star of an experiment.

import { say, send } from "./actions.js";
import { element } from "./elements.js";
import { refreshSoon } from "./live.js";

const STAR = "starred";

document.addEventListener("click", (event) => {
  const edit = event.target.closest("[data-edit]");
  if (edit !== null) return open(edit);
  const label = event.target.closest("[data-unlabel]");
  if (label !== null)
    return change(`${label.dataset.address}/labels/${encodeURIComponent(label.dataset.unlabel)}`, { method: "DELETE" });
  const star = event.target.closest("[data-star]");
  if (star !== null)
    return change(`${star.dataset.star}/labels/${STAR}`, {
      method: star.getAttribute("aria-pressed") === "true" ? "DELETE" : "PUT",
    });
});

// Puts a field in the place of the text until the user saves or cancels.
function open(button) {
  const { edit, address, value } = button.dataset;
  const place = document.getElementById(button.dataset.place);
  if (place.hidden) return;
  const isLong = edit === "notes" || edit === "description";
  const field = element(isLong ? "textarea" : "input", {
    value: edit === "label" ? "" : value,
    className: "editor",
    rows: isLong ? Math.min(20, Math.max(4, value.split("\n").length + 1)) : undefined,
  });
  field.setAttribute("aria-label", button.getAttribute("aria-label"));
  const save = element("button", { type: "submit", textContent: "Save" });
  const cancel = element("button", { type: "button", textContent: "Cancel" });
  // A refresh of the page leaves it and what the user has typed in place.
  const refusal = element("p", { className: "wrong", hidden: true });
  refusal.setAttribute("role", "alert");
  const form = element("form", { className: "editing" }, [
    field,
    refusal,
    element("span", { className: "buttons" }, [save, cancel]),
  ]);
  form.dataset.inserted = "yes";
  const close = () => {
    form.remove();
    place.hidden = false;
    button.focus();
  };
  cancel.addEventListener("click", close);
  form.addEventListener("keydown", (event) => event.key === "Escape" && close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = field.value;
    const label = text.trim();
    try {
      if (edit !== "label")
        await send(address, {
          method: "PATCH",
          body: JSON.stringify({ [edit]: text, ifUnchanged: { [edit]: value } }),
        });
      else if (label !== "") await send(`${address}/labels/${encodeURIComponent(label)}`, { method: "PUT" });
      refreshSoon();
      close();
    } catch (error) {
      // The text stays in the field.
      refusal.textContent = error.message;
      refusal.hidden = false;
    }
  });
  place.hidden = true;
  place.after(form);
  field.focus();
}

async function change(address, options) {
  try {
    await send(address, options);
    refreshSoon();
  } catch (error) {
    say(error.message);
  }
}
