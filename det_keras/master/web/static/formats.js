// Numbers, durations and sizes as the command line prints them (`det_keras/display.py`).

export function numberText(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return typeof value === "string" ? value : JSON.stringify(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  const text = Number(value.toPrecision(4));
  const size = Math.abs(text);
  return size !== 0 && (size < 1e-4 || size >= 1e15)
    ? text.toExponential().replace(/e([+-])(\d)$/, "e$10$2")
    : String(text);
}

// Unlike a count, a metric keeps its decimals: 1.0.
export function metricText(value) {
  return Number.isInteger(value) && Math.abs(value) < 1e6 ? value.toFixed(1) : numberText(value);
}

export function durationText(duration) {
  const whole = Math.max(0, Math.round(duration));
  const [days, hours, minutes, seconds] = [
    Math.floor(whole / 86400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
    whole % 60,
  ];
  const two = (number) => String(number).padStart(2, "0");
  if (days) return `${days}d ${two(hours)}h`;
  if (hours) return `${hours}h ${two(minutes)}m`;
  return minutes ? `${minutes}m ${two(seconds)}s` : `${seconds}s`;
}

export function sizeText(bytes) {
  if (bytes < 1024) return `${Math.round(bytes)}B`;
  for (const unit of ["KB", "MB", "GB"]) {
    bytes /= 1024;
    if (bytes < 1024) return `${bytes.toFixed(1)}${unit}`;
  }
  return `${(bytes / 1024).toFixed(1)}TB`;
}
