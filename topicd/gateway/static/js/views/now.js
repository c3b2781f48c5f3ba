// What is wrong first, then how it goes.

import { h, put } from "../dom.js";
import { curl, topicctl } from "../api.js";
import { lineChart } from "../chart.js";
import { count, duration, ms, percent, short, size } from "../format.js";
import { card, head, pill, shell, table, tile } from "../parts.js";

export function open(shared) {
  const problems = h("div", { class: "problems" });
  const tiles = h("div", { class: "tiles" });
  const charts = h("div", { class: "charts" });
  const busiest = h("div");
  const processes = h("div");
  const sub = h("span", null, "waiting for the first second");
  const node = h("div", null, head("Now", sub), problems, tiles, charts,
    h("div", { class: "columns" }, card("Busiest topics", busiest), card("Processes", processes)),
    shell(topicctl("status"), topicctl("top"), curl("GET", "/v0/metrics")));
  let drawn = 0;

  function tick(now) {
    put(sub, `topicd ${now.version}, up ${duration(now.uptime_s)}, run ${now.run} of ${now.instance}`);
    put(problems, now.problems.length ? now.problems.map(problem) : h("p", { class: "well" }, "Nothing is wrong."));
    put(tiles, tilesOf(now));
    put(busiest, busiestOf(now));
    put(processes, processesOf(now));
    const step = shared.history.length;
    const newest = step ? shared.history[step - 1][0] : 0;
    if (newest !== drawn || !charts.firstChild) {
      drawn = newest;
      put(charts, chartsOf(shared));
    }
  }
  return { title: "Now", node, tick };
}

function problem(one) {
  return h("a", { class: `problem ${one.level}`, href: one.link }, h("span", { class: "problem-level" }, { bad: "bad", warn: "look", note: "note" }[one.level]),
    h("span", null, one.text));
}

function tilesOf(now) {
  const { flow, latency, totals, pressure } = now;
  return [
    tile("In", `${short(flow.in)}/s`, `${size(flow.bytes)}/s written`),
    tile("Out", `${short(flow.out)}/s`, `${count(totals.sessions)} connections`),
    tile("Append p50", ms(latency.append[0]), `p99 ${ms(latency.append[1])}`),
    tile("Sync p50", ms(latency.sync[0]), `p99 ${ms(latency.sync[1])}, ${short(flow.syncs)}/s`),
    tile("Pressure", percent(pressure.value), pressure.steps.filter((step) => step.active).map((step) => step.name).join(", ") || "no step in force",
      pressure.value >= 0.8 ? "bad" : pressure.value >= 0.2 ? "warn" : ""),
    tile("Topics", count(totals.topics), `${size(totals.stored_bytes + totals.tail_bytes)} held`),
    tile("Jobs ready", count(totals.jobs_ready), `${count(totals.jobs_in_flight)} taken, ${count(totals.jobs_dead)} died`),
    now.disk?.size ? tile("Disk free", size(now.disk.free), percent(now.disk.free / now.disk.size), now.disk.free / now.disk.size < 0.1 ? "warn" : "") : null,
  ];
}

function chartsOf({ history, step }) {
  const pick = (...at) => history.map((row) => [row[0], ...at.map((i) => row[i])]);
  const options = { step };
  return [
    lineChart("Records per second", [{ name: "in", class: "a" }, { name: "out", class: "b" }], pick(1, 2), short, { ...options, floor: 10 }),
    lineChart("Append latency", [{ name: "p50", class: "a" }, { name: "p99", class: "b" }], pick(3, 4), ms, { ...options, floor: 1 }),
    lineChart("Sync latency", [{ name: "p50", class: "a" }, { name: "p99", class: "b" }], pick(5, 6), ms, { ...options, floor: 1 }),
    lineChart("Pressure", [{ name: "pressure", class: "a" }], pick(7), percent, { ...options, floor: 1 }),
    lineChart("CPU of all processes", [{ name: "cpu", class: "a" }], pick(8), (value) => `${Math.round(value)} %`, { ...options, floor: 10 }),
    lineChart("Memory of all processes", [{ name: "memory", class: "a" }], pick(9), size, { ...options, floor: 64 * 1048576, base: 2 }),
  ];
}

function busiestOf(now) {
  const rows = [...now.topics].sort((a, b) => b.rate - a.rate || b.head - a.head).slice(0, 8);
  return table([
    { name: "topic", class: "name", cell: (row) => h("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic) },
    { name: "in/s", right: true, cell: (row) => short(row.rate) },
    { name: "head", right: true, cell: (row) => count(row.head) },
    { name: "lag", right: true, cell: (row) => count(row.lag) },
  ], rows, { caption: "Busiest topics", empty: "no topic was written lately" });
}

function processesOf(now) {
  return table([
    { name: "process", cell: (row) => row.name },
    { name: "state", cell: (row) => pill(row.state, row.state === "serving" ? "good" : "warn") },
    { name: "cpu", right: true, cell: (row) => `${Math.round(row.cpu)} %` },
    { name: "memory", right: true, cell: (row) => size(row.rss) },
  ], now.processes, { caption: "Processes" });
}
