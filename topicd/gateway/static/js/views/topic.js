// One topic: where it stands, its records, its configuration, its segments, who reads it and what feeds it.

import { h, put } from "../dom.js";
import { ask, curl, get, may, path, post, topicctl } from "../api.js";
import { ago, count, plural, size, time } from "../format.js";
import { button, busy, card, dialog, facts, field, gap, head, pill, record, select, shell, table, tile, toast } from "../parts.js";
import { graph } from "./graph.js";
import { move, remove as removeConsumer } from "./consumers.js";

const TABS = [["browse", "Browse"], ["tail", "Live tail"], ["consumers", "Consumers"], ["routers", "Routers"], ["config", "Configuration"], ["segments", "Segments"]];

export async function openTopic(shared, [name, tab = "browse"], params) {
  const found = await get(path("dashboard", "topics", name));
  const tiles = h("div", { class: "tiles" });
  const body = h("div");
  const refresh = async () => put(tiles, tilesOf(await get(path("dashboard", "topics", name))));
  put(tiles, tilesOf(found));
  const make = { browse, tail, consumers, routers, config, segments }[tab] ?? browse;
  const part = await make({ shared, name, found, params, refresh });
  put(body, part.node);
  const isQueue = found.config.type === "queue";
  const node = h("div", null,
    head(name, [pill(found.config.type, "quiet"), " ", pill(found.config.durability, "quiet")],
      isQueue ? h("a", { class: "button", href: `#/queues/${encodeURIComponent(name)}` }, "Queue") : null,
      button("Publish", () => publish(name, refresh), { kind: "primary", scopes: ["write"] }),
      button("Delete", () => deleteTopic(shared, name, found), { kind: "danger ghost", scopes: ["delete"] })),
    tiles,
    found.lost?.length ? h("p", { class: "lost" }, `A loss of power may have taken ${found.lost.map(([a, b]) => `#${a} to ${b}`).join(", ")}: readers are told.`) : null,
    h("nav", { class: "tabs", "aria-label": "Parts of the topic" }, TABS.map(([key, label]) =>
      h("a", { href: `#/topics/${encodeURIComponent(name)}/${key}`, "aria-current": key === tab ? "page" : null }, label))),
    body, shell(...part.lines));
  let beats = 0;
  return {
    title: name, node, wants: part.wants, records: part.records, trouble: part.trouble, close: part.close,
    tick() {
      if (++beats % 3 === 0) refresh().catch(() => {});
    },
  };
}

function tilesOf(found) {
  return [
    tile("Head", count(found.head_seq), `written ${ago(found.last_write_ts)}`),
    tile("Records", count(found.count), found.count ? `from #${count(found.earliest_seq)}` : "none"),
    tile("Size", size(found.bytes), plural(found.segments, "segment")),
    tile("Lag", count(Math.max(0, ...found.consumers.map((one) => one.lag))), plural(found.consumers.length, "consumer")),
    tile("Priority", found.effective_priority, found.config.priority === null ? "automatic" : "set"),
  ];
}

// ---- browse ----

async function browse({ name, params, refresh }) {
  const list = h("div", { class: "records" });
  const note = h("p", { class: "sub", role: "status" });
  const more = h("div", { class: "pager" });
  const start = { kind: "newest", at: "" };
  const at = h("input", { type: "text", "aria-label": "seq or time", hidden: true });
  const kind = select([["newest", "newest first"], ["seq", "from seq"], ["time", "from time"]], "newest", (value) => {
    at.hidden = value === "newest";
    at.type = value === "time" ? "datetime-local" : "number";
    if (value === "time") at.step = 1;
    at.focus();
  }, "Where to begin");
  const tag = h("input", { type: "text", placeholder: "tag, or beginning*", "aria-label": "Tag" });
  const words = h("input", { type: "search", placeholder: "contains…", "aria-label": "Contains" });
  const go = h("button", { type: "submit", class: "primary" }, "Look");
  const form = h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); busy(go, () => look()); } }, kind, at, tag, words, go);
  let asked = null;

  function wanted() {
    const body = { tag: tag.value, text: words.value, limit: 50 };
    if (kind.value === "seq") body.from_seq = Math.max(0, Number(at.value || 1) - 1);
    if (kind.value === "time" && at.value) body.from_ts = new Date(at.value).getTime();
    return body;
  }
  async function look(further) {
    const body = further ?? wanted();
    if (!further) asked = body;
    const found = await post(path("dashboard", "topics", name, "browse"), body);
    if (!further) put(list);
    put(note, said(found));
    list.append(...rowsOf(found, Boolean(body.tag || body.text)));
    if (!list.firstChild) put(list, h("p", { class: "empty" }, found.stopped === "end" ? "nothing like that is there" : "nothing like that so far"));
    const older = found.order === "newest first";
    const next = older ? { ...asked, before_seq: found.looked_from } : { ...asked, from_ts: undefined, from_seq: found.looked_to };
    put(more, found.stopped === "end" ? null : button(older ? "older" : "further", () => look(next)));
  }
  await look();
  return {
    node: card(null, form, note, list, more),
    lines: [topicctl("read", name, "--last", "50"), topicctl("read", name, "--from", "15m", "--grep", "needle"),
      curl("POST", path("v0", "topics", name, "diff"), { from_seq: 0, limit: 50, include_tags: true })],
  };
}

