/** Where each GPU's cell lies. Pure: sizes are in device pixels. */

import type { MapGpu } from "./model";

export interface Cell {
  x: number;
  y: number;
  size: number;
}

export interface Layout {
  cells: Cell[];
  width: number;
  height: number;
}

const MOST_IN_ROW = 4;

/** Sizes of the consecutive groups of GPUs with one worker. */
export function groups(gpus: readonly MapGpu[]): number[] {
  const sizes: number[] = [];
  let worker: string | null = null;
  for (const gpu of gpus) {
    if (gpu.worker === worker) sizes[sizes.length - 1] = (sizes.at(-1) ?? 0) + 1;
    else sizes.push(1);
    worker = gpu.worker;
  }
  return sizes;
}

/**
 * Lays workers out as blocks of up to four GPUs in a row, left to right and top to bottom, with the largest cells for
 * which all of them fit. The cells are at least 2 pixels wide, so that a huge cluster grows downward instead.
 */
export function layOut(sizes: readonly number[], width: number, maxHeight: number): Layout {
  let size = 24;
  while (size > 2 && heightFor(sizes, width, size) > maxHeight) size--;
  return place(sizes, width, size);
}

function gapsOf(size: number): { gap: number; block: number } {
  return { gap: 1, block: Math.max(3, Math.round(size * 0.8)) };
}

function heightFor(sizes: readonly number[], width: number, size: number): number {
  return place(sizes, width, size).height;
}

function place(sizes: readonly number[], width: number, size: number): Layout {
  const { gap, block } = gapsOf(size);
  const cells: Cell[] = [];
  let [x, y, rowHeight] = [0, 0, 0];
  for (const count of sizes) {
    const columns = Math.min(count, MOST_IN_ROW);
    const blockWidth = columns * (size + gap) - gap;
    const blockHeight = Math.ceil(count / MOST_IN_ROW) * (size + gap) - gap;
    if (x > 0 && x + blockWidth > width) {
      x = 0;
      y += rowHeight + block;
      rowHeight = 0;
    }
    for (let i = 0; i < count; i++) {
      const [row, column] = [Math.floor(i / MOST_IN_ROW), i % MOST_IN_ROW];
      cells.push({ x: x + column * (size + gap), y: y + row * (size + gap), size });
    }
    x += blockWidth + block;
    rowHeight = Math.max(rowHeight, blockHeight);
  }
  return { cells, width, height: y + rowHeight };
}

/** The GPU at a point; -1 between cells. */
export function hit(layout: Layout, x: number, y: number): number {
  return layout.cells.findIndex(
    (cell) => x >= cell.x && x <= cell.x + cell.size && y >= cell.y && y <= cell.y + cell.size,
  );
}

/** The first GPU of the next or the previous worker. */
export function otherWorker(gpus: readonly MapGpu[], from: number, step: 1 | -1): number {
  const worker = gpus[from]?.worker;
  let i = from;
  while (i >= 0 && i < gpus.length && gpus[i]?.worker === worker) i += step;
  if (i < 0 || i >= gpus.length) return from;
  const other = gpus[i]?.worker;
  while (i > 0 && gpus[i - 1]?.worker === other) i--;
  return i;
}
