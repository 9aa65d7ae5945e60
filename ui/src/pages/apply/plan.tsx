import type { Plan, PlanItem } from "../../api/types";
import { gib } from "../../format/numbers";
import { gpus } from "../../live/gpus";
import { FieldChanges } from "../../parts/changes";
import { Empty } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";
import { Words } from "../../parts/words";

/** What an apply of this text would do. Nothing is done yet. */
export function PlanShown({ plan }: { plan: Plan }) {
  const policies = Object.entries(plan.policy_changes ?? {});
  return (
    <div class="plan">
      {(plan.warnings ?? []).map((line) => (
        <p key={line} class="warning">
          <Words text={line} />
        </p>
      ))}
      {policies.map(([name, change]) => (
        <p key={name}>
          Policy <strong>{name}</strong>: {change}
        </p>
      ))}
      {Object.entries(plan.changes ?? {}).map(([name, change]) => (
        <section key={name} aria-label={`Deployment ${name}`}>
          <h3>
            {name}: {change}
          </h3>
          <FieldChanges changes={plan.field_changes?.[name] ?? []} replaces={plan.replaces?.[name] ?? 0} />
          {plan.rollouts?.[name] && <p>{plan.rollouts[name]}</p>}
        </section>
      ))}
      <Items items={plan.items} />
      <Advice items={plan.items} />
    </div>
  );
}

/** The places of GPUs in words: w1 GPU 1, 2. */
function placesOf(item: PlanItem): string {
  const byWorker = new Map<string, number[]>();
  for (const uuid of item.gpus ?? []) {
    const gpu = gpus.value.find((one) => one.uuid === uuid);
    const worker = gpu?.worker ?? item.worker ?? "";
    byWorker.set(worker, [...(byWorker.get(worker) ?? []), ...(gpu ? [gpu.index] : [])]);
  }
  if (!byWorker.size) return item.worker ?? "–";
  return [...byWorker].map(([worker, indices]) => `${worker} GPU ${indices.join(", ")}`).join("; ");
}

const COLUMNS: readonly Column<PlanItem>[] = [
  { key: "instance", title: "Instance", cell: (item) => `${item.deployment}#${item.instance}` },
  { key: "goes", title: "Goes to", cell: (item) => (item.fits ? placesOf(item) : <strong>stays pending</strong>) },
  { key: "size", title: "Per GPU", cell: (item) => gib(item.memory_mib_per_gpu), numeric: true },
  {
    key: "preempts",
    title: "Preempts",
    cell: (item) => (item.preempts?.length ? item.preempts.join(", ") : "nothing"),
  },
];

function Items({ items }: { items: readonly PlanItem[] }) {
  if (!items.length) return <Empty>No instance would start.</Empty>;
  return (
    <Table
      label="Planned instances"
      columns={COLUMNS}
      rows={items}
      id={(item) => `${item.deployment}#${item.instance}`}
      note={(item) => !item.fits && item.explain?.message && <Words text={item.explain.message} />}
      limit={50}
    />
  );
}

function Advice({ items }: { items: readonly PlanItem[] }) {
  const lines = new Set(items.flatMap((item) => item.explain?.advice ?? []));
  if (!lines.size) return null;
  return (
    <>
      <h3>What would make it fit</h3>
      <ul>
        {[...lines].map((line) => (
          <li key={line}>
            <Words text={line} />
          </li>
        ))}
      </ul>
    </>
  );
}
