// The language of filters: `optimizer=adam lr<1e-2 val_accuracy>.8 label:asha words`. All terms must hold.

const TERM = /^([^\s=<>!:"]+)(<=|>=|!=|=|<|>|:)(.+)$/;

// Returns a function from a thing to whether it matches.
// `fields(thing)` returns its values by name, `text(thing)` the text in which plain words are searched.
export function matcher(query, { fields, text }) {
  const terms = (query.match(/(?:[^\s"]|"[^"]*")+/g) ?? []).map(term);
  return (thing) => {
    const values = fields(thing);
    return terms.every((test) => test(values, () => text(thing).toLowerCase()));
  };
}

function term(word) {
  const bare = word.replaceAll('"', "");
  const [, name, operator, wanted] = bare.match(TERM) ?? [];
  const asText = (_, text) => text().includes(bare.toLowerCase());
  if (name === undefined) return asText;
  return (values, text) => {
    const found = lookUp(values, name);
    // A word with a colon may also be plain text, such as an address.
    if (found === undefined) return operator === ":" || operator === "=" ? asText(values, text) : false;
    const all = Array.isArray(found) ? found : [found];
    return operator === "!="
      ? all.every((value) => holds(value, "!=", wanted))
      : all.some((value) => holds(value, operator, wanted));
  };
}

// `lr` also finds `optimizer.lr` when no field has the short name.
function lookUp(values, name) {
  const key = name.toLowerCase();
  const names = Object.keys(values);
  const found =
    names.find((known) => known.toLowerCase() === key) ??
    names.find((known) => known.toLowerCase().endsWith(`.${key}`));
  return found === undefined ? undefined : values[found];
}

function holds(value, operator, wanted) {
  if (value === null || value === undefined) return operator === "!=";
  const [left, right] = [Number(value), Number(wanted)];
  const areNumbers = typeof value !== "boolean" && value !== "" && !Number.isNaN(left) && !Number.isNaN(right);
  /** @type {any[]} */
  const [a, b] = areNumbers ? [left, right] : [String(value).toLowerCase(), wanted.toLowerCase()];
  switch (operator) {
    case ":":
      return areNumbers ? a === b : a.includes(b);
    case "=":
      return a === b;
    case "!=":
      return a !== b;
    case "<":
      return a < b;
    case "<=":
      return a <= b;
    case ">":
      return a > b;
    default:
      return a >= b;
  }
}
