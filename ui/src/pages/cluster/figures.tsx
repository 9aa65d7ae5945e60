import type { ComponentChildren } from "preact";
import { count, gib, percent, plural, UNKNOWN } from "../../format/numbers";
import { age, secondsSince } from "../../format/times";
import { instances, known, workers } from "../../live/cluster";
import type { MapGpu } from "../../map/model";
import { Meter } from "../../parts/meter";

/** The figures of the whole cluster. They add up what the map shows. Null: it is not known, and so are they. */
export function Figures({ gpus: given }: { gpus: readonly MapGpu[] | null }) {
  const gpus = given ?? [];
  /** A figure that is unknown without the map. */
  const ofMap = (text: string): string => (given === null ? UNKNOWN : text);
  /** One that is unknown before the first snapshot of the live connection. */
  const ofObjects = (text: string): string => (known.value ? text : UNKNOWN);
  const held = gpus.filter((gpu) => gpu.instances > 0);
  const claimed = gpus.reduce((sum, gpu) => sum + gpu.claimedMib, 0);
  const total = gpus.reduce((sum, gpu) => sum + gpu.totalMib, 0);
  const sampled = gpus.filter((gpu) => gpu.utilization !== null);
  const mean = sampled.length ? sampled.reduce((sum, gpu) => sum + (gpu.utilization ?? 0), 0) / sampled.length : null;
  const ready = workers.all.filter((worker) => worker.status.state === "ready").length;
  const idle = instances.all.filter((one) => one.status.utilization?.verdict === "idle");
  const idleGpus = new Set(idle.flatMap((one) => one.status.gpus ?? []));
  const watched = idle.filter((one) => one.status.utilization?.dry_run).length;
  const pending = instances.all.filter((one) => one.status.phase === "pending" || one.status.phase === "analyzing");
  const oldest = pending.map((one) => secondsSince(one.created_at)).reduce((a, b) => Math.max(a, b), 0);
  return (
    <dl class="figures-row">
      <Figure
        title="GPUs held"
        value={ofMap(`${count(held.length)} of ${count(gpus.length)}`)}
        meter={<Meter part={held.length} of={gpus.length} />}
      >
        {ofObjects(count(ready))} of {ofObjects(count(workers.all.length))}{" "}
        {workers.all.length === 1 ? "worker" : "workers"} ready
      </Figure>
      <Figure title="GPU memory claimed" value={ofMap(gib(claimed))} meter={<Meter part={claimed} of={total} />}>
        of {ofMap(gib(total))}
      </Figure>
      <Figure title="Mean utilization" value={percent(mean)} meter={<Meter part={mean} of={100} />}>
        of {ofMap(count(sampled.length))} {sampled.length === 1 ? "GPU" : "GPUs"} with samples
      </Figure>
      <Figure
        title="Claimed but idle"
        value={ofObjects(plural(idleGpus.size, "GPU"))}
        meter={<Meter part={idleGpus.size} of={held.length} tone="warn" />}
      >
        {watched ? `${plural(watched, "instance")} under a dry run` : "found idle by policies"}
      </Figure>
      <Figure
        title="Pending"
        value={ofObjects(plural(pending.length, "instance"))}
        meter={<Meter part={pending.length} of={instances.all.length} tone="warn" />}
      >
        {pending.length ? <a href="/ui/pending">oldest for {age(oldest)}</a> : ofObjects("Nothing is pending.")}
      </Figure>
    </dl>
  );
}

function Figure({
  title,
  value,
  meter,
  children,
}: {
  title: string;
  value: string;
  meter: ComponentChildren;
  children: ComponentChildren;
}) {
  return (
    <div class="figure">
      <dt>{title}</dt>
      <dd class="figure-value">{value}</dd>
      <dd class="muted">{children}</dd>
      <dd aria-hidden="true">{meter}</dd>
    </div>
  );
}
