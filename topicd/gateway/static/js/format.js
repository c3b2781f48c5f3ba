// Numbers, sizes and times as people read them.

export function count(value) {
  return Math.round(value ?? 0).toLocaleString("en-US");
}

export function short(value) {
  const n = Number(value ?? 0);
  if (Math.abs(n) < 1000) return Number.isInteger(n) ? String(n) : n.toFixed(n < 10 ? 1 : 0);
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(n) >= size) return (n / size).toFixed(n / size < 10 ? 1 : 0) + unit;
  }
  return String(n);
}

export function size(bytes) {
  let n = Number(bytes ?? 0);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (n < 1024 || unit === "TiB") return (unit === "B" || n >= 100 ? Math.round(n) : n.toFixed(1)) + " " + unit;
    n /= 1024;
  }
}

export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds ?? 0));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function ms(value) {
  const n = Number(value ?? 0);
  if (!n) return "–";
  return n < 1 ? `${Math.round(n * 1000)} µs` : `${n < 10 ? n.toFixed(1) : Math.round(n)} ms`;
}

export function time(ts) {
  if (!ts) return "–";
  const d = new Date(ts);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
  return `${day} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(d.getMilliseconds()).padStart(3, "0")}`;
}

export function clock(ts, seconds = false) {
  const d = new Date(ts);
  return [d.getHours(), d.getMinutes(), ...(seconds ? [d.getSeconds()] : [])].map((n) => String(n).padStart(2, "0")).join(":");
}

export function ago(ts, now = Date.now()) {
  return ts ? `${duration((now - ts) / 1000)} ago` : "never";
}

export function percent(share) {
  return `${(100 * (share ?? 0)).toFixed(share && share < 0.1 ? 1 : 0)} %`;
}

export function plural(n, one, many = one + "s") {
  return `${count(n)} ${n === 1 ? one : many}`;
}
