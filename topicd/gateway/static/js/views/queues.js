// Queues: how they are, their jobs without taking them, and what an operator does to both.

import { h, put } from "../dom.js";
import { curl, get, may, path, post, query, topicctl } from "../api.js";
import { ago, count, duration, plural, short, time } from "../format.js";
import { button, card, dialog, field, head, pill, recordBody, preview, select, shell, table, tile, toast } from "../parts.js";
import { publish } from "./topic.js";

const TABS = [["jobs", "Jobs"], ["dead", "Dead letters"], ["cron", "Schedules"]];
const before = new Map(); // by queue: when and how many were acknowledged, for the throughput

export async function open(shared, [name, tab = "jobs"], params) {
  return name ? openQueue(shared, name, tab, params) : list(shared, params);
}

function throughput(row) {
  const now = Date.now();
  const seen = before.get(row.topic);
  if (!seen || now - seen.at > 900) {
    const rate = seen && row.acked >= seen.acked ? (1000 * (row.acked - seen.acked)) / (now - seen.at) : 0;
    before.set(row.topic, { at: now, acked: row.acked, rate });
  }
  return before.get(row.topic).rate;
}

function stateOf(row) {
  if (row.paused) return pill(row.paused.by === "breaker" ? "stopped itself" : "paused", row.paused.by === "breaker" ? "bad" : "warn");
  return row.draining ? pill("draining", "warn") : pill("open", "good");
}

async function list(shared, params) {
  const state = { prefix: params.get("prefix") ?? "", cursor: params.get("cursor") ?? "" };
  const rows = h("div");
  const foot = h("div", { class: "pager" });
  const search = h("input", { type: "search", value: state.prefix, placeholder: "names that begin with…", "aria-label": "Names that begin with" });
  search.addEventListener("input", () => { state.prefix = search.value; load(); });
  async function load() {
    const found = await get("/dashboard/queues" + query({ ...state, page_size: 50 }));
    put(rows, table([
      { name: "queue", class: "name", cell: (row) => h("a", { href: `#/queues/${encodeURIComponent(row.topic)}` }, row.topic) },
      { name: "state", cell: stateOf },
      { name: "ready", right: true, cell: (row) => count(row.ready) },
      { name: "in flight", right: true, cell: (row) => count(row.in_flight) },
      { name: "delayed", right: true, cell: (row) => count(row.delayed) },
      { name: "died", right: true, cell: (row) => count(row.dead_lettered) },
      { name: "oldest", right: true, cell: (row) => (row.oldest_ready_ts ? duration((Date.now() - row.oldest_ready_ts) / 1000) : "–") },
      { name: "done/s", right: true, cell: (row) => short(throughput(row)) },
      { name: "workers", right: true, cell: (row) => count(row.workers) },
    ], found.queues, { caption: "Queues", empty: "no queues" }));
    put(foot, h("span", { class: "spring" }), found.next_cursor
      ? h("a", { class: "button", href: "#/queues" + query({ prefix: state.prefix, cursor: found.next_cursor }) }, "next →") : null);
  }
  await load();
  let beats = 0;
  return {
    title: "Queues",
    node: h("div", null, head("Queues", "topics whose records are jobs"), h("div", { class: "bar" }, search), rows, foot,
      shell(topicctl("queue", "list"), curl("GET", "/dashboard/queues"))),
    tick() {
      if (++beats % 3 === 0) load().catch(() => {});
    },
  };
}

// ---- one queue ----

