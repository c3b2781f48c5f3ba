// Routers as a drawing: topics in columns by how far they are from a source, arrows from left to right.

import { h, s } from "../dom.js";
import { short } from "../format.js";

const BOX_W = 168;
const BOX_H = 34;
const GAP_X = 90;
const GAP_Y = 18;

export function graph(rows, here = "") {
  const names = [...new Set(rows.flatMap((row) => [row.source, row.dest]))];
  const depth = Object.fromEntries(names.map((name) => [name, 0]));
  for (let round = 0; round < names.length; round++) {
    let moved = false;
    for (const row of rows) {
      if (depth[row.dest] < depth[row.source] + 1 && depth[row.source] + 1 < names.length) {
        depth[row.dest] = depth[row.source] + 1;
        moved = true;
      }
    }
    if (!moved) break;
  }
  const columns = [];
  for (const name of names) (columns[depth[name]] ??= []).push(name);
  const places = {};
  const filled = columns.filter(Boolean);
  const tallest = Math.max(...filled.map((column) => column.length));
  const height = tallest * (BOX_H + GAP_Y) + GAP_Y;
  filled.forEach((column, x) => column.sort().forEach((name, y) => {
    places[name] = [10 + x * (BOX_W + GAP_X), (height - column.length * (BOX_H + GAP_Y)) / 2 + GAP_Y / 2 + y * (BOX_H + GAP_Y)];
  }));
  const width = filled.length * (BOX_W + GAP_X) - GAP_X + 20;
  const said = rows.map((row) => `${row.source} to ${row.dest}`).join(", ");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Drawing of routers" },
    s("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": said },
      s("defs", null, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
        s("path", { class: "tip", d: "M0 0L8 4L0 8z" }))),
      rows.map((row) => arrow(row, places)), names.map((name) => box(name, places[name], name === here))));
}

function arrow(row, places) {
  const [x1, y1] = places[row.source];
  const [x2, y2] = places[row.dest];
  const [a, b] = [x1 + BOX_W, y1 + BOX_H / 2];
  const [c, d] = [x2, y2 + BOX_H / 2];
  const bend = c > a ? (c - a) / 2 : 60;
  const lag = row.lag ?? 0;
  return s("g", { class: row.waiting ? "edge waiting" : lag > 1000 ? "edge late" : "edge" },
    s("title", null, `${row.router}: ${row.forwarded_total ?? 0} copied, ${lag} behind${row.waiting ? ", stands still: " + row.waiting : ""}`),
    s("path", { d: `M${a} ${b}C${a + bend} ${b} ${c - bend} ${d} ${c - 2} ${d}`, "marker-end": "url(#tip)" }),
    // Near its end, where the lines that leave one box have parted.
    s("text", { x: a + 0.7 * (c - a), y: b + 0.784 * (d - b) - 5, "text-anchor": "middle" }, row.waiting ? "stands still" : lag ? `${short(lag)} behind` : short(row.forwarded_total ?? 0)));
}

function box(name, [x, y], here) {
  const label = name.length > 22 ? name.slice(0, 21) + "…" : name;
  return s("a", { href: `#/topics/${encodeURIComponent(name)}`, class: here ? "box here" : "box" },
    s("title", null, name),
    s("rect", { x, y, width: BOX_W, height: BOX_H, rx: 7 }),
    s("text", { x: x + BOX_W / 2, y: y + BOX_H / 2 + 4, "text-anchor": "middle" }, label));
}
