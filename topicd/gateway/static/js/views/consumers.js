// Named consumers of all topics, and moving one with a look at what that skips or repeats.

import { h, put } from "../dom.js";
import { curl, get, path, post, query, topicctl } from "../api.js";
import { ago, count, plural } from "../format.js";
import { button, dialog, field, head, pill, select, shell, table, toast } from "../parts.js";

const STALLED_MS = 60000;

export async function open(shared, parts, params) {
  const state = { prefix: params.get("prefix") ?? "", cursor: params.get("cursor") ?? "" };
  const list = h("div");
  const foot = h("div", { class: "pager" });
  const search = h("input", { type: "search", value: state.prefix, placeholder: "topics that begin with…", "aria-label": "Topics that begin with" });
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { state.prefix = search.value; load(); }, 200);
  });
  async function load() {
    const found = await get("/dashboard/consumers" + query({ ...state, page_size: 50 }));
    found.consumers.sort((a, b) => b.lag - a.lag);
    put(list, tableOf(shared, found.consumers));
    put(foot, h("span", { class: "spring" }), found.next_cursor
      ? h("a", { class: "button", href: "#/consumers" + query({ prefix: state.prefix, cursor: found.next_cursor }) }, "next →") : null);
  }
  await load();
  let beats = 0;
  return {
    title: "Consumers",
    node: h("div", null, head("Consumers", "named readers whose place the daemon keeps"), h("div", { class: "bar" }, search), list, foot,
      shell(topicctl("consumer", "list"), curl("GET", "/dashboard/consumers"))),
    tick() {
      if (++beats % 4 === 0) load().catch(() => {});
    },
  };
}

function tableOf(shared, rows) {
  return table([
    { name: "consumer", class: "name", cell: (row) => row.name },
    { name: "topic", class: "name", cell: (row) => h("a", { href: `#/topics/${encodeURIComponent(row.topic)}/consumers` }, row.topic) },
    { name: "acknowledged", right: true, cell: (row) => count(row.acked_seq) },
    { name: "lag", right: true, cell: (row) => count(row.lag) },
    { name: "last", right: true, cell: (row) => ago(row.updated_ts) },
    { name: "state", cell: (row) => (row.lag && Date.now() - row.updated_ts > STALLED_MS ? pill("stalled", "warn") : row.holder ? pill("reading", "good") : pill("away", "quiet")) },
    { name: "", cell: (row) => [button("Move", () => move(shared, row), { kind: "small" }),
      button("Remove", () => remove(shared, row), { kind: "small danger ghost", scopes: ["consume"] })] },
  ], rows, { caption: "Consumers", empty: "nobody reads under a name" });
}

export async function move(shared, row) {
  const at = h("input", { type: "number", name: "at", value: String(row.acked_seq) });
  const kind = select([["seq", "to seq: the last that counts as read"], ["by", "by ± records"], ["time", "to a time"]], "seq", () => {
    at.type = kind.value === "time" ? "datetime-local" : "number";
    at.value = { seq: String(row.acked_seq), by: "-100", time: "" }[kind.value];
    look();
  }, "Where to");
  const told = h("p", { class: "preview", role: "status" }, "…");
  const lines = h("div");
  let wanted = null;
  let typing = 0;
  async function look() {
    wanted = null;
    const body = { name: row.name };
    if (kind.value === "seq") body.seq = Number(at.value);
    if (kind.value === "by") body.by = Number(at.value);
    if (kind.value === "time") body.ts = new Date(at.value).getTime();
    if (at.value === "" || Object.values(body).some((value) => Number.isNaN(value))) return put(told, "…");
    try {
      const found = await post(path("dashboard", "consumers", row.topic, "preview"), body);
      wanted = body;
      put(told, said(found));
      put(lines, h("code", null, topicctl("consumer", "reset", row.topic, row.name, String(found.to))));
    } catch (error) {
      put(told, error.message);
    }
  }
  at.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(look, 150); });
  look();
  const found = await dialog(`Move ${row.name}`, {
    body: [h("p", { class: "sub" }, `of ${row.topic}, now at #${count(row.acked_seq)} of ${count(row.head_seq)}`)],
    fields: [field("Where to", kind), field("Place", at), told, lines],
    action: "Move it",
  });
  if (!found) return;
  if (!wanted) return toast("that is no place", "bad");
  const done = await post(path("dashboard", "consumers", row.topic, "move"), wanted);
  toast(`${row.name} is at #${count(done.to)} now`);
  shared.refresh();
}

function said(found) {
  const what = found.skips ? `skips ${plural(found.skips, "record")}` : found.repeats ? `repeats ${plural(found.repeats, "record")}` : "changes nothing";
  const holder = found.holder ? ` ${found.holder} reads as it now and goes on from there.` : "";
  const lost = found.skips && found.deletes ? " This topic keeps only what is not acknowledged: what all have skipped is deleted." : "";
  return `From #${count(found.from)} to #${count(found.to)}: ${what}; then it is ${plural(found.lag, "record")} behind.${holder}${lost}`;
}

export async function remove(shared, row) {
  const lost = `Its place, #${count(row.acked_seq)} of ${count(row.head_seq)}, is forgotten: who reads under this name again begins anew.`;
  if (!(await dialog(`Remove ${row.name}`, { action: "Remove it", danger: { lost, name: row.name } }))) return;
  await post(path("dashboard", "consumers", row.topic, "remove"), { name: row.name });
  toast(`${row.name} is forgotten`);
  shared.refresh();
}
