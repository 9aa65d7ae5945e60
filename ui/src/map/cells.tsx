import { gibNumber, percent } from "../format/numbers";
import { Meter } from "../parts/meter";
import type { Shade } from "./draw";
import { isBlocked, type MapGpu, ownerOf, stateWord } from "./model";

interface CellsProps {
  gpus: readonly MapGpu[];
  shade: Shade;
  focused: number;
  marked?: ReadonlySet<string> | undefined;
  onPoint: (index: number | null) => void;
}

/** A small cluster: a cell with text for each GPU, by worker. */
export function Cells({ gpus, shade, focused, marked, onPoint }: CellsProps) {
  const workers: { name: string; since: string | null; cells: { gpu: MapGpu; index: number }[] }[] = [];
  gpus.forEach((gpu, index) => {
    if (workers.at(-1)?.name !== gpu.worker) workers.push({ name: gpu.worker, since: gpu.since, cells: [] });
    workers.at(-1)?.cells.push({ gpu, index });
  });
  return (
    <div class="cells">
      {workers.map((worker) => (
        <div key={worker.name} class="cells-worker">
          <div class="cells-name">{worker.name}</div>
          <div class="cells-row">
            {worker.cells.map(({ gpu, index }) => {
              const state = gpu.state === "held" || gpu.state === "free" ? "" : stateWord(gpu.state);
              const marks = `${index === focused ? "focused" : ""} ${marked?.has(gpu.uuid) ? "marked" : ""}`;
              return (
                <a
                  key={gpu.uuid}
                  href={`/ui/gpus/${gpu.uuid}`}
                  tabIndex={-1}
                  class={`cell ${gpu.state} ${marks}`}
                  onMouseEnter={() => onPoint(index)}
                  onMouseLeave={() => onPoint(null)}
                  data-gpu={gpu.uuid}
                >
                  <span class="cell-owner">{ownerOf(gpu)}</span>
                  <span class="cell-figure">{percent(gpu.utilization)}</span>
                  <span class="cell-memory">
                    {gibNumber(gpu.claimedMib)} of {gibNumber(gpu.totalMib)} GiB
                  </span>
                  {state && <span class={isBlocked(gpu.state) ? "cell-state blocked" : "cell-state"}>{state}</span>}
                  <Meter
                    part={shade === "memory" ? gpu.claimedMib : gpu.utilization}
                    of={shade === "memory" ? gpu.totalMib : 100}
                  />
                </a>
              );
            })}
          </div>
        </div>
      ))}
    </div>
  );
}
