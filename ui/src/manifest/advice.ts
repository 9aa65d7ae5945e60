/** The lines of advice of the API as what they change: a spec, or something that is mended elsewhere. Pure. */

import type { Deployment } from "../api/types";

type Spec = Deployment["spec"];
/** An object that a line names: its name in the line, and its page. */
export interface Place {
  text: string;
  href: string;
}
/** What a line advises: another spec, objects to look at, or what this page does not know. */
export type Advised = { spec: Spec } | { places: Place[] } | null;

const SIZED = /^fits with (gpu_memory|host_memory)(?: <=|:) (\S+)/;
const NUMBERED = /^fits with (cpus|max_workers)(?: <=|:) (\d+(?:\.\d+)?)/;
const DEGREES = /^fits with tp: (\d+), pp: (\d+), dp: (\d+)$/;
const WITHOUT = /^fits on .+ without ([\w., ]+)$/;
const UNCORDON = /gpuward uncordon ([^\s;]+)(?: --gpu ([^\s;]+))?/g;
const READY = /^fits once (.+) (?:is|are) ready$/;
const ENDED = /^fits once (.+) (?:has|have) ended on /;

/** Fields without a choice: what the scheduler tried where it says "without". */
const FREE: Readonly<Record<string, unknown>> = {
  "placement.workers": [],
  "placement.gpus": [],
  "placement.labels": {},
  "placement.all_of": false,
  "resources.gpu_models": [],
  "resources.min_gpu_memory": "none",
  "resources.compute_capability": "none",
};

/** What a line advises for a deployment with this spec. */
export function advised(line: string, spec: Spec): Advised {
  const [, sized, size] = SIZED.exec(line) ?? [];
  if (sized) return { spec: changed(spec, `resources.${sized}`, size) };
  const [, numbered, number] = NUMBERED.exec(line) ?? [];
  if (numbered) return { spec: changed(spec, `resources.${numbered}`, Number(number)) };
  const degrees = DEGREES.exec(line);
  if (degrees) {
    const [tp, pp, dp] = degrees.slice(1).map(Number);
    return { spec: { ...spec, parallel: { ...spec.parallel, tp, pp, dp } as Spec["parallel"] } };
  }
  const without = WITHOUT.exec(line)?.[1]?.split(", ");
  if (without?.every((field) => field in FREE))
    return { spec: without.reduce((found, field) => changed(found, field, FREE[field]), spec) };
  return placesOf(line);
}

function placesOf(line: string): Advised {
  const cordoned = [...line.matchAll(UNCORDON)];
  if (cordoned.length)
    return {
      places: cordoned.map(([, worker = "", gpu]) =>
        gpu ? { text: gpu, href: `/ui/gpus/${encodeURIComponent(gpu)}` } : at("workers", worker),
      ),
    };
  const ready = READY.exec(line)?.[1];
  if (ready) return { places: ready.split(", ").map((name) => at("workers", name)) };
  const ended = ENDED.exec(line)?.[1];
  if (ended) return { places: ended.split(", ").map((name) => at("instances", name)) };
  return null;
}

function at(page: "workers" | "instances", name: string): Place {
  return { text: name, href: `/ui/${page}/${encodeURIComponent(name)}` };
}

function changed(spec: Spec, path: string, value: unknown): Spec {
  const [part = "", field = ""] = path.split(".");
  const before = (spec as Record<string, unknown>)[part] as Record<string, unknown>;
  return { ...spec, [part]: { ...before, [field]: value } };
}

/** A line in parts, of which those that name a place are linked. */
export function linked(line: string, places: readonly Place[]): (string | Place)[] {
  const parts: (string | Place)[] = [];
  let from = 0;
  for (const place of places) {
    const at = line.indexOf(` ${place.text}`, from) + 1;
    if (at === 0) continue;
    parts.push(line.slice(from, at), place);
    from = at + place.text.length;
  }
  return [...parts, line.slice(from)];
}
