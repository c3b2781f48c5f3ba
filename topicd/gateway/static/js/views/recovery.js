// A start, or the return of a shard: how far each process is.

import { h, put } from "../dom.js";
import { curl, topicctl } from "../api.js";
import { duration } from "../format.js";
import { card, head, pill, shell } from "../parts.js";

export function open() {
  const whole = h("div");
  const rows = h("div", { class: "recovering" });
  function tick(now) {
    const shards = now.processes.filter((row) => row.name.startsWith("wal") || row.name.startsWith("dlv") || row.name.startsWith("chat"));
    const share = shards.length ? shards.reduce((sum, row) => sum + row.percent, 0) / shards.length : 0;
    const done = now.state === "serving" && shards.every((row) => row.state === "serving");
    put(whole, h("p", null, done ? pill("recovered", "good") : pill("recovering", "warn"), done
      ? ` Everything serves; the daemon is up for ${duration(now.uptime_s)}, this is run ${now.run}.`
      : ` ${Math.floor(share)} % of what the log and the snapshots hold is read again. Writes to shards that serve go on.`),
      h("progress", { max: 100, value: String(Math.floor(share)), "aria-label": "Recovery of all shards" }));
    put(rows, shards.map((row) => h("div", { class: "ring" }, h("span", null, row.name),
      h("progress", { max: 100, value: String(Math.floor(row.percent)), "aria-label": `Recovery of ${row.name}` }),
      h("span", { class: "right" }, row.state === "serving" ? "serves" : `${Math.floor(row.percent)} % ${row.what}`))));
  }
  return {
    title: "Recovery", tick,
    node: h("div", null, head("Recovery", "what a start reads again before it serves"), card(null, whole), card("Shard by shard", rows),
      shell(topicctl("status"), curl("GET", "/readyz"))),
  };
}
