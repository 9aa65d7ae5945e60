import assert from "node:assert/strict";
import { test } from "node:test";
import * as numbers from "../src/format/numbers";
import * as times from "../src/format/times";

test("counts are grouped, and unknown is a dash", () => {
  assert.equal(numbers.count(0), "0");
  assert.equal(numbers.count(12345), "12,345");
  assert.equal(numbers.plural(12345, "GPU"), "12,345 GPUs");
  assert.equal(numbers.plural(1, "entry", "entries"), "1 entry");
  for (const figure of [numbers.count, numbers.gib, numbers.gibNumber, numbers.percent, numbers.hours, numbers.money]) {
    assert.equal(figure(null), "–");
    assert.equal(figure(undefined), "–");
  }
});

test("memory is in GiB with at most one decimal, as the command line writes it", () => {
  for (const [mib, text] of [
    [0, "0 GiB"],
    [81920, "80 GiB"],
    [902553, "881.4 GiB"],
    [512, "0.5 GiB"],
    [1258291, "1,228.8 GiB"],
    [12_640_000, "12,343.8 GiB"],
  ] as const) {
    assert.equal(numbers.gib(mib), text);
  }
  assert.equal(numbers.sizeText("20480MiB"), "20 GiB");
  assert.equal(numbers.sizeText("auto"), "auto");
});

test("GPU hours keep what is small apart from nothing", () => {
  for (const [value, text] of [
    [0, "0.00"],
    [0.004, "<0.01"],
    [0.00004, "<0.01"],
    [0.0051, "0.01"],
    [0.0951, "0.10"],
    [0.01, "0.01"],
    [99.994, "99.99"],
    [100, "100"],
    [12345.4, "12,345"],
  ] as const) {
    assert.equal(numbers.hours(value), text);
  }
});

test("amounts are grouped and never rounded", () => {
  assert.equal(numbers.money("1234567.50"), "1,234,567.50");
  assert.equal(numbers.money("0.10"), "0.10");
  assert.equal(numbers.money("123"), "123");
});

test("ordinals", () => {
  const texts = [1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111, 1003].map(numbers.ordinal);
  assert.deepEqual(texts, "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 101st 111th 1,003rd".split(" "));
});

test("a GPU's short name is the first block of its UUID", () => {
  assert.equal(numbers.shortGpu("GPU-994b9fb9-3773-5926-9590-39bd4d601b7f"), "994b9fb9");
  assert.equal(numbers.shortGpu("w1"), "w1");
});

test("an age is in one unit", () => {
  for (const [seconds, text] of [
    [-3, "0s"],
    [0.9, "0s"],
    [61, "61s"],
    [119.9, "119s"],
    [120, "2m"],
    [7199, "119m"],
    [7200, "2h"],
    [172_799, "47h"],
    [172_800, "2d"],
  ] as const) {
    assert.equal(times.age(seconds), text);
  }
});

test("a duration is in its two largest units", () => {
  for (const [seconds, text] of [
    [0, "0s"],
    [0.04, "0s"],
    [1.25, "1.3s"],
    [9.98, "10s"],
    [50, "50s"],
    [250, "4m10s"],
    [7500, "2h05m"],
    [273_600, "3d04h"],
  ] as const) {
    assert.equal(times.duration(seconds), text);
  }
  assert.equal(times.span(90), "90s");
  assert.equal(times.span(600), "10m");
  assert.equal(times.span(604_800), "7d");
});

test("times are in the reader's zone, which is named", () => {
  assert.equal(times.fullTime("2026-11-24T05:00:00Z"), "24 Nov 2026, 14:00:00 GMT+9");
  assert.equal(times.clock("2026-11-24T05:00:00Z"), "14:00:00");
  assert.match(times.minuteOfDay("2020-01-02T20:30:00Z"), /^0?3 Jan, 05:30$/);
});
