// Channels: who owns them, who is in them, what they kept.

import { h, put } from "../dom.js";
import { ask, curl, get, path, post, query, topicctl, who } from "../api.js";
import { count, plural, time } from "../format.js";
import { button, card, dialog, facts, field, head, pill, shell, table, tile, toast } from "../parts.js";

export async function open(shared, [name], params) {
  return name ? one(shared, name) : list(shared, params);
}

async function list(shared, params) {
  const state = { prefix: params.get("prefix") ?? "", after: params.get("after") ?? "" };
  const rows = h("div");
  const foot = h("div", { class: "pager" });
  const search = h("input", { type: "search", value: state.prefix, placeholder: "channels that begin with…", "aria-label": "Channels that begin with" });
  search.addEventListener("input", () => { state.prefix = search.value; state.after = ""; load(); });
  async function load() {
    const found = await get("/v0/channels" + query({ ...state, limit: 50 }));
    put(rows, table([
      { name: "channel", class: "name", cell: (row) => h("a", { href: `#/channels/${encodeURIComponent(row.channel)}` }, row.channel) },
      { name: "type", cell: (row) => pill(row.type, "quiet") },
      { name: "owner", class: "name", cell: (row) => row.owner ?? "–" },
      { name: "members", right: true, cell: (row) => count(row.members) },
      { name: "connected", right: true, cell: (row) => count(row.connected) },
      { name: "kept", cell: (row) => (row.persist ? "yes" : "no") },
    ], found.channels, { caption: "Channels", empty: "no channels" }));
    put(foot, h("span", { class: "spring" }), found.next ? h("a", { class: "button", href: "#/channels" + query({ prefix: state.prefix, after: found.next }) }, "next →") : null);
  }
  await load();
  let beats = 0;
  return {
    title: "Channels",
    node: h("div", null, head("Channels", "rooms with members, lists of who may, and history"), h("div", { class: "bar" }, search), rows, foot,
      shell(topicctl("channel", "list"), curl("GET", "/v0/channels"))),
    tick() { if (++beats % 5 === 0) load().catch(() => {}); },
  };
}

// What is in it; elements of a queue are seen by those who pop them.
async function stored(name, queue) {
  try {
    const seq = await get(path("v0", "channels", name, "seq"));
    if (queue) return { seq };
    const from = query({ from_seq: Math.max(1, seq.last_seq - 49), limit: 50 });
    return { seq, messages: await get(path("v0", "channels", name, "history") + from) };
  } catch (error) {
    return { refused: error.message };
  }
}

async function one(shared, name) {
  const [found, members] = await Promise.all([get(path("v0", "channels", name)), get(path("v0", "channels", name, "members") + "?limit=500")]);
  const kept = found.config.persist;
  const queue = found.type === "fifo";
  const { seq, messages, refused } = kept ? await stored(name, queue) : {};
  const held = seq?.last_seq ? seq.last_seq - seq.first_seq + 1 : 0;
  const connected = new Set(members.connected);
  const say = async () => {
    const fields = [field("Message", h("input", { type: "text", name: "data", required: true }))];
    if (!who.tokens) fields.push(field("As", h("input", { type: "text", name: "user", value: found.owner ?? "" }), queue ? "who owns it" : "a member"));
    const action = queue ? "Push" : "Publish";
    const given = await dialog(`${action} to ${name}`, { fields, action });
    if (!given) return;
    const sent = await post(path("v0", "channels", name, action.toLowerCase()) + query({ as: given.user }), { data: given.data });
    toast(`sent as #${sent.seq}`);
    shared.refresh();
  };
  const drop = async () => {
    const lost = `${plural(found.members, "membership")} and ${held ? plural(held, queue ? "element" : "message") : "no messages"} are lost for good.`;
    if (!(await dialog(`Delete ${name}`, { action: "Delete it", danger: { lost, name } }))) return;
    await ask("DELETE", path("v0", "channels", name));
    toast("the channel is gone");
    shared.go("channels");
  };
  const list = (key) => (found.acl[key].length ? found.acl[key].join(", ") : "everybody");
  return {
    title: name,
    node: h("div", null,
      head(name, [pill(found.type, "quiet"), " owned by ", found.owner ?? "nobody"],
        button(queue ? "Push" : "Publish", say, { kind: "primary", scopes: ["write"] }), button("Delete", drop, { kind: "danger ghost", scopes: ["write"] })),
      h("div", { class: "tiles" }, tile("Members", count(found.members), `${count(connected.size)} connected`),
        tile(queue ? "Depth" : "Kept", kept ? count(held) : "nothing", kept ? `of ${count(found.config.max_persist_messages)} at most` : "not persistent"),
        tile("Largest", `${count(found.config.max_payload_size)} B`, "of one message"), tile("Places", count(found.config.max_clients), "members at most")),
      h("div", { class: "columns" },
        card("Members", table([{ name: "user", class: "name", cell: (user) => user }, { name: "", cell: (user) => (connected.has(user) ? pill("connected", "good") : null) }],
          members.users, { caption: "Members", empty: "nobody" }),
        found.members > members.users.length ? h("p", { class: "empty" }, `and ${count(found.members - members.users.length)} more`) : null),
        card("Who may", facts([["join", list("join")], ["publish", list("publish")], ["read", list("read")]]))),
      card("History", messages ? table([
        { name: "seq", right: true, cell: (row) => `#${row.seq}` }, { name: "time", right: true, cell: (row) => time(row.ts) },
        { name: "from", class: "name", cell: (row) => row.from }, { name: "data", class: "data", cell: (row) => JSON.stringify(row.data).slice(0, 300) },
      ], [...messages.messages].reverse(), { caption: "Messages", empty: "no messages" }) : h("p", { class: "empty" }, refused ?? (queue ? "elements of a queue are seen by those who pop them" : "this channel keeps nothing"))),
      shell(topicctl("channel", "show", name), topicctl("channel", "members", name), queue ? topicctl("channel", "pop", name) : kept ? topicctl("channel", "history", name) : null, curl("GET", path("v0", "channels", name)))),
  };
}
