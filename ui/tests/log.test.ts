import assert from "node:assert/strict";
import { test } from "node:test";
import { parseLine, plainText, PLAIN } from "../src/log/ansi";
import { cellsOf, filterOf, JsonLines, keeping, LineBuffer } from "../src/log/lines";
import { placeOf, placesOf, ROW_PX, rowsOf } from "../src/log/places";
import { ALL, endWords, type Sent, Sources } from "../src/log/sources";

const text = (line: string): string => plainText(parseLine(line, PLAIN).pieces);

function said(instance: string, line: string, position: number, more: Partial<Sent> = {}): Sent {
  return { instance, rank: 0, epoch: 1, line, position, at: "2026-11-24T05:00:00Z", ...more };
}

function ended(instance: string, exit: number | null, at = "2026-11-24T05:01:00Z"): Sent {
  const end = { reason: "exited", exit_code: exit, message: "", at, words: "" };
  return { instance, rank: 0, epoch: 1, end };
}

test("colours become classes", () => {
  const { pieces } = parseLine("\x1b[1;31mbad\x1b[0m and \x1b[32mgood\x1b[39m", PLAIN);
  assert.deepEqual(pieces, [
    { text: "bad", style: "ansi-red ansi-bold" },
    { text: " and ", style: "" },
    { text: "good", style: "ansi-green" },
  ]);
  for (const [codes, style] of [
    ["38;5;196", "ansi-red"],
    ["38;5;21", "ansi-blue"],
    ["38;2;0;200;0", "ansi-green"],
    ["38:2:0:200:0", "ansi-green"],
    ["94", "ansi-blue"],
    ["48;5;1;33", "ansi-yellow"],
    ["2;3;4", "ansi-dim ansi-italic ansi-underline"],
    ["7", ""],
  ] as const) {
    assert.equal(parseLine(`\x1b[${codes}mx`, PLAIN).pieces[0]?.style, style, codes);
  }
});

test("a colour goes on over lines until it is set back", () => {
  const { after } = parseLine("\x1b[33mwarning begins", PLAIN);
  const next = parseLine("and goes on\x1b[0m.", after);
  assert.deepEqual(
    next.pieces.map((piece) => piece.style),
    ["ansi-yellow", ""],
  );
});

test("all other escapes and control characters are dropped", () => {
  for (const [line, shown] of [
    ["\x1b]0;title\x07text", "text"],
    ["\x1b]8;;javascript:alert(1)\x1b\\click\x1b]8;;\x1b\\", "click"],
    ["\x1b[2J\x1b[10;5Hhere", "here"],
    ["\x1bPq#0;2;0;0;0\x1b\\after", "after"],
    ["\x9b31mC1\x9b0m", "C1"],
    ["unfinished \x1b[", "unfinished "],
    ["bell\x07 back\x08 null\x00", "bell back null"],
    ["tab\tstays", "tab\tstays"],
    ["<script>alert(1)</script>", "<script>alert(1)</script>"],
  ] as const) {
    assert.equal(text(line), shown, JSON.stringify(line));
  }
});

test("what a carriage return overwrote is dropped", () => {
  assert.equal(text("10 %\r50 %\r100 %"), "100 %");
  assert.equal(text("a line of Windows\r"), "a line of Windows");
  assert.equal(text("\x1b[31m10 %\x1b[0m\r\x1b[32m99 %\x1b[0m"), "99 %");
});

test("a line has the columns of a terminal", () => {
  assert.equal(cellsOf("plain"), 5);
  assert.equal(cellsOf("\tx"), 9);
  assert.equal(cellsOf("模型"), 4);
  assert.equal(cellsOf("🚀"), 2);
});

test("the newest lines are held, and the filter keeps filtering what comes", () => {
  const buffer = new LineBuffer(10);
  const lines = Array.from({ length: 25 }, (_, n) => said("a", `line ${n}`, n));
  assert.equal(buffer.add(lines.slice(0, 5)), 5);
  buffer.filter(keeping("LINE 1", false));
  assert.deepEqual(
    buffer.shown.map((line) => line.text),
    ["line 1"],
  );
  buffer.add(lines.slice(5));
  assert.equal(buffer.all.length, 10);
  assert.equal(buffer.dropped, 15);
  assert.deepEqual(
    buffer.shown.map((line) => line.text),
    [15, 16, 17, 18, 19].map((n) => `line ${n}`),
  );
  buffer.filter(null);
  assert.equal(buffer.shown.length, 10);
});

test("long lines are cut, and many characters leave as many lines do", () => {
  const buffer = new LineBuffer(1000, 100_000);
  buffer.add([said("a", "x".repeat(30_000), 0)]);
  assert.equal(buffer.all[0]?.text.length, 20_002);
  buffer.add(Array.from({ length: 10 }, (_, n) => said("a", "y".repeat(20_000), n + 1)));
  assert.ok(buffer.all.length <= 6, String(buffer.all.length));
  assert.ok(buffer.dropped >= 5);
});

test("colours of one process do not colour another's lines, and end with it", () => {
  const buffer = new LineBuffer(10);
  buffer.add([said("a", "\x1b[31mred", 0), said("b", "plain", 0), said("a", "still red", 1), ended("a", 3)]);
  buffer.add([said("a", "a new start", 0)]);
  const styles = buffer.all.map((line) => line.pieces[0]?.style);
  assert.deepEqual(styles, ["ansi-red", "", "ansi-red", "", ""]);
  assert.equal(buffer.all[3]?.text, "the process has exited with code 3");
  assert.equal(buffer.all[3]?.note, true);
});