function said(found) {
  if (!found.head_seq) return "the topic is empty";
  const how = { end: "to the end", limit: "enough found", scan: "the bound of one look is reached" }[found.stopped];
  return `${plural(found.records.length, "record")} found; looked at #${count(found.looked_from)} to #${count(found.looked_to)} (${plural(Math.max(0, found.looked_at), "seq")}, ${how}) of ${count(found.earliest_seq)} to ${count(found.head_seq)}`;
}

function rowsOf(found, filtered) {
  const rows = [];
  const told = found.gaps.map((one) => gap(one.gap_from, one.gap_to, reason(one.reason)));
  let before = null;
  for (const row of found.records) {
    const [low, high] = before === null ? [0, 0] : [Math.min(before, row.seq), Math.max(before, row.seq)];
    if (!filtered && before !== null && high - low > 1) rows.push(gap(low + 1, high - 1, "deleted"));
    before = row.seq;
    rows.push(record(row));
  }
  return found.order === "newest first" ? [...rows, ...told] : [...told, ...rows];
}

function reason(word) {
  return {
    cap: "evicted: the topic's cap was reached", ttl: "expired: older than the topic's ttl", mixed: "evicted or expired",
    recreated: "of an earlier topic with this name", source_trim: "gone at the source before a router could copy them",
    power_loss: "perhaps lost when the power failed",
  }[word] ?? word;
}

// ---- live tail ----

async function tail({ shared, name, params }) {
  const rate = params.get("rate") ?? "20";
  const paused = params.get("paused") === "yes";
  const list = h("div", { class: "records", "aria-live": "off" });
  const note = h("span", { class: "sub", role: "status" }, paused ? "paused" : "waiting for the next record");
  let shown = 0;
  let skipped = 0;
  const turn = (values) => shared.go("topics", [name, "tail"], { rate, paused: paused ? "yes" : "", ...values });
  return {
    wants: paused ? {} : { tail: name, rate },
    node: card(null, h("div", { class: "bar" },
      h("button", { type: "button", class: "primary", onclick: () => turn({ paused: paused ? "" : "yes" }) }, paused ? "Go on" : "Pause"),
      select([["5", "5 a second"], ["20", "20 a second"], ["100", "100 a second"], ["200", "200 a second"]], rate, (value) => turn({ rate: value }), "At most"),
      note), list),
    records(data) {
      shown += data.records.length;
      skipped += data.skipped;
      for (const row of data.records) list.prepend(record(row));
      if (data.skipped) list.prepend(h("div", { class: "gap" }, `${count(data.skipped)} more came and are not shown: the rate limit`));
      while (list.childElementCount > 300) list.lastElementChild.remove();
      put(note, `${plural(shown, "record")} shown${skipped ? `, ${count(skipped)} left out` : ""}`);
    },
    trouble: (data) => put(note, data.error === "topic_deleted" ? "the topic was deleted" : data.error),
    lines: [topicctl("tail", name), topicctl("watch", name)],
  };
}

