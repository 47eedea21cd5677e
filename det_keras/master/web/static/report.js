// Draws the figures of a report, which are in the page itself. It stands behind theme.js in the same script.

function drawAll() {
  for (const canvas of document.querySelectorAll("[data-report-figure]")) {
    const figure = JSON.parse(document.getElementById(canvas.dataset.reportFigure).textContent);
    canvas.replaceChildren();
    window.Plotly.react(canvas, figure.data, themed(figure.layout, canvas), OPTIONS);
  }
}

drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