test("a search keeps lines of the chosen instance and rank alone", () => {
  const line = (instance: string, rank: number, words: string) =>
    ({ instance, rank, text: words }) as Parameters<NonNullable<ReturnType<typeof keeping>>>[0];
  const { keep } = filterOf("err(or)?", true, { instance: "a", rank: 1 });
  assert.equal(keep?.(line("a", 1, "an ERROR")), true);
  assert.equal(keep?.(line("a", 0, "an error")), false);
  assert.equal(keep?.(line("b", 1, "an error")), false);
  assert.equal(keep?.(line("a", 1, "fine")), false);
  assert.deepEqual(filterOf("", false, ALL), { keep: null, problem: "" });
  const broken = filterOf("[", true, ALL);
  assert.match(broken.problem, /Invalid regular expression/);
  assert.equal(broken.keep, null);
});

test("lines that come again are taken once", () => {
  const sources = new Sources();
  sources.follow([
    { instance: "a", rank: 0, epoch: 1 },
    { instance: "b", rank: 0, epoch: 1 },
  ]);
  assert.equal(sources.take([said("a", "one", 0), said("a", "two", 4), said("b", "one", 0)]).length, 3);
  assert.deepEqual(
    sources.take([said("a", "two", 4), said("a", "three", 8)]).map((one) => one.line),
    ["three"],
  );
  assert.deepEqual(sources.take([said("a", "one", 0, { epoch: 2 })]).length, 1, "another start begins anew");
  const at = Date.parse("2026-11-24T05:00:00Z");
  assert.ok(sources.after().includes(`a/0/1/8/${at}`));
});

test("the end is told once all have ended, by the last one", () => {
  const sources = new Sources();
  sources.follow(["a", "b"].map((instance) => ({ instance, rank: 0, epoch: 1 })));
  sources.take([ended("a", 0, "2026-11-24T05:03:00Z")]);
  assert.equal(sources.ending(ALL), null);
  assert.equal(sources.ended(ALL).length, 1);
  assert.equal(sources.ending({ instance: "a", rank: null })?.source.instance, "a");
  assert.equal(sources.take([ended("a", 0, "2026-11-24T05:03:00Z")]).length, 0, "an end is told once");
  sources.take([ended("b", -9, "2026-11-24T05:02:00Z")]);
  assert.equal(sources.ending(ALL)?.source.instance, "a", "though it was told first");
  sources.follow([{ instance: "b", rank: 0, epoch: 2 }]);
  assert.equal(sources.ending(ALL), null, "something has started");
});

test("ranks and instances are in order, each once", () => {
  const sources = new Sources();
  sources.follow([
    { instance: "a", rank: 10, epoch: 1 },
    { instance: "a", rank: 2, epoch: 1 },
    { instance: "b", rank: 2, epoch: 1 },
  ]);
  assert.deepEqual(sources.ranks(null), [2, 10]);
  assert.deepEqual(sources.ranks("b"), [2]);
  assert.deepEqual(sources.instances, ["a", "b"]);
});

test("how a process ended, in words", () => {
  const end = (exit_code: number | null, reason: string | null = null) =>
    endWords({ exit_code, reason, message: "", at: null, words: "" });
  assert.equal(end(3), "exited with code 3");
  assert.equal(end(-9), "ended by signal 9");
  assert.equal(end(null, "lost"), "ended: lost");
  assert.equal(end(null), "ended: gone");
});

test("JSON lines may be cut anywhere", () => {
  const whole = [said("a", "one", 0), said("a", 'two "quoted"', 4)].map((one) => JSON.stringify(one)).join("\n") + "\n";
  for (let cut = 0; cut <= whole.length; cut++) {
    const reader = new JsonLines();
    const found = [...reader.feed(whole.slice(0, cut)), ...reader.feed(whole.slice(cut))];
    assert.deepEqual(
      found.map((one) => one.line),
      ["one", 'two "quoted"'],
    );
  }
});

test("places of wrapped lines agree with the rows that they take", () => {
  const buffer = new LineBuffer(100);
  buffer.add([3, 25, 0, 41, 10].map((length, n) => said("a", "x".repeat(length), n)));
  const lines = buffer.all;
  assert.deepEqual(
    lines.map((line) => rowsOf(line, 10)),
    [1, 3, 1, 5, 1],
  );
  const places = placesOf(lines, 10);
  assert.equal(places.height, 11 * ROW_PX);
  for (let top = 0; top < places.height; top++) {
    const { first, offset } = places.at(top);
    assert.equal(offset, places.topOf(first));
    assert.ok(offset <= top && top < places.topOf(first + 1));
  }
  assert.equal(placesOf(lines, null).at(2 * ROW_PX + 1).first, 2);
  assert.equal(placesOf(lines, null).at(1e9).first, 4);
  assert.deepEqual(placesOf([], null).at(100), { first: 0, offset: 0 });
  assert.equal(placeOf(lines, 3), 3);
  assert.equal(placeOf(lines.slice(2), 0), 0, "what has left gives its place to the next");
});
