import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useResource } from "../api/load";
import type { Instance, Utilization } from "../api/types";
import { percent, shortGpu } from "../format/numbers";
import { clock, fullTime, span } from "../format/times";
import { instances } from "../live/cluster";
import { Acts } from "../parts/acts";
import { Content, Empty, Panel } from "../parts/panel";
import { Table } from "../parts/table";
import { Graph } from "./graph";

const HOUR = 3600;
const DAY = 24 * HOUR;
const WINDOWS = [600, HOUR, 6 * HOUR, DAY, 7 * DAY] as const;
const REREAD_MS = 10_000;
const MOST_SHOWN = 16;
type Series = Utilization["series"][number];

/** What the series are of, by one parameter of the API: `instance=chat-1`. */
export function UtilizationPanel({ of, empty }: { of: string; empty: string }) {
  const chosen = useSignal<number | null>(null);
  const policyS = useSignal(0);
  const all = useSignal(false);
  // A policy's window is seen whole, with what was before it.
  const windowS = chosen.value ?? WINDOWS.find((one) => one > policyS.value) ?? 7 * DAY;
  const read = useResource<Utilization>(`utilization?${of}&window=${windowS}s`, REREAD_MS);
  const loaded = read.loaded.value;
  const found = loaded.state === "there" ? (loaded.value.policy?.time_window ?? 0) : policyS.value;
  useEffect(() => {
    policyS.value = found;
  }, [found]);
  return (
    <Panel
      title="Utilization"
      part="utilization"
      actions={
        <label class="filter">
          Last
          <select value={windowS} onChange={(event) => (chosen.value = Number(event.currentTarget.value))}>
            {WINDOWS.map((one) => (
              <option key={one} value={one}>
                {span(one)}
              </option>
            ))}
          </select>
        </label>
      }
    >
      <Content of={read} rows={4}>
        {(value) => (
          <>
            <ul class="graphs">
              {value.series.slice(0, all.value ? undefined : MOST_SHOWN).map((series) => (
                <li key={`${series.instance} ${series.gpu}`}>
                  <Row series={series} of={value} />
                </li>
              ))}
            </ul>
            {!value.series.length && <Empty>{empty}</Empty>}
            {value.series.length > MOST_SHOWN && !all.value && (
              <button type="button" onClick={() => (all.value = true)}>
                Show all {value.series.length}
              </button>
            )}
            {value.series.length > 0 && <Legend of={value} />}
            {value.series.length > 0 && <AsTable of={value} most={all.value ? undefined : MOST_SHOWN} />}
          </>
        )}
      </Content>
    </Panel>
  );
}

/** The instance whose use this is: that of its own part, or the only holder of a whole GPU. */
function holderOf({ instance, gpu }: Series): Instance | undefined {
  if (instance) return instances.all.find((one) => one.name === instance);
  const holders = instances.all.filter((one) => one.status.claims.some((claim) => claim.device === gpu));
  return holders.length === 1 ? holders[0] : undefined;
}

function gpuName({ worker, gpu }: Series): string {
  return `${worker} GPU ${shortGpu(gpu)}`;
}

function nameOf(series: Series): string {
  const holder = series.instance || holderOf(series)?.name;
  return holder ? `${holder} on ${gpuName(series)}` : gpuName(series);
}

function Row({ series, of }: { series: Series; of: Utilization }) {
  const holder = holderOf(series);
  const instance = series.instance || holder?.name;
  const verdict = holder?.status.utilization;
  const mark = of.policy ? { below: of.policy.min_gpu_utilization, overS: of.policy.time_window } : null;
  const newest = series.values.findLast((value) => value !== null);
  return (
    <div class="graph-row">
      <div class="graph-name">
        {instance && <a href={`/ui/instances/${instance}`}>{instance}</a>}
        <a class={instance ? "muted" : ""} href={`/ui/gpus/${series.gpu}`}>
          {gpuName(series)}
        </a>
        <strong class="figures">{percent(newest)}</strong>
      </div>
      <div>
        <Graph name={nameOf(series)} values={series.values} windowS={of.window_s} mark={mark} />
        {holder && verdict && (
          <p class="graph-verdict">
            {verdict.verdict}: {verdict.message || verdict.reason} <Acts status={holder.status} />
          </p>
        )}
      </div>
    </div>
  );
}

function Legend({ of: { policy, until, slot_s: slotS, window_s: windowS } }: { of: Utilization }) {
  const from = Date.parse(until) - windowS * 1000;
  return (
    <p class="muted">
      From {fullTime(from)} to {fullTime(until)}, 0 to 100 %, the highest sample of each {span(Math.round(slotS))}. No
      line: no sample.
      {policy &&
        ` Dashed: ${policy.min_gpu_utilization} %, below which policy ${policy.name || "inline"} finds it idle; shaded: its window of ${span(policy.time_window)}.`}
    </p>
  );
}

/** The graphs' figures as a table, newest first. What has no sample is a dash. */
function AsTable({ of, most }: { of: Utilization; most: number | undefined }) {
  const open = useSignal(false);
  const shown = of.series.slice(0, most);
  const slots = of.series[0]?.values.length ?? 0;
  const endOf = (slot: number): number => Date.parse(of.until) - (slots - 1 - slot) * of.slot_s * 1000;
  return (
    <details class="as-table" onToggle={(event) => (open.value = event.currentTarget.open)}>
      <summary>The same as a table</summary>
      {open.value && (
        <Table
          label="Utilization"
          rows={Array.from({ length: slots }, (_, back) => slots - 1 - back)}
          id={String}
          columns={[
            { key: "until", title: "Until", cell: (slot: number) => clock(endOf(slot)) },
            ...shown.map((series) => ({
              key: `${series.instance} ${series.gpu}`,
              title: nameOf(series),
              cell: (slot: number) => percent(series.values[slot]),
              numeric: true,
            })),
          ]}
        />
      )}
    </details>
  );
}
