// node watch.mjs http://localhost:4000 TOPIC: every record once, also across restarts of the daemon.
const [base = "http://localhost:4000", topic = "ledger"] = process.argv.slice(2);
let seq = 0; // the last one that was processed
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function session() {
  const answer = await fetch(`${base}/v0/watch`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ topics: { [topic]: { from_seq: seq } } }),
  });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return base + (await answer.json()).stream_url;
}

async function follow(url) {
  const answer = await fetch(url, { headers: { Accept: "text/event-stream" } });
  if (!answer.ok) throw new Error(`${answer.status}`);
  let rest = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    const frames = (rest + piece).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) handle(Object.fromEntries(frame.split("\n").map((line) => line.split(/: (.*)/s))));
  }
}

function handle({ event, data }) {
  if (event === "record") {
    for (const record of JSON.parse(data).records) {
      if (record.$seq <= seq) continue;
      seq = record.$seq;
      console.log(record.$seq, JSON.stringify(record.data));
    }
  } else if (event === "tombstone") console.error("missed", data);
}

for (;;) {
  try {
    await follow(await session());
  } catch (error) {
    console.error(String(error.cause ?? error));
  }
  await pause(250);
}
