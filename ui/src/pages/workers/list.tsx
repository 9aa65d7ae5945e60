import type { Worker } from "../../api/types";
import { count, gib } from "../../format/numbers";
import { known, workers } from "../../live/cluster";
import { Age } from "../../parts/age";
import { Empty, Panel, Skeleton } from "../../parts/panel";
import { Phase } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { Words } from "../../parts/words";

const COLUMNS: readonly Column<Worker>[] = [
  {
    key: "name",
    title: "Worker",
    cell: (one) => <a href={`/ui/workers/${one.name}`}>{one.name}</a>,
    value: (one) => one.name,
  },
  { key: "state", title: "State", cell: (one) => <Phase phase={one.status.state} />, value: (one) => one.status.state },
  {
    key: "gpus",
    title: "GPUs",
    cell: (one) => (one.status.gpus_known ? count(one.status.gpus) : "–"),
    value: (one) => (one.status.gpus_known ? (one.status.gpus ?? 0) : null),
    numeric: true,
  },
  {
    key: "instances",
    title: "Instances",
    cell: (one) => count(one.status.instances),
    value: (one) => one.status.instances ?? 0,
    numeric: true,
    rank: 2,
  },
  {
    key: "claimed",
    title: "Claimed",
    cell: (one) => gib(one.status.claimed_mib),
    value: (one) => one.status.claimed_mib ?? 0,
    numeric: true,
    rank: 2,
  },
  {
    key: "free",
    title: "Free",
    cell: (one) => gib(one.status.free_mib),
    value: (one) => one.status.free_mib ?? 0,
    numeric: true,
  },
  {
    key: "memory",
    title: "GPU memory",
    cell: (one) => gib(one.status.memory_mib),
    value: (one) => one.status.memory_mib ?? 0,
    numeric: true,
    rank: 2,
  },
  {
    key: "seen",
    title: "Last seen",
    cell: (one) => (one.status.connected ? "connected" : <Age at={one.status.last_seen} ago />),
    rank: 2,
  },
  { key: "labels", title: "Labels", cell: (one) => labelText(one.status.labels ?? {}), rank: 3 },
  {
    key: "version",
    title: "Agent",
    cell: (one) => one.status.agent_version,
    value: (one) => one.status.agent_version ?? "",
    rank: 3,
  },
];

export function labelText(labels: Record<string, string>): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(", ");
}

/** What does not hold of a worker, in the words of its conditions. */
export function troubles(worker: Worker): string[] {
  return (worker.status.conditions ?? [])
    .filter((one) => one.status === (one.type === "DiskPressure" ? "true" : "false") && one.message)
    .map((one) => one.message ?? "");
}

/** All workers. */
export function Workers() {
  useTitle("Workers");
  return (
    <>
      <div class="page-head">
        <h1>Workers</h1>
      </div>
      <Panel title="All workers">
        {known.value ? (
          <Table
            label="Workers"
            columns={COLUMNS}
            rows={workers.all}
            id={(one) => one.uid}
            sort={{ key: "name" }}
            empty={<Empty>No worker has joined yet.</Empty>}
            note={(one) =>
              one.status.state !== "ready" &&
              troubles(one).map((line) => (
                <div key={line}>
                  <Words text={line} />
                </div>
              ))
            }
          />
        ) : (
          <Skeleton rows={6} />
        )}
      </Panel>
    </>
  );
}
