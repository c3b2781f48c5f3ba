// The chat store: its figures, and a user's chats as that user sees them.

import { h, put } from "../dom.js";
import { curl, get, path, post, query, topicctl, who } from "../api.js";
import { count, size, time } from "../format.js";
import { button, card, head, pill, shell, table, tile, toast } from "../parts.js";

export async function open(shared, parts, params) {
  if (!who.chat) {
    return { title: "Chat", node: h("div", null, head("Chat", "messages, inboxes and members, kept in a store of their own"),
      card(null, h("p", { class: "empty" }, "This daemon keeps no chat store. Start it with --chat.")), shell("topicd --chat", topicctl("chat", "stats"))) };
  }
  const user = params.get("user") ?? "";
  const room = parts[0] ?? "";
  const tiles = h("div", { class: "tiles" });
  const as = h("input", { type: "search", value: user, placeholder: "as user…", "aria-label": "As which user", required: true });
  const form = h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); shared.go("chat", [], { user: as.value }); } }, as,
    h("button", { type: "submit", class: "primary" }, "Show the inbox"));
  const body = h("div");
  if (user && room) put(body, await chat(shared, room, user));
  else if (user) put(body, await inbox(user));
  else put(body, card(null, h("p", { class: "empty" }, "Say as which user to look: chats belong to those who are in them.")));
  return {
    title: room || "Chat",
    node: h("div", null, head(room || "Chat", room ? h("a", { href: "#/chat" + query({ user }) }, `inbox of ${user}`) : "messages, inboxes and members, kept in a store of their own"),
      tiles, form, body,
      shell(room ? topicctl("chat", "read", room, "--as", user) : user ? topicctl("chat", "inbox", "--as", user) : topicctl("chat", "stats"),
        room ? curl("GET", path("v0", "chat", room, "messages") + query({ user })) : user ? curl("GET", "/v0/chat/inbox" + query({ user })) : null)),
    tick(now) {
      const store = now.processes.find((row) => row.name.startsWith("chat"));
      if (!store?.chat) return;
      const c = store.chat;
      put(tiles, tile("Sent", count(c.sends), `${count(c.duplicates)} repeated`), tile("Read", count(c.reads), "pages"),
        tile("Applied", `#${count(c.applied_seq)}`, `${count(c.waiting ?? 0)} waiting`), tile("Listeners", count(c.listeners ?? 0), "chats and inboxes"),
        tile("Stored", size((c.sst_bytes ?? 0) + (c.memtable_bytes ?? 0)), `synced ${count(c.synced_in)} in, ${count(c.synced_out)} out`));
    },
  };
}

async function inbox(user) {
  const found = await get("/v0/chat/inbox" + query({ user, limit: 100 }));
  return card(`Inbox of ${user}`, table([
    { name: "chat", class: "name", cell: (row) => h("a", { href: `#/chat/${encodeURIComponent(nameOf(row))}` + query({ user }) }, nameOf(row)) },
    { name: "last", class: "data", cell: (row) => String(row.preview ?? row.text ?? "").slice(0, 120) },
    { name: "unread", right: true, cell: (row) => (row.unread ? pill(count(row.unread), "warn") : "0") },
    { name: "when", right: true, cell: (row) => time(row.ms ?? row.ts) },
  ], found.chats, { caption: "Chats", empty: "no chats" }));
}

function nameOf(row) {
  return row.chat_name || row.peer_name || row.chat;
}

async function chat(shared, room, user) {
  const [page, people] = await Promise.all([get(path("v0", "chat", room, "messages") + query({ user, newest: true, limit: 100 })),
    get(path("v0", "chat", room, "members") + query({ user })).catch(() => ({ members: [] }))]);
  const words = h("input", { type: "text", placeholder: `say something as ${user}`, "aria-label": "Message", required: true });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const form = h("form", { class: "bar", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post(path("v0", "chat", room, "messages"), { text: words.value, user });
      shared.refresh();
    } catch (error) {
      toast(error.message, "bad");
    }
  } }, words, send);
  return h("div", { class: "columns wide-left" },
    card("Messages", h("ol", { class: "talk" }, page.messages.map((one) => h("li", { class: one.sender_name === user ? "own" : null },
      h("b", null, one.sender_name || one.sender), h("time", null, time(one.ms)), h("p", null, one.text ?? "")))), form),
    card("Members", table([{ name: "user", class: "name", cell: (row) => row.name || row.user }, { name: "role", cell: (row) => pill(row.role, "quiet") }],
      people.members, { caption: "Members", empty: "nobody told" })));
}
