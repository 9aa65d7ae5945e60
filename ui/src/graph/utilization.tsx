import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useResource } from "../api/load";
import type { Utilization } from "../api/types";
import { percent, shortGpu } from "../format/numbers";
import { fullTime, span } from "../format/times";
import { Content, Empty, Panel } from "../parts/panel";
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
          </>
        )}
      </Content>
    </Panel>
  );
}

function Row({ series, of }: { series: Series; of: Utilization }) {
  const name = `${series.worker} GPU ${shortGpu(series.gpu)}`;
  const mark = of.policy ? { below: of.policy.min_gpu_utilization, overS: of.policy.time_window } : null;
  const newest = series.values.findLast((value) => value !== null);
  return (
    <div class="graph-row">
      <div class="graph-name">
        {series.instance ? (
          <a href={`/ui/instances/${series.instance}`}>{series.instance}</a>
        ) : (
          <a href={`/ui/gpus/${series.gpu}`}>{name}</a>
        )}
        {series.instance && <span class="muted">{name}</span>}
        <strong class="figures">{percent(newest)}</strong>
      </div>
      <Graph
        name={series.instance ? `${series.instance} on ${name}` : name}
        values={series.values}
        windowS={of.window_s}
        mark={mark}
      />
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
