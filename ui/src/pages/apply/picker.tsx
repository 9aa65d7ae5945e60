import type { MapGpu } from "../../map/model";
import { gib, plural } from "../../format/numbers";
import { clock } from "../../format/times";
import { gpus } from "../../live/gpus";
import { isBlocked, stateWord } from "../../map/model";
import { Panel } from "../../parts/panel";
import type { Candidate } from "./candidates";

interface PickerProps {
  deployment: string;
  candidates: readonly Candidate[];
  selected: ReadonlySet<string>;
  onChoose: (uuids: string[]) => void;
}

/**
 * GPUs to choose by hand. Whether one can be chosen is the scheduler's own judgement, which came with the plan. What
 * cannot be chosen says why. What was chosen and no longer can be stays visible until it is taken out.
 */
export function Picker({ deployment, candidates, selected, onChoose }: PickerProps) {
  const chosen = candidates.filter((one) => selected.has(one.uuid));
  const selectable = candidates.filter((one) => one.selectable);
  const workers = [...new Set(candidates.map((one) => one.worker))];
  const turn = (one: Candidate): void => {
    if (selected.has(one.uuid)) onChoose([...selected].filter((uuid) => uuid !== one.uuid));
    else if (one.selectable) onChoose([...selected, one.uuid]);
  };
  return (
    <Panel
      title={`Choose GPUs by hand for ${deployment}`}
      part="picker"
      actions={
        <>
          <span class="muted">
            {plural(chosen.length, "GPU")} chosen, {plural(selectable.length, "GPU")} can be
          </span>
          <button
            type="button"
            onClick={() => onChoose(selectable.map((one) => one.uuid))}
            disabled={!selectable.length}
          >
            Select all
          </button>
          <button type="button" onClick={() => onChoose([])} disabled={!selected.size}>
            Use any fitting GPU
          </button>
        </>
      }
    >
      {workers.map((worker) => (
        <section key={worker} class="picker-worker" aria-label={worker}>
          <h3>{worker}</h3>
          <div class="picker-gpus">
            {candidates
              .filter((one) => one.worker === worker)
              .map((one) => (
                <Choice key={one.uuid} one={one} checked={selected.has(one.uuid)} onTurn={() => turn(one)} />
              ))}
          </div>
        </section>
      ))}
    </Panel>
  );
}

function Choice({ one, checked, onTurn }: { one: Candidate; checked: boolean; onTurn: () => void }) {
  const live = gpus.value.find((gpu) => gpu.uuid === one.uuid);
  const off = !one.selectable && !checked;
  return (
    <button
      type="button"
      role="checkbox"
      class="pick"
      aria-checked={checked}
      aria-disabled={off}
      onClick={() => {
        if (!off) onTurn();
      }}
    >
      GPU {one.index}
      <small>{wordsOf(one, checked, live)}</small>
    </button>
  );
}

function wordsOf(one: Candidate, checked: boolean, live: MapGpu | undefined): string {
  if (live && checked && isBlocked(live.state)) return `chosen; no longer ready: ${stateWord(live.state)}`;
  if (one.selectable)
    return live ? `${gib(live.totalMib - live.claimedMib)} of ${gib(live.totalMib)} free` : "can be chosen";
  const since = one.since ? ` since ${clock(one.since)}` : "";
  return `${checked ? "chosen; " : ""}${one.message}${since}`;
}

/** The GPUs that the first deployment of the text selects by UUID. */
export function selectedGpus(manifests: readonly Record<string, unknown>[]): ReadonlySet<string> {
  const first = manifests.find((one) => one.kind === undefined || one.kind === "Deployment");
  const placement = first?.placement as { gpus?: unknown } | undefined;
  return new Set(Array.isArray(placement?.gpus) ? placement.gpus.filter((one) => typeof one === "string") : []);
}

/** Why the chosen GPUs cannot be applied now, in a sentence; empty: they can. */
export function blockedChoice(manifests: readonly Record<string, unknown>[], all: readonly MapGpu[]): string {
  const selected = selectedGpus(manifests);
  const [first] = all.filter((gpu) => selected.has(gpu.uuid) && isBlocked(gpu.state));
  if (!first) return "";
  const since = first.since ? ` since ${clock(first.since)}` : "";
  return `${first.worker} GPU ${first.index} is no longer ready: ${stateWord(first.state)}${since}. It stays chosen, but nothing can be applied with it. Choose another, or wait: this page follows.`;
}
