import assert from "node:assert/strict";
import { test } from "node:test";
import type { Instance, Worker } from "../src/api/types";
import { changes, DARK, draw, LIGHT } from "../src/map/draw";
import { around, groups, hit, keptLayout, layOut, otherWorker } from "../src/map/layout";
import { describe, isBlocked, type MapAnswer, type MapGpu, mapGpus, ordered, ownerOf, STATES } from "../src/map/model";

function gpu(worker: string, index: number, more: Partial<MapGpu> = {}): MapGpu {
  return {
    uuid: `GPU-${worker}-${index}`,
    worker,
    index,
    model: "NVIDIA A100",
    totalMib: 81920,
    claimedMib: 0,
    holders: [],
    instances: 0,
    exclusive: false,
    utilization: 0,
    state: "free",
    message: "",
    since: null,
    ...more,
  };
}

const cluster = (...sizes: number[]): MapGpu[] =>
  sizes.flatMap((size, worker) => Array.from({ length: size }, (_, index) => gpu(`w${worker}`, index)));

test("a map of any size lies within its width, and no two cells overlap", () => {
  for (const sizes of [[1], [4, 4, 4], [8, 2, 1, 8, 3], Array.from({ length: 1000 }, () => 8)]) {
    for (const width of [320, 700, 1400]) {
      const { cells, height } = layOut(sizes, width, 420);
      assert.equal(
        cells.length,
        sizes.reduce((sum, size) => sum + size, 0),
      );
      const taken = new Set<string>();
      for (const { x, y, size } of cells) {
        assert.ok(x >= 0 && x + size <= width && y >= 0 && y + size <= height);
        const corner = `${x} ${y}`;
        assert.ok(!taken.has(corner));
        taken.add(corner);
      }
    }
  }
});

test("cells are as large as the height allows", () => {
  const small = layOut([4, 4], 1000, 420);
  const large = layOut(
    Array.from({ length: 1000 }, () => 8),
    1000,
    420,
  );
  assert.ok((small.cells[0]?.size ?? 0) > (large.cells[0]?.size ?? 0));
  assert.ok(large.height <= 420);
  assert.equal(
    layOut(
      Array.from({ length: 20_000 }, () => 8),
      320,
      420,
    ).cells[0]?.size,
    2,
    "then it grows downward",
  );
});

test("a map is laid out anew for other sizes alone", () => {
  const keeping = keptLayout();
  const gpus = cluster(8, 8, 4);
  const first = keeping(groups(gpus), 700, 420);
  assert.deepEqual(first, layOut([8, 8, 4], 700, 420));
  const lost = gpus.map((one) => ({ ...one, state: "lost" as const, utilization: null }));
  assert.equal(keeping(groups(lost), 700, 420), first, "other states, the same layout");
  for (const [sizes, width, maxHeight] of [
    [[8, 4, 8], 700, 420],
    [[8, 8], 700, 420],
    [[8, 8, 4], 300, 420],
    [[8, 8, 4], 700, 20],
  ] as const) {
    keeping(groups(gpus), 700, 420);
    const other = keeping(sizes, width, maxHeight);
    assert.deepEqual(other, layOut(sizes, width, maxHeight));
    assert.equal(keeping(sizes, width, maxHeight), other);
  }
});

test("a point is in the cell that is drawn there", () => {
  const layout = layOut([4, 8], 700, 420);
  layout.cells.forEach((cell, index) => assert.equal(hit(layout, cell.x + 1, cell.y + 1), index));
  assert.equal(hit(layout, 699, 1), -1);
});

test("moves by worker lead to its first GPU and stay at the ends", () => {
  const gpus = cluster(4, 2, 3);
  assert.deepEqual(groups(gpus), [4, 2, 3]);
  assert.equal(otherWorker(gpus, 2, 1), 4);
  assert.equal(otherWorker(gpus, 5, -1), 0);
  assert.equal(otherWorker(gpus, 8, -1), 4);
  assert.equal(otherWorker(gpus, 7, 1), 7);
  assert.equal(otherWorker(gpus, 0, -1), 0);
});

test("each state is drawn otherwise than each other, in both themes", () => {
  const layout = layOut([1], 100, 100);
  for (const colours of [LIGHT, DARK]) {
    const seen = new Map<string, string>();
    for (const state of STATES) {
      const held = state === "held" ? { claimedMib: 40960, utilization: 50 } : {};
      const buffer = new Uint32Array(layout.width * layout.height);
      draw(buffer, layout, [gpu("w", 0, { state, ...held })], "utilization", colours);
      const picture = buffer.join();
      assert.equal(seen.get(picture), undefined, `${state} looks like ${seen.get(picture) ?? ""}`);
      seen.set(picture, state);
    }
  }
});

