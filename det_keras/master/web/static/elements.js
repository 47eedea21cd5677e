// Elements of pages, made without HTML text: what users wrote is never read as markup.

export function element(name, properties = {}, children = []) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

// A small button with an icon of the page's sprite, or with a short text.
const ICONS = new Set(["baseline", "pin", "edit", "full", "eye", "best"]);

export function iconButton(kind, title, action) {
  const button = element("button", { type: "button", className: `icon ${kind}`, title, onclick: action });
  button.setAttribute("aria-label", title);
  if (!ICONS.has(kind)) button.textContent = title;
  else {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
    svg.setAttribute("aria-hidden", "true");
    use.setAttribute("href", `#i-${kind}`);
    svg.append(use);
    button.append(svg);
  }
  return button;
}

// A state as icon and text; with `title` the icon alone says what it means.
export function stateMark(kind, text, title = "") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${kind}`);
  svg.append(use);
  if (title === "") svg.setAttribute("aria-hidden", "true");
  else {
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", title);
    svg.setAttribute("class", "star");
    return svg;
  }
  return element("span", { className: `state ${kind}` }, [svg, text]);
}
