// Draws the figures of a report, which are part of the page. It follows times.js and theme.js in the same script.

function drawAll() {
  for (const canvas of document.querySelectorAll("[data-report-figure]")) {
    const figure = JSON.parse(document.getElementById(canvas.dataset.reportFigure).textContent);
    canvas.replaceChildren();
    window.Plotly.react(canvas, figure.data, themed(figure.layout, canvas), OPTIONS);
  }
}

localize(document);
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
