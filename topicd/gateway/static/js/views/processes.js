// The processes: state, rings, restarts, and what they warned of.

import { h, put } from "../dom.js";
import { curl, topicctl } from "../api.js";
import { count, duration, percent, size, time } from "../format.js";
import { card, head, pill, shell, table } from "../parts.js";

export function open() {
  const list = h("div");
  const rings = h("div");
  const warnings = h("div");
  function tick(now) {
    put(list, table([
      { name: "process", class: "name", cell: (row) => row.name },
      { name: "state", cell: (row) => [pill(row.state, row.state === "serving" ? "good" : row.state === "recovering" ? "warn" : "bad"), row.what ? h("small", null, ` ${row.what}`) : null] },
      { name: "pid", right: true, cell: (row) => row.pid || "–" },
      { name: "up", right: true, cell: (row) => duration(row.uptime_s) },
      { name: "restarts", right: true, cell: (row) => (row.restarts ? pill(count(row.restarts), "warn") : "0") },
      { name: "cpu", right: true, cell: (row) => `${Math.round(row.cpu)} %` },
      { name: "memory", right: true, cell: (row) => size(row.rss) },
      { name: "does", cell: (row) => doing(row.figures) },
    ], now.processes, { caption: "Processes" }));
    const rows = now.processes.flatMap((row) => (row.rings ?? []).map((fill, at) => ({ wal: row.name, from: `dlv-${String(at).padStart(2, "0")}`, fill })));
    put(rings, h("div", { class: "rings" }, rows.map((row) => h("div", { class: "ring" },
      h("span", null, `${row.from} → ${row.wal}`), h("meter", { min: 0, max: 1, low: 0.5, high: 0.8, optimum: 0, value: String(row.fill), "aria-label": `ring ${row.from} to ${row.wal}` }),
      h("span", { class: "right" }, percent(row.fill))))));
    const said = now.processes.flatMap((row) => row.warnings.map(([ts, level, words]) => ({ ts, level, words, process: row.name }))).sort((a, b) => b.ts - a.ts);
    put(warnings, table([
      { name: "time", right: true, cell: (row) => time(row.ts) }, { name: "process", cell: (row) => row.process },
      { name: "level", cell: (row) => pill(row.level, row.level === "warning" ? "warn" : "bad") }, { name: "what", class: "data", cell: (row) => row.words },
    ], said.slice(0, 40), { caption: "Last warnings", empty: "no process has warned of anything" }));
  }
  return {
    title: "Processes", tick,
    node: h("div", null, head("Processes", "a supervisor, and one process for each shard"), list, card("Rings between delivery and WAL shards", rings),
      card("Last warnings of the log", warnings), shell(topicctl("status"), topicctl("shards"), curl("GET", "/v0/stats"))),
  };
}

function doing(figures) {
  const said = [];
  if (figures.topics !== undefined) said.push(`${count(figures.topics)} topics`, `${count(figures.sessions)} connections`, `${count(figures.records)} records taken`);
  if (figures.groups !== undefined) said.push(`${count(figures.groups)} groups`, `${count(figures.syncs)} syncs`, size(figures.bytes));
  return said.join(", ");
}
