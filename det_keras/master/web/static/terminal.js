// What a terminal would show of a line: colours, and only the last state of a progress bar.

const CODE =
  /\x1b\[([0-9;:?]*)([@-~])|\x1b[()][0-9A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_=>]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;

// Returns the text after the last carriage return that has text behind it.
export function folded(text) {
  const line = text.replace(/[\r\n]+$/, "");
  return line.slice(line.lastIndexOf("\r") + 1);
}

// Returns [{text, style}] without escape codes. `style` has the names of CSS classes, and `color` for 24-bit colours.
export function runs(text) {
  const found = [];
  let style = {};
  let from = 0;
  const push = (part) => part && found.push({ text: part, classes: classes(style), color: style.color });
  for (const match of text.matchAll(CODE)) {
    push(text.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[2] === "m") style = styled(style, match[1]);
  }
  push(text.slice(from));
  return found;
}

function classes(style) {
  return Object.entries(style)
    .filter(([name, value]) => value && name !== "color")
    .map(([name, value]) => (value === true ? name : `${name}-${value}`));
}

function styled(before, codes) {
  let style = { ...before };
  const numbers = codes.split(/[;:]/).map(Number);
  while (numbers.length) {
    const code = numbers.shift();
    if (code === 0) style = {};
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code >= 30 && code <= 37) Object.assign(style, { fg: String(code - 30), color: undefined });
    else if (code >= 90 && code <= 97) Object.assign(style, { fg: String(code - 82), color: undefined });
    else if (code === 39) Object.assign(style, { fg: undefined, color: undefined });
    else if (code === 38) Object.assign(style, extended(numbers));
    // Backgrounds are left out: they would have to be readable in both themes.
    else if (code === 48) extended(numbers);
  }
  return style;
}

// Reads the rest of `38;5;N` or `38;2;R;G;B`.
function extended(numbers) {
  if (numbers.shift() === 2) {
    const [red = 0, green = 0, blue = 0] = numbers.splice(0, 3);
    return { fg: undefined, color: `rgb(${red} ${green} ${blue})` };
  }
  const index = numbers.shift() ?? 0;
  if (index < 16) return { fg: String(index), color: undefined };
  if (index >= 232) return { fg: undefined, color: gray(8 + 10 * (index - 232)) };
  const level = (step) => (step ? 55 + 40 * step : 0);
  const [red, green, blue] = [Math.floor((index - 16) / 36), Math.floor((index - 16) / 6) % 6, (index - 16) % 6].map(
    level,
  );
  return { fg: undefined, color: `rgb(${red} ${green} ${blue})` };
}

const gray = (level) => `rgb(${level} ${level} ${level})`;
