/** The map's data: one read, then claims and states from the live objects, and rounds of figures. */

import { computed, signal } from "@preact/signals";
import { useEffect, useLayoutEffect } from "preact/hooks";
import { type Loaded, type Resource, useResource } from "../api/load";
import { type MapAnswer, type MapGpu, mapGpus } from "../map/model";
import { instances, workers } from "./cluster";
import { useLive } from "./subscribe";

const answer = signal<MapAnswer | null>(null);
const samples = signal<ReadonlyMap<string, number | null>>(new Map());

/** All GPUs by worker and index, as they are now. */
export const gpus = computed<MapGpu[]>(() =>
  answer.value ? mapGpus(answer.value, instances.all, workers.all, samples.value) : [],
);

/** How often the whole map is read again, for what the rounds do not carry: health, cordons of single GPUs. */
const REREAD_MS = 30_000;

/** Reads the map and follows it while the component is shown. */
export function useMap(): Resource<MapAnswer> {
  const resource = useResource<MapAnswer>("map", REREAD_MS);
  const loaded: Loaded<MapAnswer> = resource.loaded.value;
  // Before the paint: an empty map would be shown for a moment, and what stands below would jump.
  useLayoutEffect(() => {
    if (loaded.state === "there") {
      answer.value = loaded.value;
      samples.value = new Map();
    }
  }, [loaded]);
  const workersNow = workers.all;
  const known = workersNow.map((worker) => `${worker.name} ${worker.status.state} ${worker.generation}`).join();
  useEffect(() => {
    if (loaded.state !== "there") return;
    const timer = setTimeout(resource.reload, 500);
    return () => clearTimeout(timer);
  }, [known]);
  useLive(
    "gpus",
    "map",
    () => ({}),
    (message) => takeRound(message),
  );
  return resource;
}

/** The messages of the topic `gpus`: all GPUs in their order, then rounds of those that have changed. */
interface Round {
  type: string;
  uuid?: string[];
  index?: number[];
  utilization?: (number | null)[];
}

let order: string[] = [];

/** Takes a message. A round has the columns alone in which something has changed. */
export function takeRound(message: Round): void {
  if (message.uuid) order = message.uuid;
  const { utilization, index } = message;
  if (!utilization) return;
  const next = new Map(message.type === "gpus" ? [] : samples.value);
  utilization.forEach((value, place) => {
    const uuid = order[index?.[place] ?? place];
    if (uuid !== undefined) next.set(uuid, value);
  });
  samples.value = next;
}