// ---- the rest ----

async function consumers({ shared, name, found, refresh }) {
  return {
    node: card("Named consumers", table([
      { name: "consumer", class: "name", cell: (row) => row.name },
      { name: "acknowledged", right: true, cell: (row) => count(row.acked_seq) },
      { name: "lag", right: true, cell: (row) => count(row.lag) },
      { name: "last", right: true, cell: (row) => ago(row.updated_ts) },
      { name: "reads as it", cell: (row) => row.holder || "nobody" },
      { name: "", cell: (row) => [
        button("Move", () => move(shared, { ...row, topic: name }), { kind: "small" }),
        button("Remove", () => removeConsumer(shared, { ...row, topic: name }), { kind: "small danger ghost", scopes: ["consume"] })] },
    ], found.consumers, { caption: "Named consumers", empty: "nobody reads this topic under a name" })),
    lines: [topicctl("consumer", "list", name), curl("GET", path("dashboard", "topics", name))],
  };
}

async function routers({ name, found }) {
  const rows = [...found.routers_in, ...found.routers_out];
  return {
    node: card("What feeds it, and what it feeds", rows.length ? graph(rows, name) : h("p", { class: "empty" }, "no router leads here or away")),
    lines: [topicctl("router", "list", "--from", name), topicctl("router", "list", "--to", name), curl("GET", `/v0/routers?source=${encodeURIComponent(name)}`)],
  };
}

const CHOICES = { durability: ["ephemeral", "memory", "disk", "fsync"], discard: ["old", "reject"], retain: ["all", "acked"],
  compact: ["none", "last-per-tag"], compress: ["default", "none", "zstd"] };
const QUEUE_ONLY = ["lease_ms", "claim_jitter_ms", "max_deliveries", "dead_letter", "leases_durable", "backoff_ms", "backoff_factor", "backoff_max_ms",
  "keep_done_ms", "max_in_flight", "rate_per_s", "group_max_in_flight", "group_rate_per_s", "breaker_failures", "breaker_jobs"];

async function config({ shared, name, found }) {
  const names = Object.keys(found.config).filter((one) => one !== "type" && (found.config.type === "queue" || !QUEUE_ONLY.includes(one)));
  const controls = Object.fromEntries(names.map((one) => [one, controlOf(one, found.config[one])]));
  const save = h("button", { type: "submit", class: "primary", disabled: !may("admin"), title: may("admin") ? null : "needs a token with the scope admin" }, "Save");
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); busy(save, store); } },
    h("div", { class: "fields" }, names.map((one) => field(one, controls[one], hint(one)))), h("div", { class: "dialog-buttons" }, save));
  async function store() {
    const changes = {};
    for (const one of names) {
      const value = valueOf(controls[one], found.config[one]);
      if (value !== found.config[one]) changes[one] = value;
    }
    if (!Object.keys(changes).length) return toast("nothing was changed");
    const less = ["ttl_ms", "cap_records", "cap_bytes"].filter((one) => changes[one] > 0 && (!found.config[one] || changes[one] < found.config[one]));
    if (less.length && !(await dialog("Records may go", { action: "Save", danger: {
      lost: `A tighter ${less.join(", ")} holds for stored records too: what lies beyond it is lost for good.`, name } }))) return;
    await post(path("dashboard", "topics", name, "config"), { config: changes });
    await shared.refresh();  // the form is put anew: what is typed into it before is lost
    toast("saved");
  }
  return {
    node: card("Configuration", form),
    lines: [topicctl("topic", "config", name), curl("GET", path("v0", "topics", name))],
  };
}

