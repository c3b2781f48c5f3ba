// The pieces that views are made of.

import { h, put } from "./dom.js";
import { Refused, may, who } from "./api.js";
import { count, size, time } from "./format.js";

export function head(title, sub, ...actions) {
  return h("div", { class: "head" },
    h("div", { class: "titles" }, h("h1", { tabindex: "-1", title }, title), sub ? h("p", { class: "sub" }, sub) : null),
    h("div", { class: "actions" }, actions));
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title ? h("h2", null, title) : null, children);
}

export function button(label, action, { kind = "", scopes = [], title = "" } = {}) {
  const allowed = may(...scopes);
  const why = allowed ? title : `needs a token with the scope ${scopes.filter((one) => !may(one)).join(", ")}`;
  const node = h("button", { type: "button", class: kind, disabled: !allowed, title: why || null }, label);
  node.addEventListener("click", () => busy(node, action));
  return node;
}

// A button cannot be pressed twice while its work is under way; what went wrong is said.
export async function busy(node, action) {
  node.disabled = true;
  node.setAttribute("aria-busy", "true");
  try {
    return await action();
  } catch (error) {
    toast(error.message, "bad");
    if (!(error instanceof Refused)) throw error;
  } finally {
    node.disabled = false;
    node.removeAttribute("aria-busy");
  }
}

export function toast(message, kind = "good") {
  const node = h("div", { class: `toast ${kind}` }, message);
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 8000 : 4000);
}

// columns: [{name, right, key (sort), cell(row) → child}]
export function table(columns, rows, { caption, empty = "nothing here", sort, onsort, rowClass } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const heads = columns.map((column) => {
    const sortable = column.key && onsort;
    const label = sortable
      ? h("button", { type: "button", class: "sorter", onclick: () => onsort(column.key) }, column.name, sort === column.key ? " ▾" : "")
      : column.name;
    const order = sort === column.key && sortable ? (column.key === "name" ? "ascending" : "descending") : null;
    return h("th", { scope: "col", class: column.right ? "right" : null, "aria-sort": order }, label);
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null,
      h("caption", { class: "unseen" }, caption),
      h("thead", null, h("tr", null, heads)),
      h("tbody", null, rows.map((row) => h("tr", { class: rowClass?.(row) },
        columns.map((column) => h("td", { class: [column.right ? "right" : "", column.class ?? ""].join(" ").trim() || null,
          "data-name": column.name }, column.cell(row))))))));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

export function tile(label, value, note, kind = "") {
  return h("div", { class: `tile ${kind}` }, h("div", { class: "tile-label" }, label), h("div", { class: "tile-value" }, value),
    note ? h("div", { class: "tile-note" }, note) : null);
}

export function pill(label, kind = "") {
  return h("span", { class: `pill ${kind}` }, label);
}

export function field(label, control, note) {
  return h("label", { class: "field" }, h("span", null, label), control, note ? h("small", null, note) : null);
}

export function select(options, value, onchange, label) {
  const node = h("select", { "aria-label": label, onchange: () => onchange?.(node.value) },
    options.map((option) => h("option", { value: option[0] ?? option, selected: (option[0] ?? option) === value }, option[1] ?? option)));
  return node;
}

export function shell(...lines) {
  return h("section", { class: "shell", "aria-label": "The same from a shell" },
    h("h2", null, "The same from a shell"),
    lines.filter(Boolean).map((line) => h("div", { class: "line-of-code" }, h("code", { tabindex: "0" }, line),
      h("button", { type: "button", class: "ghost small", "aria-label": `Copy ${line.slice(0, 40)}`,
        onclick: async () => {
          try {
            await navigator.clipboard.writeText(line);
            toast("copied");
          } catch {
            toast("the browser lets this page copy nothing: select the line", "bad"); // not over plain HTTP from afar
          }
        } }, "copy"))));
}

// ---- dialogs ----

// Resolves to the values of the fields, or null. danger: {lost, name}: says what is lost, and the name must be typed.
export function dialog(title, { body = [], fields = [], action = "OK", danger = null } = {}) {
  const node = document.getElementById("dialog");
  return new Promise((resolve) => {
    const typed = danger ? h("input", { type: "text", autocomplete: "off", spellcheck: "false", name: "typed" }) : null;
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: Boolean(danger) }, action);
    typed?.addEventListener("input", () => (go.disabled = typed.value !== danger.name));
    const form = h("form", { class: "dialog-form", onsubmit: (event) => {
      event.preventDefault();
      const values = {};
      for (const one of form.elements) if (one.name) values[one.name] = one.type === "checkbox" ? one.checked : one.value;
      done(values);
    } },
      h("h2", { id: "dialog-title" }, title), body,
      danger ? h("p", { class: "lost" }, danger.lost) : null, fields,
      danger ? field(`Type ${danger.name} to go on`, typed) : null,
      h("div", { class: "dialog-buttons" }, h("button", { type: "button", class: "ghost", onclick: () => done(null) }, "Cancel"), go));
    const done = (values) => {
      node.onclose = null;
      node.close();
      put(node);
      resolve(values);
    };
    node.onclose = () => done(null);
    put(node, form);
    node.showModal();
    (typed ?? form.querySelector("input,select,textarea") ?? go).focus();
  });
}

// ---- records ----

export function hexDump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const bytes = hex.slice(at, at + 32).match(/../g) ?? [];
    const signs = bytes.map((one) => { const n = parseInt(one, 16); return n > 31 && n < 127 ? String.fromCharCode(n) : "·"; }).join("");
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${bytes.join(" ").padEnd(47)}  ${signs}`);
  }
  return lines.join("\n");
}

export function recordBody(row) {
  const body = row.kind === "binary" ? hexDump(row.text) : row.text;
  return h("div", { class: "record-body" },
    h("pre", { tabindex: "0" }, body ?? ""),
    row.cut ? h("p", { class: "sub" }, `cut: the whole has ${size(row.size)}`) : null,
    row.meta ? h("details", null, h("summary", null, "meta"), h("pre", null, row.meta)) : null);
}

export function preview(row) {
  const line = row.kind === "binary" ? `${(row.text.match(/../g) ?? []).slice(0, 24).join(" ")}` : (row.text ?? "").replace(/\s+/g, " ");
  return line.length > 160 ? line.slice(0, 160) + "…" : line;
}

export function record(row, ...more) {
  return h("details", { class: "record", "data-seq": row.seq },
    h("summary", null,
      h("span", { class: "seq" }, `#${row.seq}`), h("time", null, time(row.ts)),
      row.tag ? h("span", { class: "tag", title: "tag" }, row.tag) : null,
      row.node ? h("span", { class: "node", title: "node" }, row.node) : null,
      row.kind === "binary" ? pill("binary", "quiet") : null,
      h("span", { class: "peek" }, preview(row)), more),
    recordBody(row));
}

export function gap(from, to, reason) {
  const many = to > from ? `${count(from)} to ${count(to)}` : count(from);
  return h("div", { class: "gap" }, `#${many}: ${reason}`);
}

export function needsToken(error) {
  if (!(error instanceof Refused) || (error.status !== 401 && error.status !== 403)) throw error;
  return h("section", { class: "card" }, h("h2", null, who.tokens && who.guest ? "A token is needed" : "Not allowed"),
    h("p", null, error.message, ". Give one with the button at the top right; it stays in this page's memory only."));
}
