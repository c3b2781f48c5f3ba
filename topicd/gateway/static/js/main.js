// The frame around the views: links, the one stream, the token, the keyboard.

import { h, put, text } from "./dom.js";
import { hasToken, setToken, who } from "./api.js";
import { dialog, field, head, needsToken, toast } from "./parts.js";
import { percent } from "./format.js";
import { Stream } from "./stream.js";

const VIEWS = [
  ["now", "Now", "n"], ["topics", "Topics", "t"], ["queues", "Queues", "q"], ["consumers", "Consumers", "c"],
  ["routers", "Routers", "r"], ["channels", "Channels", "h"], ["chat", "Chat", "m"], ["processes", "Processes", "p"],
  ["recovery", "Recovery", "y"],
];
const main = document.getElementById("main");
const shared = { tick: null, history: [], step: 5000, go, refresh: () => show(false) };
let current = null;
let opening = 0;
let greeted = false;

// ---- views ----

function place() {
  const [where, params] = (location.hash.replace(/^#\/?/, "") || "now").split("?");
  const parts = where.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { name: parts[0], parts: parts.slice(1), params: new URLSearchParams(params ?? "") };
}

function go(view, parts = [], params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const tail = given.length ? "?" + new URLSearchParams(given) : "";
  location.hash = "#/" + [view, ...parts.map(encodeURIComponent)].join("/") + tail;
}

async function show(focus = true) {
  const number = ++opening;
  const { name, parts, params } = place();
  const known = VIEWS.find(([view]) => view === name);
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  let view;
  try {
    if (!known) throw new Error(`there is no view ${name}`);
    const module = await import(`./views/${name}.js`);
    view = await module.open(shared, parts, params);
  } catch (error) {
    view = { title: known?.[1] ?? "Not found", node: failed(known?.[1] ?? name, error) };
  }
  if (number !== opening) return; // somebody was quicker
  current?.close?.();
  current = view;
  document.title = `${view.title} · topicd`;
  put(main, view.node);
  reveal();
  stream.want(view.wants ?? {});
  if (shared.tick) view.tick?.(shared.tick);
  if (focus) {
    window.scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

// Where the page is narrow, views and tabs are rows that scroll: the chosen one shall be seen.
function reveal() {
  for (const link of document.querySelectorAll("#nav a[aria-current], .tabs a[aria-current]")) {
    link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

function failed(title, error) {
  try {
    return h("div", null, head(title), needsToken(error));
  } catch {
    return h("div", null, head(title), h("p", { class: "lost", role: "alert" }, error.message),
      h("p", null, h("button", { type: "button", onclick: () => show() }, "Try again")));
  }
}

// ---- the stream ----

const stream = new Stream(
  (event, data) => {
    if (event === "hello") greet(data);
    else if (event === "history") [shared.history, shared.step] = [data.rows, data.step_s * 1000];
    else if (event === "tick") take(data);
    else if (event === "records") current?.records?.(data);
    else if (event === "error") current?.trouble?.(data);
  },
  (state, why) => connection(state, why),
);

function greet(data) {
  const before = JSON.stringify([who.scopes, who.guest, who.name]);
  Object.assign(who, data);
  const access = document.getElementById("access");
  access.hidden = !who.tokens;
  text(access, who.guest ? "Read-only: give a token" : `${who.name}: ${who.scopes.join(", ") || "no scopes"}`);
  if (greeted && before !== JSON.stringify([who.scopes, who.guest, who.name])) show(false);
  if (!greeted) {
    greeted = true;
    show(false);
  }
}

function take(tick) {
  const lost = shared.tick?.run !== undefined && tick.run !== shared.tick.run;
  shared.tick = tick;
  const last = shared.history[shared.history.length - 1];
  if (tick.measured && (!last || tick.now_ms - last[0] >= shared.step - 200)) {
    const all = (name) => tick.processes.reduce((sum, row) => sum + row[name], 0);
    shared.history.push([tick.now_ms, tick.flow.in, tick.flow.out, ...tick.latency.append, ...tick.latency.sync,
      tick.pressure.value, all("cpu"), all("rss")]);
    if (shared.history.length > 720) shared.history.shift();
  }
  health(tick);
  if (lost) toast("the daemon was restarted");
  current?.tick?.(tick);
}

function health(tick) {
  const node = document.getElementById("health");
  const bad = tick.problems.some((one) => one.level === "bad");
  const warn = tick.problems.some((one) => one.level === "warn");
  text(node, tick.state !== "serving" ? tick.state : bad ? "trouble" : warn ? "look here" : "all well");
  node.className = `pill ${bad ? "bad" : warn || tick.state !== "serving" ? "warn" : "good"}`;
  node.title = `pressure ${percent(tick.pressure.value)}`;
}

function connection(state, why) {
  const node = document.getElementById("link");
  node.hidden = state === "open";
  document.body.classList.toggle("stale", state !== "open");
  if (state === "lost") {
    text(node, `no connection: ${why}; trying again`);
    node.className = "pill bad";
  } else if (state === "refused") {
    who.tokens = true;
    document.getElementById("access").hidden = false;
    text(document.getElementById("access"), hasToken() ? "The token was refused" : "Give a token");
    text(node, why);
    node.className = "pill warn";
    text(document.getElementById("health"), "locked");
    if (!greeted) put(main, head("topicd"), h("p", null, "This daemon shows nothing without a token."));
  } else if (document.body.dataset.lost) {
    show(false);
  }
  if (state === "lost") document.body.dataset.lost = "yes";
  else delete document.body.dataset.lost;
}

// ---- the token ----

async function askToken() {
  const input = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false" });
  const found = await dialog("Token", {
    body: [h("p", null, "It stays in this page's memory: not in the address, not in storage. A reload forgets it. ",
      "Made by ", h("code", null, "topicctl token create"), ".")],
    fields: [field("Token, empty for none", input)],
    action: "Use it",
  });
  if (!found) return;
  setToken(found.token.trim());
  greeted = false;
  stream.open();
}

// ---- the frame ----

function keyboard() {
  dialog("Keyboard", {
    body: [h("dl", { class: "facts" }, [
      ...VIEWS.map(([, label, key]) => ["g " + key, label]), ["/", "search"], ["?", "this"], ["Esc", "close"],
    ].map(([key, what]) => h("div", null, h("dt", null, h("kbd", null, key)), h("dd", null, what))))],
    action: "Close",
  });
}

let leader = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,textarea,select,dialog[open]")) return;
  if (event.key === "/") {
    const search = main.querySelector("input[type=search]");
    if (search) event.preventDefault();
    search?.focus();
  } else if (event.key === "?") keyboard();
  else if (event.key === "g") leader = Date.now();
  else if (Date.now() - leader < 1500) {
    leader = 0;
    const found = VIEWS.find(([, , key]) => key === event.key);
    if (found) go(found[0]);
  }
});

function theme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

put(document.getElementById("nav"), h("ul", null, VIEWS.map(([view, label]) =>
  h("li", null, h("a", { href: `#/${view}`, "data-view": view }, label)))));
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("keys").addEventListener("click", keyboard);
document.getElementById("access").addEventListener("click", askToken);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => show());
stream.open();
