// Draws the figures of a report, which are part of the page. It follows times.js and theme.js in the same script.

function drawAll() {
  for (const canvas of document.querySelectorAll("[data-report-figure]")) {
    const figure = JSON.parse(document.getElementById(canvas.dataset.reportFigure).textContent);
    canvas.replaceChildren();
    window.Plotly.react(canvas, figure.data, themed(figure.layout, canvas), OPTIONS);
  }
}

// Plotly's script is compressed in the page. The policy of the page allows it by its hash.
async function loadPlotly() {
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

localize(document);
try {
  await loadPlotly();
} catch (error) {
  for (const canvas of document.querySelectorAll("[data-report-figure]")) {
    canvas.textContent = `The plots need a newer browser (${error.message}).`;
  }
  throw error;
}
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