test("what is drawn again alone is what a full draw draws", () => {
  const before = cluster(4, 4);
  const after = before.map((one, n) => (n % 3 ? one : { ...one, state: "lost" as const }));
  const layout = layOut(groups(before), 300, 200);
  const [part, full] = [0, 1].map(() => new Uint32Array(layout.width * layout.height)) as [Uint32Array, Uint32Array];
  draw(part, layout, before, "memory", LIGHT);
  const changed = changes(before, after);
  assert.deepEqual(changed, [0, 3, 6]);
  draw(part, layout, after, "memory", LIGHT, changed);
  draw(full, layout, after, "memory", LIGHT);
  assert.deepEqual(part, full);
});

test("a GPU has changed where it looks different, whichever GPU it is", () => {
  const [one] = cluster(1) as [MapGpu];
  for (const more of [{ utilization: 1 }, { claimedMib: 1 }, { totalMib: 1 }, { state: "lost" }] as const)
    assert.deepEqual(changes([one, one], [one, { ...one, ...more }]), [1]);
  assert.deepEqual(changes([one], [{ ...one, uuid: "other", message: "new" }]), []);
  assert.deepEqual(changes([], [one, one]), [0, 1]);
});

test("the area around cells has all of them and ends at their edges", () => {
  const layout = layOut([4, 8], 700, 420);
  assert.deepEqual(around(layout, [1]), { x: 25, y: 0, width: 24, height: 24 });
  assert.deepEqual(around(layout, [1, 3]), { x: 25, y: 0, width: 74, height: 24 });
  const { x, y, width, height } = around(layout, layout.cells.keys());
  assert.deepEqual([x, y, width, height], [0, 0, 99 + 19 + 99, layout.height]);
});

const ANSWER: MapAnswer = {
  at: "2026-11-24T05:00:00Z",
  models: ["A100"],
  workers: {
    name: ["w1", "w2"],
    state: ["ready", "ready"],
    message: [null, null],
    since: [null, null],
    labels: [{}, {}],
  },
  gpus: {
    worker: [0, 0, 1],
    index: [0, 1, 0],
    uuid: ["a", "b", "c"],
    model: [0, 0, 0],
    memory_total_bytes: [80 * 2 ** 30, 80 * 2 ** 30, 80 * 2 ** 30],
    memory_claimed_bytes: [0, 0, 0],
    utilization: [10, null, 30],
    state: ["ok", "ok", "ok"],
    message: [null, null, null],
    holder: [null, null, null],
    holders: [0, 0, 0],
    exclusive: [false, false, false],
  },
};

function holding(name: string, deployment: string, device: string, memory_mib: number): Instance {
  const claims = [{ kind: "gpu", device, memory_mib, exclusive: false }];
  return { name, spec: { deployment }, status: { claims } } as unknown as Instance;
}

test("claims and states are the live ones, samples the newest", () => {
  const instances = [holding("x-1", "x", "a", 1024), holding("x-2", "x", "a", 512), holding("y-1", "y", "a", 512)];
  const workers = [{ name: "w2", status: { state: "lost" } }] as unknown as Worker[];
  const [a, b, c] = mapGpus(ANSWER, instances, workers, new Map([["a", null]]));
  assert.deepEqual([a?.claimedMib, a?.instances, a?.holders, a?.utilization], [2048, 3, ["x", "y"], null]);
  assert.deepEqual([a?.state, b?.state, c?.state], ["no_sample", "no_sample", "lost"]);
  assert.equal(a && ownerOf(a), "3 holders");
  assert.equal(b && ownerOf(b), "free");
  assert.match(b ? describe(b) : "", /no sample of its utilization/);
  assert.throws(() => mapGpus({ ...ANSWER, models: [] }, [], [], new Map()), RangeError);
});

test("problems lead, the worst first, and a worker's GPUs stay together", () => {
  const gpus = [gpu("a", 0), gpu("b", 0), gpu("b", 1, { state: "cordoned" }), gpu("c", 0, { state: "lost" })];
  assert.deepEqual(
    ordered(gpus, "problems").map((one) => `${one.worker}${one.index}`),
    ["c0", "b0", "b1", "a0"],
  );
  assert.equal(ordered(gpus, "worker"), gpus);
  assert.deepEqual(
    STATES.filter((state) => !isBlocked(state)),
    ["no_sample", "held", "free"],
  );
});
