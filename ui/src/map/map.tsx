import { useComputed, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso";
import { plural } from "../format/numbers";
import { Empty } from "../parts/panel";
import { isDark } from "../shell/theme";
import { Cells } from "./cells";
import { DARK, draw, LIGHT, type Shade } from "./draw";
import { groups, hit, type Layout, layOut, otherWorker } from "./layout";
import { describe, type MapGpu, ordered } from "./model";
import { MapTable } from "./table";

/** Up to so many GPUs are shown as cells with text; more are pixels. */
const MOST_WITH_TEXT = 64;
const MAX_HEIGHT = 420;

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
  const gpus = ordered(given, order.value);
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

interface PixelsProps {
  gpus: readonly MapGpu[];
  shade: Shade;
  focused: number;
  marked?: ReadonlySet<string> | undefined;
  onPoint: (index: number | null) => void;
  onOpen: (index: number) => void;
}

/** Thousands of GPUs on one pixel buffer. Only what has changed is drawn again. */
function Pixels({ gpus, shade, focused, marked, onPoint, onOpen }: PixelsProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const drawn = useRef<{ layout: Layout; key: string; image: ImageData; gpus: readonly MapGpu[] } | null>(null);
  const width = useSignal(0);
  const layout = useComputed(() => width.value).value ? layOut(groups(gpus), width.value, MAX_HEIGHT) : null;

  useLayoutEffect(() => {
    const parent = canvas.current?.parentElement;
    if (!parent) return;
    const observer = new ResizeObserver(() => (width.value = Math.floor(parent.clientWidth)));
    observer.observe(parent);
    width.value = Math.floor(parent.clientWidth);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!layout || !context || !canvas.current) return;
    const begun = performance.now();
    const key = `${layout.width} ${layout.height} ${gpus.length} ${shade} ${isDark.value}`;
    const before = drawn.current;
    const again = before?.key === key && sameGpus(before.gpus, gpus);
    const image = again ? before.image : context.createImageData(layout.width, Math.max(1, layout.height));
    if (!again) {
      canvas.current.width = image.width;
      canvas.current.height = image.height;
    }
    const changed = again ? changes(before.gpus, gpus) : undefined;
    draw(new Uint32Array(image.data.buffer), layout, gpus, shade, isDark.value ? DARK : LIGHT, changed);
    context.putImageData(image, 0, 0);
    drawn.current = { layout, key, image, gpus };
    performance.measure("map-draw", { start: begun, detail: { cells: changed?.length ?? gpus.length } });
  });

  const at = (event: MouseEvent): number =>
    layout && canvas.current
      ? hit(layout, event.offsetX * (layout.width / canvas.current.clientWidth), event.offsetY)
      : -1;
  const ring = layout?.cells[focused];
  return (
    <div class="pixels">
      <canvas
        ref={canvas}
        onMouseMove={(event) => {
          const index = at(event);
          onPoint(index < 0 ? null : index);
        }}
        onMouseLeave={() => onPoint(null)}
        onClick={(event) => {
          const index = at(event);
          if (index >= 0) onOpen(index);
        }}
      />
      {ring && (
        <i
          class="ring"
          style={{
            left: `${ring.x - 2}px`,
            top: `${ring.y - 2}px`,
            width: `${ring.size + 4}px`,
            height: `${ring.size + 4}px`,
          }}
        />
      )}
      {layout &&
        marked &&
        gpus.map((gpu, index) => {
          const cell = marked.has(gpu.uuid) ? layout.cells[index] : undefined;
          return (
            cell && (
              <i
                key={gpu.uuid}
                class="mark"
                style={{
                  left: `${cell.x - 2}px`,
                  top: `${cell.y - 2}px`,
                  width: `${cell.size + 4}px`,
                  height: `${cell.size + 4}px`,
                }}
              />
            )
          );
        })}
    </div>
  );
}

function sameGpus(before: readonly MapGpu[], now: readonly MapGpu[]): boolean {
  return before.length === now.length && before.every((gpu, index) => gpu.uuid === now[index]?.uuid);
}

/** The numbers of the GPUs that look different now. */
function changes(before: readonly MapGpu[], now: readonly MapGpu[]): number[] {
  const found: number[] = [];
  now.forEach((gpu, index) => {
    const old = before[index];
    if (!old || old.utilization !== gpu.utilization || old.claimedMib !== gpu.claimedMib || old.state !== gpu.state)
      found.push(index);
  });
  return found;
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
