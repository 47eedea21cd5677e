// The colours of a plot's text and grid, taken from the page.

// No button may send a user's data anywhere: plotly's share button uploads the plot to its cloud.
export const OPTIONS = {
  responsive: true,
  displaylogo: false,
  showSendToCloud: false,
  plotlyServerURL: "",
  modeBarButtonsToRemove: ["lasso2d", "select2d", "sendChartToCloud", "sendDataToCloud"],
};

export function themed(layout, canvas) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = {
    gridcolor: color("--grid"),
    linecolor: color("--line"),
    zerolinecolor: color("--line"),
    automargin: true,
    exponentformat: "power",
    minexponent: 6,
    separatethousands: true,
  };
  const result = {
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: color("--text"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    hoverlabel: { bgcolor: color("--sheet"), bordercolor: color("--line"), font: { color: color("--text") } },
    modebar: { color: color("--faint"), activecolor: color("--accent"), bgcolor: "rgba(0,0,0,0)" },
    ...layout,
  };
  for (const name of Object.keys(result)) {
    if (/^[xy]axis\d*$/.test(name)) result[name] = { ...axis, ...result[name] };
  }
  result.height ??= Math.max(canvas.clientHeight, 280);
  return result;
}
