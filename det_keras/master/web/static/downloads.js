// Files that pages make: tables as CSV, and the download of any content.

import { element } from "./elements.js";

const KEPT_MS = 10_000;

export function csv(rows) {
  const cell = (value) => {
    const text = String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return new Blob([rows.map((row) => row.map(cell).join(",")).join("\n"), "\n"], { type: "text/csv" });
}

export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}
