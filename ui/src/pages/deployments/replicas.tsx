import type { ComponentChildren } from "preact";
import type { Instance } from "../../api/types";
import { count, shortGpu } from "../../format/numbers";
import { whyInstance } from "../../format/objects";
import { Acts } from "../../parts/acts";
import { Age, Until } from "../../parts/age";
import { Empty, Panel } from "../../parts/panel";
import { Phase } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";

/** The instances of a deployment. */
export function Replicas({ instances, actions }: { instances: readonly Instance[]; actions: ComponentChildren }) {
  return (
    <Panel title="Replicas" actions={actions}>
      <Table
        label="Replicas"
        columns={COLUMNS}
        rows={instances}
        id={(one) => one.uid}
        note={(one) => (one.status.phase === "running" ? null : whyInstance(one) || null)}
        empty={<Empty>No replica is there.</Empty>}
      />
    </Panel>
  );
}

const COLUMNS: readonly Column<Instance>[] = [
  {
    key: "name",
    title: "Instance",
    cell: (one) => <a href={`/ui/instances/${one.name}`}>{one.name}</a>,
    value: (one) => one.name,
  },
  {
    key: "phase",
    title: "Phase",
    cell: ({ status }) => (
      <>
        <Phase phase={status.phase} />
        {status.not_before && status.phase === "backoff" && (
          <span class="muted">
            {" "}
            <Until at={status.not_before} over="starting" />
          </span>
        )}
      </>
    ),
    value: ({ status }) => status.phase,
  },
  {
    key: "since",
    title: "Since",
    cell: ({ status }) => <Age at={status.phase_since} />,
    value: ({ status }) => -Date.parse(status.phase_since),
    numeric: true,
    rank: 2,
  },
  {
    key: "worker",
    title: "Worker",
    cell: ({ status }) =>
      workersOf(status).length
        ? workersOf(status).map((name) => (
            <a key={name} class="listed" href={`/ui/workers/${name}`}>
              {name}
            </a>
          ))
        : "–",
    value: ({ status }) => workersOf(status).join() || null,
  },
  {
    key: "gpus",
    title: "GPUs",
    cell: ({ status }) =>
      status.gpus.length
        ? status.gpus.map((uuid) => (
            <a key={uuid} class="listed mono" href={`/ui/gpus/${uuid}`}>
              {shortGpu(uuid)}
            </a>
          ))
        : "–",
    value: ({ status }) => status.gpus.length,
    rank: 3,
  },
  {
    key: "verdict",
    title: "Verdict",
    cell: ({ status }) => <Verdict status={status} />,
    value: ({ status }) => status.utilization?.verdict ?? null,
    rank: 2,
  },
  {
    key: "restarts",
    title: "Restarts",
    cell: ({ status }) => count(status.restarts),
    value: ({ status }) => status.restarts,
    numeric: true,
    rank: 3,
  },
  {
    key: "revision",
    title: "Revision",
    cell: ({ spec }) => count(spec.revision),
    value: ({ spec }) => spec.revision,
    numeric: true,
    rank: 3,
  },
  {
    key: "age",
    title: "Age",
    cell: (one) => <Age at={one.created_at} />,
    value: (one) => -Date.parse(one.created_at),
    numeric: true,
    rank: 2,
  },
];

function workersOf(status: Instance["status"]): string[] {
  return status.workers.length ? status.workers : status.worker ? [status.worker] : [];
}

function Verdict({ status }: { status: Instance["status"] }) {
  const found = status.utilization;
  if (!found) return <span class="muted">–</span>;
  return (
    <>
      {found.verdict}
      {found.low_since && (
        <span class="muted">
          {" "}
          for <Age at={found.low_since} />
        </span>
      )}{" "}
      <Acts status={status} />
    </>
  );
}
