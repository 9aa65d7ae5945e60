import { useSignal } from "@preact/signals";
import type { Deployment } from "../../api/types";
import { count, plural } from "../../format/numbers";
import { modelText, replicasText, whyDeployment } from "../../format/objects";
import { deployments, instances, known } from "../../live/cluster";
import { Age } from "../../parts/age";
import { Empty, Panel, Skeleton } from "../../parts/panel";
import { Phase } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { may } from "../../session/session";

/** All deployments. */
export function Deployments() {
  useTitle("Deployments");
  const wanted = useSignal("");
  const words = wanted.value.toLowerCase().split(/\s+/);
  const rows = deployments.all.filter((one) => {
    const text = `${one.name} ${modelText(one)} ${one.spec.engine} ${one.status.phase}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return (
    <>
      <div class="page-head">
        <h1>Deployments</h1>
        {may("operate") && (
          <div class="actions">
            <a class="button primary" href="/ui/apply">
              Apply a manifest
            </a>
          </div>
        )}
      </div>
      {!known.value ? (
        <Skeleton rows={8} />
      ) : deployments.all.length ? (
        <Panel
          title={
            rows.length === deployments.all.length ? plural(rows.length, "deployment") : `${count(rows.length)} shown`
          }
          actions={
            <label class="filter">
              Filter
              <input
                type="search"
                value={wanted.value}
                onInput={(event) => (wanted.value = event.currentTarget.value)}
                placeholder="name, model, engine or phase"
              />
            </label>
          }
        >
          <List rows={rows} />
        </Panel>
      ) : (
        <Empty>Nothing is deployed. {may("operate") && <a href="/ui/apply">Apply a manifest</a>}</Empty>
      )}
    </>
  );
}

function List({ rows }: { rows: readonly Deployment[] }) {
  const held = new Map<string, number>();
  for (const { spec, status } of instances.all)
    held.set(spec.deployment_uid, (held.get(spec.deployment_uid) ?? 0) + status.gpus.length);
  return (
    <Table
      label="Deployments"
      columns={columns(held)}
      rows={rows}
      id={(one) => one.uid}
      sort={{ key: "name" }}
      note={(one) => (isWell(one) ? null : whyDeployment(one) || null)}
      empty={<Empty>No deployment has these words.</Empty>}
    />
  );
}

function isWell({ status }: Deployment): boolean {
  return status.phase === "running" || status.phase === "succeeded";
}

function columns(held: ReadonlyMap<string, number>): Column<Deployment>[] {
  return [
    {
      key: "name",
      title: "Name",
      cell: (one) => <a href={`/ui/deployments/${one.name}`}>{one.name}</a>,
      value: (one) => one.name,
    },
    {
      key: "phase",
      title: "Phase",
      cell: ({ status }) => <Phase phase={status.phase} />,
      value: ({ status }) => status.phase,
    },
    {
      key: "ready",
      title: "Ready",
      cell: ({ status }) => `${count(status.ready)} of ${count(status.wanted)}`,
      value: ({ status }) => status.ready,
      numeric: true,
    },
    {
      key: "replicas",
      title: "Replicas",
      cell: ({ spec }) => replicasText(spec.replicas),
      value: ({ spec }) => (typeof spec.replicas === "number" ? spec.replicas : spec.replicas.max),
      numeric: true,
      rank: 3,
    },
    {
      key: "model",
      title: "Model",
      cell: (one) => (
        <span class="clipped" title={modelText(one)}>
          {modelText(one) || "–"}
        </span>
      ),
      value: modelText,
      rank: 2,
    },
    { key: "engine", title: "Engine", cell: ({ spec }) => spec.engine, value: ({ spec }) => spec.engine, rank: 3 },
    {
      key: "priority",
      title: "Priority",
      cell: ({ spec }) => count(spec.priority),
      value: ({ spec }) => spec.priority,
      numeric: true,
      rank: 3,
    },
    {
      key: "gpus",
      title: "GPUs held",
      cell: (one) => count(held.get(one.uid) ?? 0),
      value: (one) => held.get(one.uid) ?? 0,
      numeric: true,
      rank: 2,
    },
    {
      key: "age",
      title: "Age",
      cell: (one) => <Age at={one.created_at} />,
      value: (one) => -Date.parse(one.created_at),
      numeric: true,
    },
  ];
}
