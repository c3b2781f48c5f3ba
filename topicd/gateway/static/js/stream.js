// The one stream of this page: server-sent events read by fetch, so that the token travels in a header. When it breaks it
// is opened again, sooner at first and then every few seconds; a page that nobody sees keeps it closed.

import { headers, query } from "./api.js";

const FIRST_MS = 300;
const LONGEST_MS = 5000;
const SILENT_MS = 20000; // the daemon says something every second, at the latest every 15

export class Stream {
  constructor(told, state) {
    this.told = told; // (event, data)
    this.state = state; // ("open" | "lost" | "refused", why)
    this.wants = {};
    this.abort = null;
    this.again = null;
    this.delay = FIRST_MS;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.rest() : this.open()));
    window.addEventListener("online", () => this.open());
  }

  want(values) {
    if (JSON.stringify(values) === JSON.stringify(this.wants) && this.abort) return;
    this.wants = values;
    this.open();
  }

  rest() {
    clearTimeout(this.again);
    this.abort?.abort();
    this.abort = null;
  }

  open() {
    this.rest();
    this.run();
  }

  async run() {
    const abort = (this.abort = new AbortController());
    let why = "the daemon does not answer";
    try {
      const answer = await fetch("/dashboard/stream" + query(this.wants), { headers: headers(), signal: abort.signal });
      if (!answer.ok) {
        const error = (await answer.json()).error;
        if (answer.status === 401 || answer.status === 403) return this.state("refused", error.message, error.code);
        if (answer.status === 404 && this.wants.tail) return this.want({});
        why = error.message;
      } else {
        this.delay = FIRST_MS;
        this.state("open");
        await this.read(answer.body.getReader(), abort);
        why = "the connection ended";
      }
    } catch {
      if (abort.signal.aborted && this.abort !== abort) return; // replaced, or nobody looks
    }
    if (this.abort !== abort) return;
    this.abort = null;
    this.state("lost", why);
    this.again = setTimeout(() => this.open(), this.delay);
    this.delay = Math.min(LONGEST_MS, this.delay * 2);
  }

  async read(reader, abort) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const watch = setTimeout(() => {
        reader.cancel().catch(() => {});
      }, SILENT_MS);
      const { done, value } = await reader.read();
      clearTimeout(watch);
      if (done || this.abort !== abort) return;
      const frames = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) this.take(frame);
    }
  }

  take(frame) {
    let event = "";
    let data = "";
    for (const line of frame.split("\n")) {
      if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (event && data) this.told(event, JSON.parse(data));
  }
}
