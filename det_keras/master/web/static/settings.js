// The settings of a page in its address, so that Back and a sent link restore them.

export function setting(name, fallback = "") {
  return new URL(location.href).searchParams.get(name) ?? fallback;
}

// Stores settings; one that has its default is left out of the address.
export function keepSettings(values, defaults = {}) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(values)) {
    if (value === "" || value === null || value === undefined || String(value) === String(defaults[name] ?? ""))
      address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  if (address.href !== location.href) history.replaceState(null, "", address);
}

// Fills a form from the address, and calls `changed` on each input after storing it.
export function bindForm(form, changed) {
  const fields = [...form.elements].filter((field) => field.name);
  const plain = (field) =>
    field.type === "checkbox" ? "" : field.tagName === "SELECT" ? (field.options[0]?.value ?? "") : field.defaultValue;
  for (const field of fields) {
    const value = setting(field.name, null);
    if (value === null) continue;
    if (field.type === "checkbox") field.checked = true;
    else if (field.type === "radio") field.checked = field.value === value;
    else if (field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value))
      field.value = value;
  }
  form.addEventListener("input", () => {
    const radios = Object.fromEntries(
      fields
        .filter((field) => field.type === "radio" && field.defaultChecked)
        .map((field) => [field.name, field.value]),
    );
    const values = Object.fromEntries(
      fields
        .filter((field) => field.type !== "radio")
        .map((field) => [field.name, field.type === "checkbox" ? (field.checked ? "true" : "") : field.value]),
    );
    for (const name of Object.keys(radios)) values[name] = form.elements[name].value;
    keepSettings(values, { ...Object.fromEntries(fields.map((field) => [field.name, plain(field)])), ...radios });
    changed();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
}
