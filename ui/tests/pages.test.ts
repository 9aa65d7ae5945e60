import assert from "node:assert/strict";
import { test } from "node:test";
import type { Deployment, Event, IdleReport, Instance } from "../src/api/types";
import { points, runsOf } from "../src/graph/points";
import { compareNames } from "../src/live/collection";
import { entriesOf, manifestFor } from "../src/pages/catalog/entries";
import { addressOf, afterMs, filterOf, isWanted, parametersOf, withGiven } from "../src/pages/events/filter";
import { actorText, pageOf, runs, subjectText } from "../src/pages/events/line";
import { csvOf } from "../src/pages/hours/csv";
import { piecesOf } from "../src/pages/playground/stream";
import { engineText } from "../src/pages/workers/engines";

const NOW = Date.parse("2026-11-24T05:00:00Z");
const TOKEN = "46e2ecb0-4410-4aac-8c1d-7115fde8a99e";

function event(more: Partial<Event> = {}): Event {
  const subjects = [{ kind: "worker", name: "w1", uid: "u1" }];
  const made = {
    id: 1,
    at: "2026-11-24T04:59:00Z",
    reason: "cordoned",
    message: "m",
    actor: "key:ann",
    objects: ["w"],
  };
  return { ...made, subjects, ...more } as Event;
}

test("a period or a moment of the address is judged by the clock, as the API judges it", () => {
  const minute = 60_000;
  for (const [text, expected] of [
    ["10m", NOW - 10 * minute],
    ["1h30m", NOW - 90 * minute],
    ["1.5h", NOW - 90 * minute],
    ["90", NOW - 90_000],
    ["500ms", NOW - 500],
    [" 7d ", NOW - 7 * 24 * 60 * minute],
    ["2026-11-24T04:00:00Z", NOW - 60 * minute],
    ["2026-11-24T04:00:00", NOW - 60 * minute],
    ["2026-11-24T05:00:00+01:00", NOW - 60 * minute],
    ["", null],
    ["soon", null],
  ] as const) {
    assert.equal(afterMs(text, NOW), expected, text);
  }
});

test("an event is wanted by reason, kind, name and time", () => {
  const filter = { reason: "", kind: "", name: "", after: "" };
  const wanted = (more: Partial<typeof filter>, of = event()): boolean => isWanted(of, { ...filter, ...more }, NOW);
  assert.ok(wanted({}));
  assert.ok(wanted({ reason: "running, cordoned" }));
  assert.ok(!wanted({ reason: "running" }));
  assert.ok(wanted({ kind: "worker" }));
  assert.ok(wanted({ kind: "worker", name: "u1" }));
  assert.ok(!wanted({ kind: "worker", name: "w2" }));
  assert.ok(!wanted({ kind: "gpu" }));
  assert.ok(wanted({ after: "10m" }));
  assert.ok(!wanted({ after: "30s" }), "it has grown too old");
  assert.ok(!wanted({ after: "2026-11-25T00:00:00Z" }));
});

test("filters are the address, and come back from it", () => {
  const filter = { reason: "running,backoff", kind: "worker", name: "w1", after: "1h" };
  assert.deepEqual(filterOf(addressOf(filter)), filter);
  assert.equal(addressOf({ reason: " ", kind: "", name: "", after: "" }), "");
  assert.equal(parametersOf(filter), "reason=running%2Cbackoff&object=worker%2Fw1&after=1h");
  assert.equal(parametersOf({ ...filter, name: "" }), "reason=running%2Cbackoff&after=1h");
  assert.deepEqual(filterOf("object=deployment/chat").name, "chat");
  assert.deepEqual(withGiven(["1h"], "2s"), ["2s", "1h"]);
  assert.deepEqual(withGiven(["1h"], "1h"), ["1h"]);
});

test("equal events in a row are one line", () => {
  const told = [event(), event(), event({ message: "other" }), event(), event({ actor: "key:bob" })];
  assert.deepEqual(
    runs(told).map((run) => run.events.length),
    [2, 1, 1, 1],
  );
});

