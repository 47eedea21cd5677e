// Files that pages make: tables as CSV, and the download of any content.

import { element } from "./elements.js";

const KEPT_MS = 10_000;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

export function csv(rows) {
  const cell = (value) => {
    let text = String(value);
    // A spreadsheet would calculate it.
    if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text) && !NUMBER.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return new Blob([rows.map((row) => row.map(cell).join(",")).join("\n"), "\n"], { type: "text/csv" });
}

export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}
