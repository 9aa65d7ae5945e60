import { useRoute } from "preact-iso";
import { useResource } from "../../api/load";
import { request } from "../../api/request";
import type { Gpu } from "../../api/types";
import { gib, percent, shortGpu } from "../../format/numbers";
import { UtilizationPanel } from "../../graph/utilization";
import { gpus, useMap } from "../../live/gpus";
import { describe } from "../../map/model";
import { Act } from "../../parts/act";
import { Content, Empty, Panel } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { Story } from "../events/story";

type Claim = NonNullable<Gpu["status"]["claims"]>[number];
const CLAIMS: readonly Column<Claim>[] = [
  { key: "instance", title: "Instance", cell: (one) => <a href={`/ui/instances/${one.instance}`}>{one.instance}</a> },
  {
    key: "deployment",
    title: "Deployment",
    cell: (one) => <a href={`/ui/deployments/${one.deployment}`}>{one.deployment}</a>,
  },
  {
    key: "memory",
    title: "Claimed",
    cell: (one) => gib(one.memory_mib),
    value: (one) => one.memory_mib,
    numeric: true,
  },
  { key: "exclusive", title: "Whole GPU", cell: (one) => (one.exclusive ? "yes" : "no"), rank: 2 },
];
const REREAD_MS = 3000;

/** One GPU: its figures, its health, and what holds it. */
export function GpuPage() {
  const { uuid = "" } = useRoute().params;
  useMap();
  const read = useResource<Gpu>(`gpus/${encodeURIComponent(uuid)}`, REREAD_MS);
  const live = gpus.value.find((gpu) => gpu.uuid === uuid);
  const title = live ? `${live.worker} GPU ${live.index}` : shortGpu(uuid);
  useTitle(title);
  return (
    <>
      <div class="page-head">
        <h1>{title}</h1>
        {read.loaded.value.state === "there" && <Cordon gpu={read.loaded.value.value} after={read.reload} />}
      </div>
      {live && <p>{describe(live)}</p>}
      <Content
        of={read}
        missing={
          <p>
            No GPU has this UUID. <a href="/ui/">All GPUs</a>
          </p>
        }
      >
        {(gpu) => (
          <div class="halves">
            <Panel title="Claims">
              <Table
                label="Claims"
                columns={CLAIMS}
                rows={gpu.status.claims ?? []}
                id={(one) => one.instance}
                empty={<Empty>Nothing holds it.</Empty>}
              />
            </Panel>
            <Panel title="Facts">
              <Facts gpu={gpu} />
            </Panel>
          </div>
        )}
      </Content>
      <UtilizationPanel of={`gpus=${encodeURIComponent(uuid)}`} empty="It has no samples." />
      <Story of={`gpu:${uuid}`} empty="Nothing has happened to it yet." />
    </>
  );
}

function Facts({ gpu }: { gpu: Gpu }) {
  const { status } = gpu;
  const facts: [string, string][] = [
    ["Model", status.model],
    ["Memory", gib(status.memory_mib)],
    ["Claimed", gib(status.claimed_mib)],
    ["Free", gib(status.free_mib)],
    ["Reserved by the operator", gib(status.reserved_mib)],
    ["Used without a claim", gib(status.foreign_mib)],
    ["Used", gib(status.used_mib)],
    ["Utilization", percent(status.utilization)],
    ["Health", status.health_reason ? `${status.health}: ${status.health_reason}` : status.health],
    ["Compute capability", status.compute_capability ?? "–"],
    ["MIG slice of", status.parent ?? "–"],
    ["UUID", gpu.name],
  ];
  return (
    <dl class="facts">
      <dt>Worker</dt>
      <dd>
        <a href={`/ui/workers/${status.worker}`}>{status.worker}</a>
      </dd>
      {facts.map(([title, value]) => [<dt key={title}>{title}</dt>, <dd key={`${title} value`}>{value}</dd>])}
    </dl>
  );
}

function Cordon({ gpu, after }: { gpu: Gpu; after: () => void }) {
  const verb = gpu.spec.cordoned ? "uncordon" : "cordon";
  return (
    <Act
      right="operate"
      onAct={async () => {
        await request(`gpus/${encodeURIComponent(gpu.name)}/${verb}`, { method: "POST" });
        after();
      }}
    >
      {gpu.spec.cordoned ? "Uncordon" : "Cordon"}
    </Act>
  );
}
