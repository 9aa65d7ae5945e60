import { type Signal, useSignal } from "@preact/signals";
import { useResource } from "../../api/load";
import type { Revision, RevisionDiff } from "../../api/types";
import { count } from "../../format/numbers";
import { FieldChanges } from "../../parts/changes";
import { Content } from "../../parts/panel";

/** Two revisions, field by field; at first the newest one with the one before it. `revisions`: newest first. */
export function Compare({ name, revisions }: { name: string; revisions: readonly Revision[] }) {
  const old = useSignal<number | null>(null);
  const now = useSignal<number | null>(null);
  const [last, before] = revisions;
  if (!last || !before) return null;
  const from = chosen(old, revisions, before);
  const to = chosen(now, revisions, last);
  return (
    <details class="compare">
      <summary>Compare two revisions</summary>
      <p class="tools">
        <Choice label="Old" value={from} set={old} revisions={revisions} />
        <Choice label="New" value={to} set={now} revisions={revisions} />
      </p>
      <Difference key={`${from} ${to}`} name={name} from={from} to={to} />
    </details>
  );
}

/** What is selected, as long as it is kept. */
function chosen(selected: Signal<number | null>, revisions: readonly Revision[], otherwise: Revision): number {
  const kept = revisions.some((one) => one.revision === selected.value);
  return kept && selected.value !== null ? selected.value : otherwise.revision;
}

interface ChoiceProps {
  label: string;
  value: number;
  set: Signal<number | null>;
  revisions: readonly Revision[];
}

function Choice({ label, value, set, revisions }: ChoiceProps) {
  return (
    <label class="filter">
      {label}
      <select value={value} onChange={(event) => (set.value = Number(event.currentTarget.value))}>
        {revisions.map((one) => (
          <option key={one.revision} value={one.revision}>
            revision {count(one.revision)}
          </option>
        ))}
      </select>
    </label>
  );
}

function Difference({ name, from, to }: { name: string; from: number; to: number }) {
  const read = useResource<RevisionDiff>(`deployments/${name}/revisions/diff?from=${from}&to=${to}`);
  return (
    <Content of={read} rows={2}>
      {({ fields }) => (fields.length ? <FieldChanges changes={fields} /> : <p>No field differs.</p>)}
    </Content>
  );
}
