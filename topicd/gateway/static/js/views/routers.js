// Routers: the drawing of who feeds whom, and a row for each.

import { h, put } from "../dom.js";
import { ask, curl, get, path, topicctl } from "../api.js";
import { count, plural } from "../format.js";
import { button, card, dialog, field, head, pill, shell, table, toast } from "../parts.js";
import { graph } from "./graph.js";

const DRAWN = 80;

export async function open(shared) {
  const drawing = h("div");
  const list = h("div");
  async function load() {
    const found = await get("/dashboard/routers");
    const rows = found.routers;
    put(drawing, rows.length === 0 ? h("p", { class: "empty" }, "no router: topics feed nobody but their readers")
      : rows.length > DRAWN ? h("p", { class: "empty" }, `${count(rows.length)} routers are too many to draw`) : graph(rows));
    put(list, tableOf(shared, rows, load));
  }
  await load();
  let beats = 0;
  return {
    title: "Routers",
    node: h("div", null, head("Routers", "what comes to one topic is copied to another",
      button("New router", () => create(load), { kind: "primary", scopes: ["admin"] })),
      card(null, drawing), list, shell(topicctl("router", "graph"), topicctl("router", "list"), curl("GET", "/v0/routers"))),
    tick() {
      if (++beats % 5 === 0) load().catch(() => {});
    },
  };
}

function tableOf(shared, rows, load) {
  return table([
    { name: "router", class: "name", cell: (row) => row.router },
    { name: "from", class: "name", cell: (row) => h("a", { href: `#/topics/${encodeURIComponent(row.source)}` }, row.source) },
    { name: "to", class: "name", cell: (row) => h("a", { href: `#/topics/${encodeURIComponent(row.dest)}` }, row.dest) },
    { name: "copied", right: true, cell: (row) => count(row.forwarded_total) },
    { name: "behind", right: true, cell: (row) => count(row.lag) },
    { name: "state", cell: (row) => (row.waiting ? pill(`stands still: ${row.waiting}`, "bad") : pill(row.guarantee.replaceAll("_", " "), "quiet")) },
    { name: "", cell: (row) => button("Delete", async () => {
      const lost = `From now on nothing is copied from ${row.source} to ${row.dest}. The ${plural(row.forwarded_total ?? 0, "copy", "copies")} that are made stay.`;
      if (!(await dialog(`Delete ${row.router}`, { action: "Delete it", danger: { lost, name: row.router } }))) return;
      await ask("DELETE", path("v0", "routers", row.router));
      toast("the router is gone");
      await load();
    }, { kind: "small danger ghost", scopes: ["delete"] }) },
  ], rows, { caption: "Routers", empty: "no routers" });
}

async function create(load) {
  const input = (name, more) => h("input", { type: "text", name, autocomplete: "off", ...more });
  const found = await dialog("New router", {
    fields: [field("From topic", input("source", { required: true })), field("To topic", input("dest", { required: true })),
      field("Only tags", input("filter"), "a tag, or a beginning with a star; empty: all")],
    action: "Create",
  });
  if (!found) return;
  const body = { source: found.source, dest: found.dest, ...(found.filter && { filter: found.filter }) };
  await ask("PUT", path("v0", "routers", `${found.source}->${found.dest}`.slice(0, 255)), body);
  toast("copies are made from now on");
  await load();
}
