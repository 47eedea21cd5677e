// Colours of runs. A run has the same colour on every page.

const dark = matchMedia("(prefers-color-scheme: dark)");

// Lightnesses in the two themes.
const [LIGHT, DARK] = [0.58, 0.76];
const ON_PAPER = { "var(--text)": "#1b1f24", "var(--faint)": "#566070" };

// The golden angle keeps neighbouring numbers far apart, and no two of many runs have the same colour.
export function runColor(id) {
  const hue = (id * 137.508 + 210) % 360;
  const step = [0, 0.07, -0.06][id % 3];
  return `oklch(${(dark.matches ? DARK : LIGHT) + step} 0.15 ${hue.toFixed(1)})`;
}

// Returns the colour that a line of the page has on white paper: light lines are for the dark theme.
export function onPaper(color) {
  if (color in ON_PAPER) return ON_PAPER[color];
  return dark.matches
    ? color.replace(/^oklch\(([\d.]+)/, (_, lightness) => `oklch(${(lightness - DARK + LIGHT).toFixed(3)}`)
    : color;
}

// Source: the colour map "viridis" of matplotlib (van der Walt and Smith, 2015), at seven positions.
const VIRIDIS = [
  [68, 1, 84],
  [68, 57, 131],
  [48, 104, 142],
  [33, 145, 140],
  [53, 183, 121],
  [144, 215, 67],
  [253, 231, 37],
];

// Returns the colour of a fraction from 0 to 1.
export function viridis(fraction) {
  const place = Math.min(Math.max(fraction, 0), 1) * (VIRIDIS.length - 1);
  const index = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const mixed = VIRIDIS[index].map((low, channel) =>
    Math.round(low + (VIRIDIS[index + 1][channel] - low) * (place - index)),
  );
  return `rgb(${mixed.join(" ")})`;
}

// Returns a function from values to colours: viridis for numbers, by the order of their logarithms if they span decades,
// and a colour for each text.
export function scale(values) {
  const known = values.filter((value) => value !== undefined && value !== null);
  const numbers = known.filter((value) => typeof value === "number" && Number.isFinite(value));
  if (numbers.length === known.length && numbers.length > 0) {
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const isLog = low > 0 && high / low >= 50;
    const bend = isLog ? Math.log : (value) => value;
    const fraction = (value) => (high === low ? 0.5 : (bend(value) - bend(low)) / (bend(high) - bend(low)));
    return {
      low,
      high,
      isLog,
      color: (value) => (typeof value === "number" ? viridis(fraction(value)) : "var(--faint)"),
    };
  }
  const kinds = [...new Set(known.map(String))].sort();
  return {
    kinds,
    color: (value) =>
      value === undefined || value === null ? "var(--faint)" : runColor(kinds.indexOf(String(value)) * 5 + 1),
  };
}
