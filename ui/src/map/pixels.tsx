import { useSignal } from "@preact/signals";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { isDark } from "../shell/theme";
import { changes, DARK, draw, LIGHT, type Palette, type Shade } from "./draw";
import { around, type Cell, groups, hit, keptLayout, type Layout } from "./layout";
import type { MapGpu } from "./model";

const MAX_HEIGHT = 420;

interface PixelsProps {
  gpus: readonly MapGpu[];
  shade: Shade;
  focused: number;
  marked?: ReadonlySet<string> | undefined;
  onPoint: (index: number | null) => void;
  onOpen: (index: number) => void;
}

/** Thousands of GPUs on one pixel buffer. Only other sizes lay it out anew, and only what has changed is drawn again. */
export function Pixels({ gpus, shade, focused, marked, onPoint, onOpen }: PixelsProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const drawn = useRef<Drawn | null>(null);
  const width = useSignal(0);
  const layOut = useMemo(keptLayout, []);
  const sizes = useMemo(() => groups(gpus), [gpus]);
  const layout = width.value ? layOut(sizes, width.value, MAX_HEIGHT) : null;
  const colours = isDark.value ? DARK : LIGHT;

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
    if (layout && context) drawn.current = show(context, { layout, gpus, shade, colours }, drawn.current);
  }, [layout, gpus, shade, colours]);

  const at = (event: MouseEvent): number =>
    layout && canvas.current
      ? hit(layout, event.offsetX * (layout.width / canvas.current.clientWidth), event.offsetY)
      : -1;
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
      <Frame kind="ring" cell={layout?.cells[focused]} />
      {marked &&
        gpus.flatMap(({ uuid }, index) =>
          marked.has(uuid) ? [<Frame key={uuid} kind="mark" cell={layout?.cells[index]} />] : [],
        )}
    </div>
  );
}

interface Scene {
  layout: Layout;
  gpus: readonly MapGpu[];
  shade: Shade;
  colours: Palette;
}

/** What the canvas shows, with its pixels. */
interface Drawn extends Scene {
  image: ImageData;
}

/** Draws the cells that look different now: all of them, where the layout or the meaning of colours is another. */
function show(context: CanvasRenderingContext2D, scene: Scene, before: Drawn | null): Drawn {
  const begun = performance.now();
  const { layout, gpus, shade, colours } = scene;
  const isLaidOut = before?.layout !== layout;
  const kept = !isLaidOut && before.shade === shade && before.colours === colours ? before : null;
  const changed = changes(kept?.gpus ?? [], gpus);
  const image = kept?.image ?? cleared(context, layout);
  if (changed.length) {
    draw(new Uint32Array(image.data.buffer), layout, gpus, shade, colours, changed);
    const { x, y, width, height } = around(layout, changed);
    context.putImageData(image, 0, 0, x, y, width, height);
    performance.measure("map-draw", { start: begun, detail: { cells: changed.length, isLaidOut } });
  }
  return { ...scene, image };
}

/** Empties the canvas, in the size of the layout. */
function cleared(context: CanvasRenderingContext2D, layout: Layout): ImageData {
  const image = context.createImageData(layout.width, Math.max(1, layout.height));
  context.canvas.width = image.width;
  context.canvas.height = image.height;
  return image;
}

/** A frame around a cell. */
function Frame({ kind, cell }: { kind: "ring" | "mark"; cell: Cell | undefined }) {
  if (!cell) return null;
  const side = `${cell.size + 4}px`;
  return <i class={kind} style={{ left: `${cell.x - 2}px`, top: `${cell.y - 2}px`, width: side, height: side }} />;
}
