import assert from "node:assert/strict";
import { mock, test } from "node:test";

const HOUR_MS = 3_600_000;
const START = "2026-11-24T05:00:00Z";

test("ages follow the controller's clock where this machine's is wrong", async () => {
  mock.timers.enable({ apis: ["Date", "setInterval"], now: Date.parse(START) });
  const { noteServerTime, now, secondsSince } = await import("../src/format/times");
  const tick = (): number => {
    mock.timers.tick(1000);
    return now.value - Date.now();
  };
  assert.equal(tick(), 0);
  noteServerTime(new Date(Date.now() + HOUR_MS).toUTCString());
  assert.equal(tick(), HOUR_MS);
  assert.equal(Math.round(secondsSince(START)), 3602);
  noteServerTime(null);
  noteServerTime("not a time");
  assert.equal(tick(), HOUR_MS, "an answer without a time changes nothing");
  noteServerTime(new Date(Date.now() + 1000).toUTCString());
  assert.equal(tick(), 0, "a header has whole seconds, and takes a while");
});
