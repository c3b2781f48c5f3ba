// Requests to the daemon that served this page. The token lives in this module's memory: a reload forgets it.

let token = "";
export const who = { tokens: false, guest: false, scopes: [], name: "", prefixes: [], chat: false };

export function setToken(value) {
  token = value;
}

export function hasToken() {
  return token !== "";
}

export function may(...scopes) {
  return scopes.every((scope) => who.scopes.includes(scope));
}

export function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `the daemon answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
  }
}

export async function ask(method, path, body) {
  const options = { method, headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }) };
  if (body !== undefined) options.body = typeof body === "string" ? body : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused(0, { message: "the daemon does not answer", code: "away" });
  }
  let found = null;
  try {
    found = await answer.json();
  } catch {
    throw new Refused(answer.status, null);
  }
  if (!answer.ok) throw new Refused(answer.status, found.error);
  return found;
}

export const get = (path) => ask("GET", path);
export const post = (path, body = {}) => ask("POST", path, body);

export function path(...parts) {
  return "/" + parts.map((part) => encodeURIComponent(part)).join("/");
}

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? "?" + new URLSearchParams(given).toString() : "";
}

// ---- the same from a shell ----

export function quoted(value) {
  const text = String(value);
  return /^[A-Za-z0-9_.:@%+=,/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

export function topicctl(...words) {
  return "topicctl " + words.filter((word) => word !== "").map(quoted).join(" ");
}

export function curl(method, where, body) {
  const words = ["curl -s"];
  if (method !== "GET") words.push(`-X ${method}`);
  if (who.tokens) words.push('-H "Authorization: Bearer $TOKEN"');
  words.push(quoted(location.origin + where));
  if (body !== undefined) words.push("-H 'Content-Type: application/json'", "-d " + quoted(JSON.stringify(body)));
  return words.join(" ");
}