test("who did it and to what, in words", () => {
  assert.equal(actorText("key:ann"), "ann");
  assert.equal(actorText("key:a:b"), "a:b");
  assert.equal(actorText("policy:stop-idle"), "policy stop-idle");
  assert.equal(actorText(`token:${TOKEN}`), "token 46e2ecb0");
  assert.equal(actorText("leader"), "leader");
  assert.equal(subjectText({ kind: "worker", name: "w1", uid: "u" }), "w1");
  assert.equal(subjectText({ kind: "token", name: TOKEN, uid: TOKEN }), "token 46e2ecb0");
  assert.equal(subjectText({ kind: "token", name: "", uid: TOKEN }), "token 46e2ecb0");
  assert.equal(subjectText({ kind: "gpu", name: "", uid: `GPU-${TOKEN}` }), "GPU 46e2ecb0");
  assert.equal(pageOf("Deployment", "chat", "u"), "/ui/deployments/chat");
  assert.equal(pageOf("key", "ann", "u"), null);
});

test("a line of samples breaks where samples are missing", () => {
  const found = runsOf([1, 2, null, null, 3, null]);
  assert.deepEqual(found, [
    { first: 0, values: [1, 2] },
    { first: 4, values: [3] },
  ]);
  assert.deepEqual(runsOf([null]), []);
  assert.equal(
    points({ first: 4, values: [3] }, 6, 60, (value) => value),
    "40,3 50,3",
  );
});

test("names are in the order of their numbers", () => {
  assert.deepEqual(["gpu-10", "gpu-2", "a"].sort(compareNames), ["a", "gpu-2", "gpu-10"]);
});

test("a report as CSV", () => {
  const gpu_hours = { claimed: 0.03125, used: 0.004, wasted: 12345.00005, unknown: 0, freed: 0, would_free: null };
  const item = { deployment: 'a "b", c', uid: "u", deleted: true, policy: "", min_gpu_utilization: 10, gpu_hours };
  const report = { items: [{ ...item, cost: null }], currency: null } as unknown as IdleReport;
  const [titles = "", row] = csvOf(report).split("\n");
  assert.equal(row, '"a ""b"", c",u,true,,10,0.0312,0.0040,12345.0001,0.0000,0.0000,,,,,,,');
  assert.equal(titles.split(",").length, 17);
});

test("an answer of a model may be cut anywhere", () => {
  const data = (chunk: unknown): string => `data: ${JSON.stringify(chunk)}\n\n`;
  const whole =
    data({ choices: [{ delta: { reasoning_content: "hm " } }] }) +
    ": a comment\r\n" +
    data({ choices: [{ delta: { content: "<b>é</b>" } }] }) +
    data({ choices: [], usage: { completion_tokens: 2 } }) +
    "data: not json\n\ndata: [DONE]\n\n";
  for (let cut = 0; cut <= whole.length; cut++) {
    const first = piecesOf(whole.slice(0, cut));
    const all = [...first.pieces, ...piecesOf(first.rest + whole.slice(cut)).pieces];
    assert.equal(all.map((piece) => piece.text).join(""), "hm <b>é</b>");
    assert.equal(all.find((piece) => piece.tokens !== null)?.tokens, 2);
    assert.equal(all.filter((piece) => piece.done).length, 1);
  }
});

test("models of the cluster, each once", () => {
  const of = (name: string, model: string | null): Deployment => ({ name, spec: { model } }) as unknown as Deployment;
  const claims = [{ kind: "gpu", memory_mib: 20480 }];
  const instance = { spec: { model: "hf:a/m" }, status: { claims } } as unknown as Instance;
  const found = entriesOf(
    [of("one", "hf:a/m"), of("two", "hf:a/m"), of("custom", null)],
    [instance],
    new Map([["hf:a/other", ["w10", "w2"]]]),
  );
  assert.deepEqual(found, [
    { model: "hf:a/m", deployments: ["one", "two"], cachedOn: [], needMib: 20480 },
    { model: "hf:a/other", deployments: [], cachedOn: ["w2", "w10"], needMib: null },
  ]);
  assert.match(manifestFor("hf:Qwen/Qwen3-0.6B@abc"), /^name: qwen3-0-6b$/m);
  assert.match(manifestFor("/models/…"), /^name: model$/m);
});

test("a worker's engines are listed with their versions", () => {
  const named = { name: "vllm", version: "0.11.0" };
  for (const [engines, expected] of [
    [[named, { ...named, name: "llama-cpp", version: null }], "vllm 0.11.0, llama-cpp"],
    [[], "none installed"],
    [null, "unknown"],
    [undefined, "unknown"],
  ] as const) {
    assert.equal(engineText(engines as Parameters<typeof engineText>[0]), expected);
  }
});