function controlOf(name, value) {
  if (CHOICES[name]) return h("select", null, CHOICES[name].map((one) => h("option", { selected: one === value }, one)));
  if (typeof value === "boolean") {
    const node = h("input", { type: "checkbox" });
    node.checked = value;
    return node;
  }
  if (name === "dead_letter" || name === "schema") return h("input", { type: "text", value: value ?? "", spellcheck: "false" });
  return h("input", { type: "number", step: name === "backoff_factor" ? "0.1" : "1", value: value ?? "", placeholder: value === null ? "automatic" : null });
}

function valueOf(control, before) {
  if (control.type === "checkbox") return control.checked;
  if (control.type === "number") return control.value === "" ? null : Number(control.value);
  return control.value === "" && before === null ? null : control.value || null;
}

function hint(name) {
  return { ttl_ms: "0: kept for ever", cap_records: "0: no cap", cap_bytes: "0: no cap", priority: "empty: automatic", max_deliveries: "0: no limit",
    retain: "acked: deleted once all consumers have it", discard: "what a full topic does", schema: "JSON Schema of the data; empty: any data",
    compact: "last-per-tag: of each tag the newest stays", compress: "of older segments; default: the daemon's",
    hot_retain_segments: "empty: as the daemon's", hot_retain_bytes: "empty: as the daemon's" }[name];
}

async function segments({ name, found }) {
  return {
    node: card("Segments", table([
      { name: "seqs", cell: (row) => `${count(row.first_seq)} to ${count(row.last_seq)}` },
      { name: "size", right: true, cell: (row) => size(row.data_bytes) },
      { name: "deleted", right: true, cell: (row) => (row.dead_bytes ? size(row.dead_bytes) : "–") },
      { name: "from", right: true, cell: (row) => time(row.first_ts) },
      { name: "to", right: true, cell: (row) => time(row.last_ts) },
      { name: "tier", cell: (row) => (row.cold ? "cold" : "hot") + (row.packed ? ", packed" : "") },
      { name: "state", cell: (row) => pill(row.sealed ? "sealed" : "active", row.sealed ? "quiet" : "good") },
    ], [...found.files].reverse(), { caption: "Segments", empty: "nothing is in segments yet: what is new lies in the log" })),
    lines: [topicctl("topic", "show", name), curl("GET", path("v0", "topics", name))],
  };
}

// ---- actions ----

export async function publish(name, then) {
  const data = h("textarea", { name: "data", rows: 6, spellcheck: "false" });
  data.value = '{"hello": "world"}';
  const found = await dialog(`Publish to ${name}`, {
    fields: [field("Data", data, "JSON, or text that is stored as a JSON string"),
      field("Tag", h("input", { type: "text", name: "tag", maxlength: 256 })), field("Node", h("input", { type: "text", name: "node", maxlength: 128 }))],
    action: "Publish",
  });
  if (!found) return;
  let raw = found.data;
  try {
    JSON.parse(raw);
  } catch {
    raw = JSON.stringify(raw);
  }
  const rest = JSON.stringify({ ...(found.tag && { tag: found.tag }), ...(found.node && { node: found.node }) }).slice(1, -1);
  // The text goes as it was typed: parsing and writing it again would spoil large numbers.
  const answer = await ask("POST", path("v0", "topics", name), `{"records":[{"data":${raw}${rest ? "," + rest : ""}}]}`);
  toast(`stored as #${answer.last_seq}`);
  await then?.();
}

async function deleteTopic(shared, name, found) {
  const routers = [...found.routers_in, ...found.routers_out].length;
  const lost = `${plural(found.count, "record")}, ${plural(found.consumers.length, "consumer")} and ${plural(routers, "router")} are lost for good.`;
  if (!(await dialog(`Delete ${name}`, { action: "Delete it", danger: { lost, name } }))) return;
  await ask("DELETE", path("v0", "topics", name));
  toast(`topic ${name} is gone`);
  shared.go("topics");
}
