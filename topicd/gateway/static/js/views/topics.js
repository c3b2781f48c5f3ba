// Topics: the table, whose order and pages the daemon makes, and the way to a topic's own page.

import { h, put } from "../dom.js";
import { curl, get, may, path, post, query, topicctl, ask } from "../api.js";
import { sparkline } from "../chart.js";
import { ago, count, short, size } from "../format.js";
import { button, dialog, field, head, pill, select, shell, table, toast } from "../parts.js";
import { openTopic } from "./topic.js";

const SIZE = 50;
const SPARK = 40;
const rates = new Map(); // by topic: what it took in the last seconds that this page saw

export async function open(shared, parts, params) {
  if (parts.length && parts[0]) return openTopic(shared, parts, params);
  const state = {
    prefix: params.get("prefix") ?? "", sort: params.get("sort") ?? "name", only: params.get("only") ?? "any",
    cursor: params.get("cursor") ?? "",
  };
  const list = h("div");
  const foot = h("div", { class: "pager" });
  const search = h("input", { type: "search", value: state.prefix, placeholder: "names that begin with…", "aria-label": "Names that begin with" });
  const go = (more) => shared.go("topics", [], { ...state, cursor: "", ...more, sort: (more.sort ?? state.sort) === "name" ? "" : more.sort ?? state.sort,
    only: (more.only ?? state.only) === "any" ? "" : more.only ?? state.only });
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { state.prefix = search.value; state.cursor = ""; load(); history.replaceState(null, "", "#/topics" + query({ prefix: state.prefix })); }, 200);
  });
  const node = h("div", null,
    head("Topics", "sorted and paged by the daemon; rates are those this page has seen",
      button("New topic", () => create(shared), { kind: "primary", scopes: ["admin"] })),
    h("div", { class: "bar" }, search,
      select([["any", "all"], ["queues", "queues"], ["consumed", "with consumers"]], state.only, (only) => go({ only }), "Which topics")),
    list, foot);
  const lines = h("div");
  node.append(lines);

  let asked = 0;
  async function load() {
    const wanted = query({ ...state, page_size: SIZE, sort: state.sort, only: state.only });
    const mine = ++asked;
    const found = await get("/dashboard/topics" + wanted);
    if (mine !== asked) return; // an answer that was overtaken says what nobody asks any more
    put(list, tableOf(found.topics, state.sort, (sort) => go({ sort })));
    put(foot, found.total !== undefined ? h("span", { class: "sub" }, `${count(found.total)} topics, as of ${found.age_s} s ago`) : null,
      h("span", { class: "spring" }),
      state.cursor ? h("button", { type: "button", class: "ghost", onclick: () => window.history.back() }, "← back") : null,
      found.next_cursor ? h("a", { class: "button", href: "#/topics" + query({ ...state, sort: state.sort === "name" ? "" : state.sort,
        only: state.only === "any" ? "" : state.only, cursor: found.next_cursor }) }, "next →") : null);
    put(lines, shell(topicctl("topic", "list", state.prefix), curl("GET", "/v0/topics" + query({ prefix: state.prefix }))));
  }
  await load();
  let beats = 0;
  return {
    title: "Topics",
    node,
    tick(now) {
      note(now);
      if (++beats % 5 === 0) load().catch(() => {});
      else for (const cell of list.querySelectorAll("[data-rate]")) put(cell, rateOf(cell.dataset.rate));
    },
  };
}

export function note(now) {
  const seen = new Set();
  for (const row of now.topics) {
    seen.add(row.topic);
    const values = rates.get(row.topic) ?? [];
    values.push(row.rate);
    if (values.length > SPARK) values.shift();
    rates.set(row.topic, values);
  }
  for (const [name, values] of rates) {
    if (seen.has(name)) continue;
    values.push(0);
    if (values.length > SPARK) values.shift();
    if (rates.size > 500 && values.every((value) => value === 0)) rates.delete(name);
  }
}

function rateOf(topic) {
  const values = rates.get(topic.slice(0, 64));
  const last = values?.[values.length - 1] ?? 0;
  return [values ? sparkline(values, `${short(last)} per second`) : null, h("span", { class: "rate" }, `${short(last)}/s`)];
}

function tableOf(rows, sort, onsort) {
  return table([
    { name: "topic", key: "name", class: "name", cell: (row) => [h("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic),
      row.type === "queue" ? pill("queue", "quiet") : null] },
    { name: "rate", class: "rates", cell: (row) => h("span", { "data-rate": row.topic }, rateOf(row.topic)) },
    { name: "head", key: "head_seq", right: true, cell: (row) => count(row.head_seq) },
    { name: "records", key: "count", right: true, cell: (row) => count(row.count) },
    { name: "size", key: "bytes", right: true, cell: (row) => size(row.bytes) },
    { name: "lag", key: "lag", right: true, cell: (row) => (row.consumers ? count(row.lag) : "–") },
    { name: "class", cell: (row) => row.durability },
    { name: "priority", key: "effective_priority", right: true, cell: (row) => row.effective_priority },
    { name: "written", key: "last_write_ts", right: true, cell: (row) => ago(row.last_write_ts) },
  ], rows, { caption: "Topics", empty: "no topic has such a name", sort, onsort });
}

async function create(shared) {
  const found = await dialog("New topic", {
    fields: [
      field("Name", h("input", { type: "text", name: "topic", required: true, maxlength: 255, autocomplete: "off" })),
      field("Type", h("select", { name: "type" }, h("option", null, "log"), h("option", null, "queue"))),
      field("Class", h("select", { name: "durability" }, ["disk", "fsync", "memory", "ephemeral"].map((one) => h("option", null, one)))),
    ],
    action: "Create",
  });
  if (!found) return;
  await ask("PUT", path("v0", "topics", found.topic), { type: found.type, durability: found.durability });
  toast(`topic ${found.topic} is there`);
  shared.go("topics", [found.topic]);
}