async function openQueue(shared, name, tab, params) {
  const tiles = h("div", { class: "tiles" });
  const actions = h("div", { class: "actions" });
  const why = h("div");
  const body = h("div");
  let found = null;
  async function refresh() {
    found = await get(path("dashboard", "queues", name));
    put(tiles, tilesOf(found));
    put(actions, modes(name, found, () => refresh()));
    put(why, found.paused || found.draining || (!found.ready && found.why.length) ? h("p", { class: "sub" }, "Why nothing is handed out: ", found.why.join("; ")) : null);
  }
  await refresh();
  const again = async () => { await refresh(); await part.load?.(); };
  const part = await ({ jobs, dead, cron }[tab] ?? jobs)({ shared, name, found, params, again });
  put(body, part.node);
  await part.load?.();
  const node = h("div", null,
    head(name, [pill("queue", "quiet"), " ", h("a", { href: `#/topics/${encodeURIComponent(name)}` }, "its topic")],
      actions, button("Put a job", () => publish(name, again), { kind: "primary", scopes: ["write"] })),
    tiles, why,
    h("nav", { class: "tabs", "aria-label": "Parts of the queue" }, TABS.map(([key, label]) =>
      h("a", { href: `#/queues/${encodeURIComponent(name)}/${key}`, "aria-current": key === tab ? "page" : null }, label))),
    body, shell(...part.lines));
  let beats = 0;
  return {
    title: name, node,
    tick() {
      if (++beats % 3 === 0) refresh().catch(() => {});
    },
  };
}

function tilesOf(found) {
  return [
    tile("Ready", count(found.ready), found.oldest_ready_ts ? `oldest ${ago(found.oldest_ready_ts)}` : "none waits"),
    tile("In flight", count(found.in_flight), plural(found.workers, "worker")),
    tile("Delayed", count(found.delayed), `${count(found.failed)} failed so far`),
    tile("Died", count(found.dead_lettered), found.config.dead_letter ? `to ${found.config.dead_letter}` : "no dead letters are kept", found.dead_lettered ? "warn" : ""),
    tile("Done", count(found.acked), `${short(throughput(found))}/s`),
    tile("State", found.paused ? (found.paused.by === "breaker" ? "stopped itself" : "paused") : found.draining ? "draining" : "open",
      found.paused?.reason || (found.paused ? `since ${time(found.paused.since)}` : "hands out jobs"), found.paused || found.draining ? "warn" : ""),
  ];
}

function modes(name, found, then) {
  const turn = (action, said) => button(said, async () => {
    let reason = "";
    if (action !== "resume") {
      const asked = await dialog(`${said} ${name}`, {
        body: [h("p", null, action === "pause" ? "Nothing is handed out until it is resumed; jobs can be put and finished." : "No more jobs are taken in; those that are there are handed out.")],
        fields: [field("Why (shown to everybody)", h("input", { type: "text", name: "reason", maxlength: 200 }))], action: said });
      if (!asked) return;
      reason = asked.reason;
    }
    await post(path("dashboard", "queues", name, "mode"), { action, reason });
    toast({ pause: "paused", drain: "draining", resume: "open again" }[action]);
    await then();
  }, { scopes: ["admin"] });
  return found.paused || found.draining ? turn("resume", "Resume") : [turn("pause", "Pause"), turn("drain", "Drain")];
}

// ---- jobs ----

async function jobs({ name, params, again, shared }) {
  const state = params.get("state") ?? "any";
  const list = h("div");
  const more = h("div", { class: "pager" });
  const chosen = new Set();
  const bar = h("div", { class: "bar" });
  const act = async (action, seqs) => {
    const lost = { delete: "The jobs are deleted for good; whoever works on one of them loses it.", dead: "They go to the dead letters, whoever works on them." }[action];
    if (lost && !(await dialog(`${action === "dead" ? "Bury" : "Delete"} ${plural(seqs.length, "job")}`, { action: "Do it", danger: { lost, name } }))) return;
    const done = await post(path("dashboard", "queues", name, "steer"), { action, seqs });
    toast(`${plural(done.changed, "job")} changed${done.skipped ? `, ${count(done.skipped)} left as they are` : ""}`);
    chosen.clear();
    await again();
  };
  const many = (action, label, kind = "") => button(label, () => (chosen.size ? act(action, [...chosen]) : toast("choose jobs first", "bad")), { kind: `small ${kind}`, scopes: ["write", "delete"] });
  put(bar, select([["any", "all jobs"], ["ready", "ready"], ["in_flight", "in flight"], ["delayed", "delayed"], ["done", "done"]], state,
    (value) => shared.go("queues", [name, "jobs"], { state: value === "any" ? "" : value }), "Which jobs"),
    h("span", { class: "spring" }), many("retry", "Retry chosen"), many("release", "Release chosen"), many("delete", "Delete chosen", "danger ghost"));
  async function load(from = 0) {
    const found = await post(path("dashboard", "queues", name, "jobs"), { state, from_seq: from, limit: 50 });
    if (!from) put(list);
    list.append(found.jobs.length || from ? tableOf(name, found.jobs, chosen, act) : h("p", { class: "empty" }, "no such jobs"));
    put(more, found.next ? button("more", () => load(found.next)) : null);
  }
  return {
    node: card(null, bar, list, more), load: () => load(),
    lines: [topicctl("queue", "peek", name, ...(state === "any" ? [] : ["--state", state])), topicctl("queue", "why", name),
      topicctl("queue", "retry", name, "SEQ"), topicctl("queue", "delete", name, "SEQ"), curl("POST", path("dashboard", "queues", name, "jobs"), { state })],
  };
}

