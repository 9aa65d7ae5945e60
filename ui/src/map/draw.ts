/** Draws all cells into one pixel buffer. Each state has a pattern of its own besides its colour. */

import type { Cell, Layout } from "./layout";
import type { GpuState, MapGpu } from "./model";

export type Shade = "utilization" | "memory";

/** Colours as 0xAABBGGRR, the order of bytes in a canvas on little-endian machines. */
export interface Palette {
  empty: number;
  scale: readonly number[];
  ink: number;
  states: Partial<Record<GpuState, number>>;
}

function colour(hex: string): number {
  const value = Number.parseInt(hex.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

const STEPS = 16;

/** A scale from one colour to another, through linear steps. */
function scale(from: string, to: string): number[] {
  const [a, b] = [Number.parseInt(from.slice(1), 16), Number.parseInt(to.slice(1), 16)];
  const mix = (shift: number, share: number): number =>
    Math.round(((a >> shift) & 255) * (1 - share) + ((b >> shift) & 255) * share);
  return Array.from({ length: STEPS + 1 }, (_, step) => {
    const share = step / STEPS;
    return ((255 << 24) | (mix(0, share) << 16) | (mix(8, share) << 8) | mix(16, share)) >>> 0;
  });
}

const BAD = ["lost", "unhealthy", "absent"] as const;
const HELD_BACK = ["unreachable", "quarantined", "joining", "draining", "drained", "cordoned", "mig_mode"] as const;

function palette(
  empty: string,
  low: string,
  high: string,
  ink: string,
  bad: string,
  back: string,
  none: string,
): Palette {
  const states: Partial<Record<GpuState, number>> = { no_sample: colour(none) };
  for (const state of BAD) states[state] = colour(bad);
  for (const state of HELD_BACK) states[state] = colour(back);
  return { empty: colour(empty), scale: scale(low, high), ink: colour(ink), states };
}

export const LIGHT = palette("#e3e7ee", "#bcd0fb", "#10328f", "#15191f", "#d8433b", "#b3bac6", "#c9b6ea");
export const DARK = palette("#262d38", "#31508f", "#b3cbff", "#f0f3f8", "#e0554d", "#596373", "#6d5799");

/** Whether a pixel of a cell belongs to the pattern of a state. */
const PATTERNS: Partial<Record<GpuState, (x: number, y: number, size: number) => boolean>> = {
  lost: (x, y, size) => x === y || x === size - 1 - y,
  unhealthy: (x, y) => (x + y) % 3 === 0,
  absent: (x, y, size) => x === 0 || y === 0 || x === size - 1 || y === size - 1,
  unreachable: (x, y) => (x - y + 64) % 4 === 0,
  quarantined: (x) => x % 3 === 0,
  joining: (x, y) => x % 4 === 0 && y % 4 === 0,
  draining: (_, y) => y % 3 === 0,
  drained: (_, y, size) => y === Math.floor(size / 2),
  cordoned: (x, y) => (x + y) % 4 === 0,
  mig_mode: (x, y, size) => x === Math.floor(size / 2) || y === Math.floor(size / 2),
  no_sample: (x, y) => x % 3 === 1 && y % 3 === 1,
};

/** The numbers of the GPUs that look different now. */
export function changes(before: readonly MapGpu[], now: readonly MapGpu[]): number[] {
  return [...now.keys()].filter((index) => !looksSame(before[index], now[index]));
}

/** Whether two GPUs have all in common that `drawCell` reads. */
function looksSame(one: MapGpu | undefined, other: MapGpu | undefined): boolean {
  return (
    one?.utilization === other?.utilization &&
    one?.claimedMib === other?.claimedMib &&
    one?.totalMib === other?.totalMib &&
    one?.state === other?.state
  );
}

/** Draws the given cells, all by default. The buffer holds `layout.width` × `layout.height` pixels. */
export function draw(
  buffer: Uint32Array,
  layout: Layout,
  gpus: readonly MapGpu[],
  shade: Shade,
  colours: Palette,
  only?: Iterable<number>,
): void {
  const indices = only ?? gpus.keys();
  for (const index of indices) {
    const [cell, gpu] = [layout.cells[index], gpus[index]];
    if (cell && gpu) drawCell(buffer, layout.width, cell, gpu, shade, colours);
  }
}

function drawCell(buffer: Uint32Array, width: number, cell: Cell, gpu: MapGpu, shade: Shade, colours: Palette): void {
  const { size } = cell;
  const ground = colours.states[gpu.state];
  const pattern = PATTERNS[gpu.state];
  const share = gpu.totalMib > 0 ? Math.min(1, gpu.claimedMib / gpu.totalMib) : 0;
  const level = shade === "memory" ? share * 100 : (gpu.utilization ?? 0);
  const fill = colours.scale[Math.round((Math.min(100, Math.max(0, level)) / 100) * STEPS)] ?? colours.empty;
  // The height of the fill is the claimed memory; one pixel at least where anything is claimed.
  const filled = share === 0 ? 0 : Math.max(1, Math.round(share * size));
  for (let y = 0; y < size; y++) {
    const start = (cell.y + y) * width + cell.x;
    const inFill = size - y <= filled;
    for (let x = 0; x < size; x++) {
      if (pattern?.(x, y, size)) buffer[start + x] = colours.ink;
      else if (ground !== undefined) buffer[start + x] = ground;
      else buffer[start + x] = inFill ? fill : colours.empty;
    }
  }
}
