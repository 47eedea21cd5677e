// The files of a card: a picture, a drawing, a table.

import { csv } from "./downloads.js";
import { drawing } from "./drawing.js";

// Dots of a picture for each one of the drawing: 300 per inch in a column of a paper.
const PICTURE_SCALE = 3;

export async function svgFile(card) {
  return { blob: new Blob([drawing(card).svg], { type: "image/svg+xml" }), extension: "svg" };
}

// The drawing as dots.
export async function pngFile(card) {
  const { svg, width, height } = drawing(card);
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.round(PICTURE_SCALE * width), Math.round(PICTURE_SCALE * height)];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return { blob: await new Promise((resolve) => canvas.toBlob(resolve, "image/png")), extension: "png" };
  } finally {
    URL.revokeObjectURL(address);
  }
}

export async function csvFile(card) {
  const axis = card.wall.axisName(card.spec);
  const [x, ...curves] = card.plot.data;
  const isGrouped = card.bands.length > 0;
  const rows = [isGrouped ? ["group", "metric", axis, "mean", "deviation"] : ["run", "metric", axis, "value"]];
  card.lines.forEach((line, index) => {
    if (line.isRaw || line.isEdge) return;
    // Behind the mean of a group are the edges of its band.
    const more = (at) => (isGrouped ? [curves[index + 1][at] - line.y[at]] : []);
    const names = [line.group ?? card.wall.nameOf(line.trial), card.spec.source ? line.label : line.metric];
    line.y.forEach(
      (value, at) => value === undefined || rows.push([...names, x[at], value === null ? "NaN" : value, ...more(at)]),
    );
  });
  return { blob: csv(rows), extension: "csv" };
}