function tableOf(name, rows, chosen, act) {
  const choose = (row) => {
    const box = h("input", { type: "checkbox", "aria-label": `Choose job ${row.seq}` });
    box.addEventListener("change", () => (box.checked ? chosen.add(row.seq) : chosen.delete(row.seq)));
    return box;
  };
  return table([
    { name: "", cell: choose },
    { name: "job", right: true, cell: (row) => `#${row.seq}` },
    { name: "state", cell: (row) => [pill(row.state.replace("_", " "), { ready: "good", in_flight: "warn" }[row.state] ?? "quiet"),
      row.state === "delayed" ? h("small", null, ` until ${time(row.ready_at)}`) : row.node ? h("small", null, ` ${row.node}, until ${time(row.deadline)}`) : null] },
    { name: "tries", right: true, cell: (row) => count(row.deliveries) },
    { name: "prio", right: true, cell: (row) => row.priority ?? 4 },
    { name: "data", class: "data", cell: (row) => h("details", null, h("summary", null, preview(row)), recordBody(row), row.reason ? h("p", { class: "lost" }, row.reason) : null) },
    { name: "", class: "buttons", cell: (row) => [
      button("Why", () => explain(name, row.seq), { kind: "small" }),
      row.state === "delayed" ? button("Retry", () => act("retry", [row.seq]), { kind: "small", scopes: ["write", "delete"] }) : null,
      row.state === "in_flight" ? button("Release", () => act("release", [row.seq]), { kind: "small", scopes: ["write", "delete"] }) : null,
      button("Delete", () => act("delete", [row.seq]), { kind: "small danger ghost", scopes: ["write", "delete"] })] },
  ], rows, { caption: "Jobs" });
}

async function explain(name, seq) {
  const found = await get(path("dashboard", "queues", name, "why") + query({ seq }));
  await dialog(`Job #${seq} is ${found.state.replace("_", " ")}`, {
    body: [h("ul", null, (found.because.length ? found.because : ["nothing holds it back"]).map((one) => h("li", null, one))),
      ["why", ...(found.state === "delayed" ? ["retry"] : []), "delete"].map((verb) => h("p", null, h("code", null, topicctl("queue", verb, name, String(seq)))))], action: "Close" });
}

// ---- dead letters ----

