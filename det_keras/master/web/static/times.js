// Times in the browser's time zone, with the date: the same rule for pages, logs and reports.

const pad = (number, width = 2) => String(number).padStart(width, "0");

export function momentText(date) {
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

// Writes all times below `root`; `data-ago` times keep their text and get the time as a tooltip.
export function localize(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    if ("ago" in element.dataset) element.title = momentText(date);
    else {
      element.textContent = momentText(date);
      element.title = `${element.dateTime} (${Intl.DateTimeFormat().resolvedOptions().timeZone})`;
    }
  }
}
