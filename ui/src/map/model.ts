/** The map's GPUs as one list of columns: what `GET /map` said, with the claims and states that are live. */

import type { Instance, Worker } from "../api/types";
import { compareNames } from "../live/collection";

/** The answer of `GET /map`: entry `i` of each column is of worker or GPU `i`. */
export interface MapAnswer {
  at: string;
  models: string[];
  workers: {
    name: string[];
    state: string[];
    message: (string | null)[];
    since: (string | null)[];
    labels: Record<string, string>[];
  };
  gpus: {
    worker: number[];
    index: number[];
    uuid: string[];
    model: number[];
    memory_total_bytes: number[];
    memory_claimed_bytes: number[];
    utilization: (number | null)[];
    state: string[];
    message: (string | null)[];
    holder: (string | null)[];
    holders: number[];
    exclusive: boolean[];
  };
}

/** One GPU of the map. Sizes are in MiB. */
export interface MapGpu {
  uuid: string;
  worker: string;
  index: number;
  model: string;
  totalMib: number;
  claimedMib: number;
  /** Deployments that hold it, by name. */
  holders: string[];
  /** Number of instances that hold it. */
  instances: number;
  exclusive: boolean;
  utilization: number | null;
  state: GpuState;
  message: string;
  since: string | null;
}

/** The gravest that holds of a GPU and its worker; `held` and `free` are the healthy ones. */
export type GpuState =
  | "lost"
  | "unreachable"
  | "unhealthy"
  | "absent"
  | "quarantined"
  | "joining"
  | "draining"
  | "drained"
  | "cordoned"
  | "mig_mode"
  | "no_sample"
  | "held"
  | "free";

const MIB = 2 ** 20;

/** Worst first. */
export const STATES: readonly GpuState[] = [
  "lost",
  "unhealthy",
  "unreachable",
  "absent",
  "quarantined",
  "joining",
  "draining",
  "drained",
  "cordoned",
  "mig_mode",
  "no_sample",
  "held",
  "free",
];

/** A state in words. */
export function stateWord(state: GpuState): string {
  const words: Partial<Record<GpuState, string>> = {
    no_sample: "no sample",
    mig_mode: "in MIG mode",
    lost: "worker lost",
    unreachable: "worker unreachable",
  };
  return words[state] ?? state;
}

/** Whether nothing new can be placed on it. */
export function isBlocked(state: GpuState): boolean {
  return !["held", "free", "no_sample"].includes(state);
}

interface Holding {
  mib: number;
  deployments: Set<string>;
  instances: Set<string>;
  exclusive: boolean;
}

/** The claims on each GPU, by its UUID. */
function holdings(instances: readonly Instance[]): Map<string, Holding> {
  const found = new Map<string, Holding>();
  for (const instance of instances) {
    for (const claim of instance.status.claims ?? []) {
      if (claim.kind === "host") continue;
      let held = found.get(claim.device);
      if (!held) {
        held = { mib: 0, deployments: new Set(), instances: new Set(), exclusive: false };
        found.set(claim.device, held);
      }
      held.mib += claim.memory_mib;
      held.deployments.add(instance.spec.deployment);
      held.instances.add(instance.name);
      held.exclusive ||= claim.exclusive;
    }
  }
  return found;
}

/** The utilization of GPUs by UUID, where it is newer than the map's. */
export type Samples = ReadonlyMap<string, number | null>;

/** All GPUs by worker and index. */
export function mapGpus(
  answer: MapAnswer,
  instances: readonly Instance[],
  workers: readonly Worker[],
  samples: Samples,
): MapGpu[] {
  const held = holdings(instances);
  const workerByName = new Map(workers.map((worker) => [worker.name, worker]));
  const { gpus } = answer;
  return gpus.uuid.map((uuid, i) => {
    const number = at(gpus.worker, i);
    const worker = at(answer.workers.name, number);
    const live = workerByName.get(worker);
    const workerState = live?.status.state ?? at(answer.workers.state, number);
    const holding = held.get(uuid);
    const sampled = samples.get(uuid);
    const utilization = sampled === undefined ? at(gpus.utilization, i) : sampled;
    const state = gpuState(workerState, at(gpus.state, i), utilization, holding !== undefined);
    return {
      uuid,
      worker,
      index: at(gpus.index, i),
      model: at(answer.models, at(gpus.model, i)),
      totalMib: at(gpus.memory_total_bytes, i) / MIB,
      claimedMib: holding?.mib ?? 0,
      holders: holding ? [...holding.deployments].sort(compareNames) : [],
      instances: holding?.instances.size ?? 0,
      exclusive: holding?.exclusive ?? false,
      utilization,
      state,
      message: workerState === "ready" ? (at(gpus.message, i) ?? "") : (at(answer.workers.message, number) ?? ""),
      since: workerState === "ready" ? null : at(answer.workers.since, number),
    };
  });
}

function gpuState(worker: string, gpu: string, utilization: number | null, held: boolean): GpuState {
  if (worker === "lost" || worker === "unreachable") return worker;
  if (gpu === "unhealthy" || gpu === "absent" || gpu === "mig_mode") return gpu;
  if (worker !== "ready") return (STATES as readonly string[]).includes(worker) ? (worker as GpuState) : "joining";
  if (gpu === "cordoned") return "cordoned";
  if (utilization === null) return "no_sample";
  return held ? "held" : "free";
}

function at<T>(column: readonly T[], index: number): T {
  const value = column[index];
  if (value === undefined) throw new RangeError(`a column of the map is shorter than ${index + 1}`);
  return value;
}

/** The order of the map: as given, or the workers with the gravest state first. */
export function ordered(gpus: readonly MapGpu[], order: "worker" | "problems"): readonly MapGpu[] {
  if (order === "worker") return gpus;
  const worst = new Map<string, number>();
  for (const gpu of gpus) {
    worst.set(gpu.worker, Math.min(worst.get(gpu.worker) ?? STATES.length, STATES.indexOf(gpu.state)));
  }
  return [...gpus].sort((a, b) => (worst.get(a.worker) ?? 0) - (worst.get(b.worker) ?? 0));
}

/** One GPU in a sentence, for the line below the map and for screen readers. */
export function describe(gpu: MapGpu): string {
  const claimed = `${gibText(gpu.claimedMib)} of ${gibText(gpu.totalMib)} GiB claimed by ${gpu.holders.length ? gpu.holders.join(", ") : "nothing"}`;
  const used =
    gpu.utilization === null ? "no sample of its utilization" : `${Math.round(gpu.utilization)} % utilization`;
  const state =
    gpu.state === "held" || gpu.state === "free" || gpu.state === "no_sample" ? "" : `; ${stateWord(gpu.state)}`;
  return `${gpu.worker} GPU ${gpu.index}: ${claimed}; ${used}${state}${gpu.message ? ` (${gpu.message})` : ""}`;
}

/** What stands in a cell: the owner, "free", or how many hold it. */
export function ownerOf(gpu: MapGpu): string {
  if (!gpu.instances) return "free";
  return gpu.holders.length === 1 ? (gpu.holders[0] ?? "") : `${gpu.instances} holders`;
}

function gibText(mib: number): string {
  return (Math.round((mib / 1024) * 10) / 10).toLocaleString("en-US");
}
