// Where the layers of a model are drawn: a graph in rows, each layer below all that it receives from (longest path), with
// groups that are open inside of their boxes. Plain numbers in, plain numbers out.

export const BOX = { width: 196, height: 58 };
const GAP = { x: 22, y: 30 };
// The title of an open group, and the space around what is in it.
const HEAD = BOX.height + 10;
const PAD = 14;
// The width of a connection that passes other layers, and of one that leads upwards beside them.
const LANE = 10;
const BACK = 26;
// Connections that pass rows get a place in each, up to this number; others are straight.
const MOST_PLACES = 20000;
const SWEEPS = 4;

// Returns `width` and `height`; `boxes` with `layer`, `path` (indices from the outermost group), `x`, `y`, `width`, `height`
// and for groups `isOpen`; and `edges` with the paths `from` and `to`, and `points`. `isBack` is an edge to a layer that is
// not below its source: a layer that is called several times has one box.
export function layout(layers, isOpen, path = []) {
  const inner = layers.map((layer, index) =>
    layer.layers && isOpen([...path, index].join("/")) ? layout(layer.layers, isOpen, [...path, index]) : null,
  );
  const nodes = layers.map((_, index) => ({ index, ...sizeOf(inner[index]), above: [] }));
  const ranks = ranksOf(layers);
  const rows = [];
  for (const [index, node] of nodes.entries()) {
    rows[ranks[index]] ??= [];
    rows[ranks[index]].push(node);
  }
  const routes = addRoutes(layers, nodes, ranks, rows);
  const depth = placeRows(rows);
  const hasBack = routes.some(({ isBack }) => isBack);
  const width = Math.max(0, ...rows.flat().map(({ x, width }) => x + width)) + (hasBack ? BACK : 0);
  const boxes = nodes.flatMap((node, index) => {
    const own = {
      layer: layers[index],
      path: [...path, index].join("/"),
      x: node.x,
      y: node.y,
      width: node.width,
      height: node.height,
      isOpen: inner[index] !== null,
    };
    return [own, ...moved(inner[index]?.boxes ?? [], node)];
  });
  const edges = nodes.flatMap((node, index) => moved(inner[index]?.edges ?? [], node));
  for (const route of routes) edges.push(edgeOf(route, nodes, path, width));
  return { width, height: depth, boxes, edges };
}

function sizeOf(inner) {
  if (inner === null) return { ...BOX };
  return { width: Math.max(BOX.width, inner.width + 2 * PAD), height: HEAD + inner.height + PAD };
}

// The length of the longest path to each layer. Without any connection the layers are one below another.
function ranksOf(layers) {
  if (layers.every(({ inputs }) => inputs.length === 0)) return layers.map((_, index) => index);
  const ranks = [];
  layers.forEach(({ inputs }, index) =>
    ranks.push(Math.max(-1, ...inputs.filter((from) => from < index).map((from) => ranks[from])) + 1),
  );
  return ranks;
}

// Adds a place in each row that a connection passes, and returns the connections.
function addRoutes(layers, nodes, ranks, rows) {
  const routes = [];
  let places = 0;
  layers.forEach(({ inputs }, to) => {
    for (const from of inputs) {
      const route = { from, to, isBack: from >= to, passed: [] };
      routes.push(route);
      if (route.isBack) continue;
      let before = nodes[from];
      const count = ranks[to] - ranks[from] - 1;
      if (places + count <= MOST_PLACES) {
        places += count;
        for (let rank = ranks[from] + 1; rank < ranks[to]; rank += 1) {
          const place = { width: LANE, height: 0, above: [before] };
          rows[rank].push(place);
          route.passed.push(place);
          before = place;
        }
      }
      nodes[to].above.push(before);
    }
  });
  return routes;
}

// Gives each node its place, row by row: near what is above it, in the order of that, without overlap.
function placeRows(rows) {
  let y = 0;
  for (const row of rows) {
    const height = Math.max(0, ...row.map((node) => node.height));
    for (const node of row) {
      node.y = y;
      node.wish = node.above.length
        ? node.above.reduce((sum, each) => sum + each.x + each.width / 2, 0) / node.above.length
        : 0;
    }
    // A stable sort: layers that wish the same place keep their order.
    row.sort((a, b) => a.wish - b.wish);
    placeRow(row);
    for (const node of row) node.height ||= height;
    y += height + GAP.y;
  }
  const least = Math.min(0, ...rows.flat().map(({ x }) => x));
  for (const node of rows.flat()) node.x -= least;
  return Math.max(0, y - GAP.y);
}

function placeRow(row) {
  let shift = 0;
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    let right = -Infinity;
    let off = 0;
    for (const node of row) {
      node.x = Math.max(node.wish - node.width / 2 + shift, right + GAP.x);
      right = node.x + node.width;
      off += node.x + node.width / 2 - node.wish;
    }
    if (Math.abs(off) < 1) return;
    // Half of them are left of their wish, not all of them right of it.
    shift -= off / row.length;
  }
}

function moved(parts, { x, y }) {
  const inset = { x: x + PAD, y: y + HEAD };
  return parts.map((part) =>
    part.points
      ? { ...part, points: part.points.map(([px, py]) => [px + inset.x, py + inset.y]) }
      : { ...part, x: part.x + inset.x, y: part.y + inset.y },
  );
}

function edgeOf({ from, to, isBack, passed }, nodes, path, width) {
  const [start, end] = [nodes[from], nodes[to]];
  const ends = { from: [...path, from].join("/"), to: [...path, to].join("/"), isBack };
  if (isBack) {
    const lane = width - BACK / 3;
    const [low, high] = [start.y + start.height - 14, end.y + 14];
    return {
      ...ends,
      points: [
        [start.x + start.width, low],
        [lane, low],
        [lane, high],
        [end.x + end.width, high],
      ],
    };
  }
  const middle = ({ x, width: own }) => x + own / 2;
  const points = [[middle(start), start.y + start.height]];
  for (const place of passed) points.push([middle(place), place.y], [middle(place), place.y + place.height]);
  return { ...ends, points: [...points, [middle(end), end.y]] };
}
