// Elements of pages, made without HTML text: what users wrote is never read as markup.

export function element(name, properties = {}, children = []) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}, children = []) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// An icon of the page's sprite.
const icon = (kind, attributes) => svg("svg", attributes, [svg("use", { href: `#i-${kind}` })]);

// A small button with an icon of the page's sprite, or with a short text.
const ICONS = new Set(["baseline", "pin", "edit", "full", "eye", "best"]);

export function iconButton(kind, title, action) {
  const button = element("button", { type: "button", className: `icon ${kind}`, title, onclick: action });
  button.setAttribute("aria-label", title);
  if (!ICONS.has(kind)) button.textContent = title;
  else button.append(icon(kind, { "aria-hidden": "true" }));
  return button;
}

// A state as icon and text; with `title` the icon alone says what it means.
export function stateMark(kind, text, title = "") {
  if (title !== "") return icon(kind, { role: "img", "aria-label": title, class: "star" });
  return element("span", { className: `state ${kind}` }, [icon(kind, { "aria-hidden": "true" }), text]);
}