async function dead({ name, found, again }) {
  const list = h("div");
  const note = h("p", { class: "sub", role: "status" });
  const more = h("div", { class: "pager" });
  const words = h("input", { type: "search", placeholder: "reason, tag or data contains…", "aria-label": "Reason, tag or data contains" });
  const form = h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); load(); } }, words, h("button", { type: "submit" }, "Look"));
  if (!found.config.dead_letter) {
    return { node: card(null, h("p", { class: "empty" }, "This queue keeps no dead letters: set dead_letter in its topic's configuration.")), lines: [topicctl("topic", "config", name)] };
  }
  async function drive(which, discard, label) {
    const total = { redriven: 0, discarded: 0, skipped: 0 };
    let from = 0;
    while (from !== null) {
      const done = await post(path("dashboard", "queues", name, "redrive"), { ...which, from_seq: from, discard });
      for (const key of Object.keys(total)) total[key] += done[key];
      from = done.next;
      if (from !== null) put(note, `${label}: ${count(total.redriven + total.discarded)} so far, up to #${count(from)}`);
    }
    toast(discard ? `${plural(total.discarded, "dead letter")} deleted` : `${plural(total.redriven, "job")} back in ${name}`);
    await again();
  }
  const redrive = (which, label) => button(label, () => drive(which(), false, label), { kind: "small", scopes: ["delete"] });
  const discard = (which, label) => button(label, async () => {
    const lost = "The dead letters are deleted for good: nobody can look at them or bring them back.";
    if (await dialog(label, { action: "Delete them", danger: { lost, name } })) await drive(which(), true, label);
  }, { kind: "small danger ghost", scopes: ["delete"] });
  form.append(h("span", { class: "spring" }), redrive(() => (words.value ? { text: words.value } : {}), "Redrive all shown by the search"),
    redrive(() => ({}), "Redrive all"), discard(() => (words.value ? { text: words.value } : {}), "Delete all shown by the search"));
  async function load(from = 0) {
    const page = await post(path("dashboard", "queues", name, "dead"), { text: words.value, from_seq: from, limit: 50 });
    if (!from) put(list);
    put(note, `${plural(page.letters.length, "dead letter")} found among ${plural(page.looked_at, "record")} of ${page.topic}${page.next === null ? ", to the end" : ""}`);
    list.append(table([
      { name: "letter", right: true, cell: (row) => `#${row.seq}` },
      { name: "job", right: true, cell: (row) => `#${row.job_seq}` },
      { name: "died", right: true, cell: (row) => time(row.ts) },
      { name: "tries", right: true, cell: (row) => count(row.deliveries) },
      { name: "reason", class: "name", cell: (row) => row.reason || "–" },
      { name: "data", class: "data", cell: (row) => h("details", null, h("summary", null, preview(row)), recordBody(row)) },
      { name: "", class: "buttons", cell: (row) => [redrive(() => ({ seqs: [row.seq] }), "Redrive"), discard(() => ({ seqs: [row.seq] }), "Delete")] },
    ], page.letters, { caption: "Dead letters", empty: from ? "no more" : "no dead letters" }));
    put(more, page.next !== null ? button("more", () => load(page.next)) : null);
  }
  return {
    node: card(null, form, note, list, more), load: () => load(),
    lines: [topicctl("queue", "dead", "list", name), topicctl("queue", "dead", "redrive", name, "--all"), curl("POST", path("dashboard", "queues", name, "redrive"), {})],
  };
}

// ---- schedules ----

async function cron({ name, found, again, shared }) {
  const add = async () => {
    const input = (key, more) => h("input", { type: "text", name: key, autocomplete: "off", ...more });
    const given = await dialog("New schedule", {
      fields: [field("Name", input("name", { required: true })), field("Schedule", input("schedule", { required: true, value: "0 3 * * *" }), "minute hour day month weekday"),
        field("Time zone", input("timezone", { value: "UTC" })), field("Data", input("data"))], action: "Add" });
    if (!given) return;
    await post(path("dashboard", "queues", name, "cron"), given);
    toast("the schedule is there");
    shared.refresh();
  };
  return {
    node: card(null, h("div", { class: "bar" }, button("New schedule", add, { kind: "primary", scopes: ["admin"] })), table([
      { name: "name", class: "name", cell: (row) => row.name },
      { name: "schedule", cell: (row) => h("code", null, row.schedule) },
      { name: "zone", cell: (row) => row.timezone },
      { name: "next", right: true, cell: (row) => time(row.next_ts) },
      { name: "last", right: true, cell: (row) => time(row.last_ts) },
      { name: "data", class: "data", cell: (row) => row.data.slice(0, 80) },
      { name: "", cell: (row) => button("Remove", async () => {
        if (!(await dialog(`Remove ${row.name}`, { action: "Remove it", danger: { lost: "No more jobs are put by this schedule.", name: row.name } }))) return;
        await post(path("dashboard", "queues", name, "cron"), { name: row.name, remove: true });
        shared.refresh();
      }, { kind: "small danger ghost", scopes: ["admin"] }) },
    ], found.crons, { caption: "Schedules", empty: "no schedules" })),
    lines: [topicctl("queue", "cron", "list", name), topicctl("queue", "cron", "add", name, "nightly", "0 3 * * *")],
  };
}
