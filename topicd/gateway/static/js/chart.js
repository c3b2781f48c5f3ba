// Line charts and sparklines as SVG: a time axis, a value axis with three marks, a gap where nobody looked.

import { h, s } from "./dom.js";
import { clock } from "./format.js";

const W = 420;
const H = 132;
const LEFT = 52;
const BOTTOM = 18;
const TOP = 8;

// rows: [[ts, value, value…]]; lines: [{name, class}]; shown: value → text. The last hour, or as much of it as was seen.
export function lineChart(title, lines, rows, shown, { longest = 3600e3, shortest = 60e3, step = 5000, floor = 0, base = 10 } = {}) {
  const end = rows.length ? rows[rows.length - 1][0] : Date.now();
  const span = Math.min(longest, Math.max(shortest, rows.length ? end - rows[0][0] : 0));
  const begin = end - span;
  const inside = rows.filter((row) => row[0] >= begin);
  const values = inside.flatMap((row) => row.slice(1));
  const top = nice(Math.max(floor, ...values, 1e-9), base);
  const x = (ts) => LEFT + ((ts - begin) / span) * (W - LEFT - 4);
  const y = (value) => TOP + (1 - value / top) * (H - TOP - BOTTOM);
  const last = inside[inside.length - 1];
  const said = last ? lines.map((line, i) => `${line.name} ${shown(last[i + 1])}`).join(", ") : "no values yet";
  const grid = [0, 0.5, 1].map((share) => [
    s("line", { class: "grid", x1: LEFT, x2: W - 4, y1: y(top * share), y2: y(top * share) }),
    s("text", { class: "axis", x: LEFT - 6, y: y(top * share) + 3, "text-anchor": "end" }, share ? shown(top * share) : "0"),
  ]);
  const marks = [0, 0.5, 1].map((share) =>
    s("text", { class: "axis", x: x(begin + span * share), y: H - 4, "text-anchor": ["start", "middle", "end"][share * 2] },
      clock(begin + span * share, span < 300e3)));
  const drawn = lines.map((line, i) => s("path", { class: `line ${line.class}`, d: pathOf(inside, i + 1, x, y, step) }));
  const fill = lines.length === 1 ? s("path", { class: `area ${lines[0].class}`, d: areaOf(inside, x, y, step) }) : null;
  return h("figure", { class: "chart" },
    h("figcaption", null, h("span", { class: "chart-title" }, title),
      lines.map((line, i) => h("span", { class: `key ${line.class}` }, `${lines.length > 1 ? line.name + " " : ""}`,
        h("b", null, last ? shown(last[i + 1]) : "–")))),
    s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}, last hour: ${said}` }, grid, marks, fill, drawn));
}

function runs(rows, step) {
  const found = [];
  for (const row of rows) {
    const run = found[found.length - 1];
    if (run && row[0] - run[run.length - 1][0] < 4 * step) run.push(row);
    else found.push([row]);
  }
  return found;
}

function pathOf(rows, at, x, y, step) {
  return runs(rows, step).map((run) => run.length === 1
    ? `M${x(run[0][0]).toFixed(1)} ${y(run[0][at]).toFixed(1)}h1.5`
    : run.map((row, i) => `${i ? "L" : "M"}${x(row[0]).toFixed(1)} ${y(row[at]).toFixed(1)}`).join("")).join("");
}

function areaOf(rows, x, y, step) {
  return runs(rows, step).filter((run) => run.length > 1).map((run) => pathOf(run, 1, x, y, step)
    + `L${x(run[run.length - 1][0]).toFixed(1)} ${y(0)}L${x(run[0][0]).toFixed(1)} ${y(0)}Z`).join("");
}

function nice(value, base) {
  if (base === 2) return 2 ** Math.ceil(Math.log2(value));
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= value) ?? value;
}

export function sparkline(values, label) {
  const top = Math.max(...values, 1e-9);
  const step = 88 / Math.max(1, values.length - 1);
  const d = values.map((value, i) => `${i ? "L" : "M"}${(1 + i * step).toFixed(1)} ${(17 - (15 * value) / top).toFixed(1)}`).join("");
  return s("svg", { class: "spark", viewBox: "0 0 90 18", role: "img", "aria-label": label },
    s("path", { class: "line a", d: values.length > 1 ? d : "M1 17h88" }));
}
