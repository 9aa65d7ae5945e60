import assert from "node:assert/strict";
import { test } from "node:test";
import type { Deployment } from "../src/api/types";
import { advised, linked } from "../src/manifest/advice";
import { changes, changeText, equal, type Schemas, withoutDefaults } from "../src/manifest/defaults";
import { atLines, parseText, stepsOf, withGpus } from "../src/pages/apply/document";

const SCHEMAS: Schemas = {
  Spec: {
    properties: {
      model: { default: null },
      replicas: { default: 1 },
      labels: { default: {} },
      resources: { $ref: "#/components/schemas/Resources", default: { gpus: 1, memory: "auto" } },
      policy: { anyOf: [{}, { $ref: "#/components/schemas/Rule" }], default: null },
    },
  },
  Resources: { properties: { gpus: { default: 1 }, memory: { default: "auto" } } },
  Rule: { properties: { below: {}, dry_run: { default: false } } },
};
const written = (value: unknown): unknown => withoutDefaults(value, SCHEMAS.Spec ?? {}, SCHEMAS);

test("what equals its default is left out, at every depth", () => {
  const full = { model: "hf:a/b", replicas: 1, labels: {}, resources: { gpus: 2, memory: "auto" }, policy: null };
  assert.deepEqual(written(full), { model: "hf:a/b", resources: { gpus: 2 } });
  assert.deepEqual(written({ policy: { below: 10, dry_run: false } }), { policy: { below: 10 } });
  assert.deepEqual(written({ resources: { memory: "auto", gpus: 1 } }), {}, "whatever the order of fields");
  assert.deepEqual(written({ unknown: 1, labels: { a: "b" } }), { unknown: 1, labels: { a: "b" } });
});

test("changes are named by their path, old and new", () => {
  const before = { replicas: 2, resources: { gpus: 1, gpu_memory: "20480MiB" }, args: { a: 1 } };
  const after = { replicas: 3, resources: { gpus: 1, gpu_memory: "24576MiB" }, args: {} };
  assert.deepEqual(changes(before, after).map(changeText), [
    "replicas 2 → 3",
    "resources.gpu_memory 20GiB → 24GiB",
    "args.a 1 → –",
  ]);
  assert.deepEqual(changes(before, structuredClone(before)), []);
  assert.ok(equal({ a: [1, { b: 2 }], c: null }, { c: null, a: [1, { b: 2 }] }));
  assert.ok(!equal([1, 2], [2, 1]));
  assert.ok(changeText({ field: "command", before: null, after: "x".repeat(200) }).length < 90);
});

test("problems stand at the line of their field, or of the nearest one above it", () => {
  const text = "kind: Deployment\nname: a\nresources:\n  gpus: 1\n---\nname: b\nargs:\n  - x: 1\n  - y: 2\n";
  const parsed = parseText(text);
  assert.deepEqual(parsed.problems, []);
  assert.equal(parsed.manifests.length, 2);
  const at = (path: string): number | undefined => atLines([{ path, message: "" }], parsed)[0]?.line;
  for (const [path, line] of [
    ["name", 2],
    ["[0].resources.gpus", 4],
    ["[0].resources.nowhere", 3],
    ["[1].name", 6],
    ["[1].args[1].y", 9],
    ["[1].args[7]", 7],
    ["", 1],
  ] as const) {
    assert.equal(at(path), line, path);
  }
  assert.equal(atLines([{ path: "[1].name", message: "" }], parsed)[0]?.path, "name");
  assert.deepEqual(stepsOf("[1].args.a[0]"), [1, "args", "a", 0]);
});

test("an invalid manifest is told with its line", () => {
  assert.equal(parseText("a: [\n").problems.length > 0, true);
  assert.match(parseText("- 1\n- 2\n").problems[0]?.message ?? "", /not a manifest/);
  assert.deepEqual(parseText("").manifests, []);
  assert.deepEqual(parseText('{"kind": "Deployment", "name": "x"}').manifests, [{ kind: "Deployment", name: "x" }]);
  assert.equal(parseText("a: 1\na: 2\n").problems[0]?.line, 2);
  assert.match(parseText(`a: ${"x".repeat(2 ** 20)}`).problems[0]?.message ?? "", /1 MiB/);
  const aliases = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
  assert.deepEqual(parseText(aliases).manifests, [], "aliases are not unfolded");
});

test("GPUs are written into the first deployment, and taken out again", () => {
  const policy = { kind: "UtilizationPolicy", name: "p" };
  const one = { kind: "Deployment", name: "a", placement: { strategy: "spread" } };
  const chosen = parseText(withGpus([policy, one, { name: "b" }], ["GPU-1", "GPU-2"])).manifests;
  assert.deepEqual(chosen[0], policy);
  assert.deepEqual(chosen[1], { ...one, placement: { strategy: "spread", gpus: ["GPU-1", "GPU-2"] } });
  assert.deepEqual(chosen[2], { name: "b" });
  assert.deepEqual(parseText(withGpus(chosen, [])).manifests[1], one);
  assert.deepEqual(parseText(withGpus([{ name: "b", placement: { gpus: ["GPU-1"] } }], [])).manifests, [{ name: "b" }]);
});

test("advice becomes a change of the spec, or leads to what it names", () => {
  const spec = {
    resources: { gpus: 1, gpu_memory: "100GiB" },
    parallel: {},
    placement: { labels: { zone: "b" }, workers: ["w1"] },
  } as unknown as Deployment["spec"];
  const of = (line: string): unknown => advised(line, spec);
  assert.deepEqual(of("fits with gpu_memory <= 80GiB on 3 GPUs"), {
    spec: { ...spec, resources: { gpus: 1, gpu_memory: "80GiB" } },
  });
  assert.deepEqual(of("fits with tp: 2, pp: 1, dp: 1"), { spec: { ...spec, parallel: { tp: 2, pp: 1, dp: 1 } } });
  assert.deepEqual(of("fits on w1 without placement.labels"), {
    spec: { ...spec, placement: { labels: {}, workers: ["w1"] } },
  });
  assert.equal(of("fits on w1 without some.unknown_field"), null);
  assert.deepEqual(of("fits once w1, w2 are ready"), {
    places: ["w1", "w2"].map((text) => ({ text, href: `/ui/workers/${text}` })),
  });
  assert.equal(of("add GPUs"), null);
});

test("a line is cut at the places that it names", () => {
  const places = [
    { text: "w1", href: "/1" },
    { text: "w10", href: "/10" },
  ];
  assert.deepEqual(linked("fits once w1, w10 are ready", places), [
    "fits once ",
    places[0],
    ", ",
    places[1],
    " are ready",
  ]);
  assert.deepEqual(linked("nothing here", places), ["nothing here"]);
});
