import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { useLocation } from "preact-iso";
import { plural } from "../format/numbers";
import { Empty } from "../parts/panel";
import { Cells } from "./cells";
import type { Shade } from "./draw";
import { otherWorker } from "./layout";
import { describe, type MapGpu, ordered } from "./model";
import { Pixels } from "./pixels";
import { MapTable } from "./table";

/** Up to so many GPUs are shown as cells with text; more are pixels. */
const MOST_WITH_TEXT = 64;

interface MapProps {
  gpus: readonly MapGpu[];
  /** GPUs to mark, such as those of a plan. */
  marked?: ReadonlySet<string>;
}

/** All GPUs: a map that is one tab stop, moved through by arrow keys, and the same as a table. */
export function GpuMap({ gpus: given, marked }: MapProps) {
  const shade = useSignal<Shade>("utilization");
  const order = useSignal<"worker" | "problems">("worker");
  const asTable = useSignal(false);
  const focused = useSignal(0);
  const pointed = useSignal<number | null>(null);
  const announced = useSignal("");
  const { route } = useLocation();
  const gpus = useMemo(() => ordered(given, order.value), [given, order.value]);
  const current = Math.min(focused.value, Math.max(0, gpus.length - 1));
  const shown = gpus[pointed.value ?? current];

  const moveTo = (index: number): void => {
    const gpu = gpus[index];
    if (!gpu) return;
    focused.value = index;
    announced.value = describe(gpu);
  };
  const press = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = nextOf(event, gpus, current);
    if (next !== null) {
      event.preventDefault();
      moveTo(next);
    } else if (event.key === "Enter") route(`/ui/gpus/${gpus[current]?.uuid}`);
    else if (event.key.toLowerCase() === "t") asTable.value = true;
  };
  if (!gpus.length) return <Empty>No GPU is known.</Empty>;
  if (asTable.value) {
    return (
      <div
        onKeyDown={(event) => {
          if (event.key.toLowerCase() === "t") asTable.value = false;
        }}
      >
        <button type="button" onClick={() => (asTable.value = false)}>
          Map
        </button>
        <MapTable gpus={gpus} />
      </div>
    );
  }
  return (
    <div class="gpu-map">
      <div class="map-controls">
        <label>
          Colour{" "}
          <select value={shade.value} onChange={(event) => (shade.value = event.currentTarget.value as Shade)}>
            <option value="utilization">utilization</option>
            <option value="memory">claimed memory</option>
          </select>
        </label>
        <label>
          Order{" "}
          <select
            value={order.value}
            onChange={(event) => (order.value = event.currentTarget.value as "worker" | "problems")}
          >
            <option value="worker">by worker</option>
            <option value="problems">problems first</option>
          </select>
        </label>
        <button type="button" onClick={() => (asTable.value = true)}>
          Table
        </button>
      </div>
      <div
        data-part="map"
        role="application"
        aria-roledescription="map of GPUs"
        tabIndex={0}
        onKeyDown={press}
        aria-label={`Map of ${plural(gpus.length, "GPU")}. Arrow keys move by GPU, with Shift by worker. Enter opens, T shows a table.`}
      >
        {gpus.length <= MOST_WITH_TEXT ? (
          <Cells
            gpus={gpus}
            shade={shade.value}
            focused={current}
            marked={marked}
            onPoint={(index) => (pointed.value = index)}
          />
        ) : (
          <Pixels
            gpus={gpus}
            shade={shade.value}
            focused={current}
            marked={marked}
            onPoint={(index) => (pointed.value = index)}
            onOpen={(index) => route(`/ui/gpus/${gpus[index]?.uuid}`)}
          />
        )}
      </div>
      <p class="map-tip" data-part="map-tip">
        {shown && describe(shown)}
      </p>
      <span class="sr" role="status">
        {announced.value}
      </span>
      {gpus.length > MOST_WITH_TEXT ? (
        <Legend />
      ) : (
        <p class="muted">Bar: {shade.value === "memory" ? "claimed memory" : "utilization"}, 0 to 100 %</p>
      )}
    </div>
  );
}

function nextOf(event: KeyboardEvent, gpus: readonly MapGpu[], from: number): number | null {
  const step =
    event.key === "ArrowRight" || event.key === "ArrowDown"
      ? 1
      : event.key === "ArrowLeft" || event.key === "ArrowUp"
        ? -1
        : 0;
  if (step !== 0) {
    if (event.shiftKey || event.key === "ArrowDown" || event.key === "ArrowUp") return otherWorker(gpus, from, step);
    return Math.max(0, Math.min(gpus.length - 1, from + step));
  }
  if (event.key === "Home") return 0;
  if (event.key === "End") return gpus.length - 1;
  return null;
}

function Legend() {
  return (
    <ul class="legend" aria-label="Legend">
      <li>
        <i class="scale" /> 0 to 100 %; height: claimed memory
      </li>
      <li>
        <i class="swatch lost" /> lost, unhealthy or absent
      </li>
      <li>
        <i class="swatch cordoned" /> not ready, cordoned or draining
      </li>
      <li>
        <i class="swatch no_sample" /> no sample
      </li>
    </ul>
  );
}
