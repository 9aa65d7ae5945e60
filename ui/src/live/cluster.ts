/** What the cluster has, as the live connection tells it. Pages read from here. */

import { signal } from "@preact/signals";
import type { Deployment, Instance, Worker } from "../api/types";
import { ended } from "../session/session";
import { Collection } from "./collection";
import { type LiveMessage, LiveSocket } from "./socket";

export const deployments = new Collection<Deployment>();
export const instances = new Collection<Instance>();
export const workers = new Collection<Worker>();
/** Whether the first snapshot is here. */
export const known = signal(false);
export const socket = signal<LiveSocket | null>(null);

/** Opens the connection of the session. The returned function ends it and forgets everything. */
export function connect(): () => void {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const live = new LiveSocket(`${scheme}//${location.host}/api/v1/live`, ended);
  live.open("objects", () => ({}), takeObject);
  socket.value = live;
  return () => {
    live.close();
    socket.value = null;
    known.value = false;
    deployments.replace([]);
    instances.replace([]);
    workers.replace([]);
  };
}

/** Whether what is shown is up to date. Without that, nothing can be changed. */
export function isLive(): boolean {
  return socket.value?.state.value.state === "live";
}

interface Snapshot {
  deployments: Deployment[];
  instances: Instance[];
  workers: Worker[];
}
type Changed = Deployment | Instance | Worker;

function takeObject(message: LiveMessage): void {
  if (message.type === "snapshot") {
    const all = message.object as Snapshot;
    deployments.replace(all.deployments);
    instances.replace(all.instances);
    workers.replace(all.workers);
    known.value = true;
  } else if (message.type === "changed") {
    const object = message.object as Changed;
    if (object.kind === "Deployment") deployments.put(object);
    else if (object.kind === "Instance") instances.put(object);
    else if (object.kind === "Worker") workers.put(object);
  } else if (message.type === "gone") {
    const object = message.object as { kind: string; uid: string };
    ({ Deployment: deployments, Instance: instances, Worker: workers })[object.kind]?.drop(object.uid);
  }
}
