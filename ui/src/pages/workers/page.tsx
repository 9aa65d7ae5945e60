import { useLocation, useRoute } from "preact-iso";
import { request } from "../../api/request";
import type { Instance, Worker } from "../../api/types";
import { gib, plural } from "../../format/numbers";
import { instances, known, workers } from "../../live/cluster";
import { gpus, useMap } from "../../live/gpus";
import { LoadedMap } from "../../map/loaded";
import { Act } from "../../parts/act";
import { Age } from "../../parts/age";
import { Empty, Panel, Skeleton } from "../../parts/panel";
import { Phase } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { Words } from "../../parts/words";
import { Story } from "../events/story";
import { engineText } from "./engines";
import { labelText, troubles } from "./list";

/** One worker: its state and why, its GPUs, what it holds, and what may be done about it. */
export function WorkerPage() {
  const { name = "" } = useRoute().params;
  useTitle(name);
  const map = useMap();
  const worker = workers.named(name);
  if (!worker) {
    return (
      <>
        <h1>{name}</h1>
        {known.value ? (
          <Empty>
            No worker has this name. <a href="/ui/workers">All workers</a>
          </Empty>
        ) : (
          <Skeleton rows={6} />
        )}
      </>
    );
  }
  const held = instances.all.filter((one) => (one.status.workers ?? []).includes(name));
  return (
    <>
      <div class="page-head">
        <h1>{name}</h1>
        <Phase phase={worker.status.state} />
        <Controls worker={worker} held={held} />
      </div>
      {troubles(worker).map((line) => (
        <p key={line} class="warning">
          <Words text={line} />
        </p>
      ))}
      <div class="halves">
        <Panel title="GPUs">
          <LoadedMap of={map} gpus={gpus.value.filter((gpu) => gpu.worker === name)} />
        </Panel>
        <Panel title="Host">
          <Facts worker={worker} />
        </Panel>
      </div>
      <Panel title="Instances">
        <Table
          label="Instances"
          columns={HELD}
          rows={held}
          id={(one) => one.uid}
          sort={{ key: "name" }}
          empty={<Empty>No instance is placed here.</Empty>}
        />
      </Panel>
      <Story of={`worker/${name}`} empty="Nothing has happened to it yet." />
    </>
  );
}

const HELD: readonly Column<Instance>[] = [
  {
    key: "name",
    title: "Instance",
    cell: (one) => <a href={`/ui/instances/${one.name}`}>{one.name}</a>,
    value: (one) => one.name,
  },
  {
    key: "deployment",
    title: "Deployment",
    cell: (one) => <a href={`/ui/deployments/${one.spec.deployment}`}>{one.spec.deployment}</a>,
    value: (one) => one.spec.deployment,
  },
  { key: "phase", title: "Phase", cell: (one) => <Phase phase={one.status.phase} />, value: (one) => one.status.phase },
  { key: "claimed", title: "Claimed here", cell: (one) => gib(claimedOn(one)), numeric: true, rank: 2 },
  { key: "age", title: "Age", cell: (one) => <Age at={one.created_at} />, numeric: true },
];

function claimedOn(instance: Instance): number {
  return (instance.status.claims ?? [])
    .filter((claim) => claim.kind !== "host")
    .reduce((sum, claim) => sum + claim.memory_mib, 0);
}

function Facts({ worker }: { worker: Worker }) {
  const { status } = worker;
  const facts: [string, string][] = [
    ["Host name", status.hostname || "–"],
    ["System", [status.os, status.arch].filter(Boolean).join(", ") || "–"],
    ["GPU driver", status.driver ?? "–"],
    ["Agent", `${status.agent_version || "–"}${status.simulated ? ", simulated GPUs" : ""}`],
    ["Engines", engineText(status.engines)],
    ["GPU memory", `${gib(status.free_mib)} free of ${gib(status.memory_mib)}`],
    ["Host memory", `${gib(status.free_host_memory_mib)} free of ${gib(status.host_memory_mib)}`],
    ["CPUs", `${(status.free_cpu_milli ?? 0) / 1000} free of ${(status.cpu_milli ?? 0) / 1000}`],
    ["Labels", labelText(status.labels ?? {}) || "–"],
  ];
  return (
    <dl class="facts">
      {facts.map(([title, value]) => [<dt key={title}>{title}</dt>, <dd key={`${title} value`}>{value}</dd>])}
      <dt>Last seen</dt>
      <dd>{status.connected ? "connected" : <Age at={status.last_seen} ago />}</dd>
      <dt>Joined</dt>
      <dd>
        <Age at={worker.created_at} ago />
      </dd>
    </dl>
  );
}

function Controls({ worker, held }: { worker: Worker; held: readonly Instance[] }) {
  const { route } = useLocation();
  const path = `workers/${encodeURIComponent(worker.name)}`;
  const post = (verb: string) => async (): Promise<void> => {
    await request(`${path}/${verb}`, { method: "POST" });
  };
  const ends = held.length
    ? `${plural(held.length, "instance")} on it stop, and are placed elsewhere where they fit.`
    : "No instance is on it.";
  return (
    <div class="actions">
      {worker.spec.cordoned || worker.spec.draining ? (
        <Act right="operate" onAct={post("uncordon")}>
          Uncordon
        </Act>
      ) : (
        <Act right="operate" onAct={post("cordon")}>
          Cordon
        </Act>
      )}
      {!worker.spec.draining && (
        <Act
          right="operate"
          onAct={post("drain")}
          confirm={() => ({
            title: `Drain ${worker.name}?`,
            lines: ["Nothing new is placed on it.", ends],
            verb: "Drain",
          })}
        >
          Drain
        </Act>
      )}
      <Act
        right="administer"
        tone="danger"
        onAct={async () => {
          await request(path, { method: "DELETE" });
          route("/ui/workers");
        }}
        confirm={() => ({
          title: `Delete worker ${worker.name}?`,
          lines: [ends, "Its agent must join again with a new token."],
          typed: worker.name,
          verb: "Delete worker",
        })}
      >
        Delete worker
      </Act>
    </div>
  );
}
