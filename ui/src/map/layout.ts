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

export interface Area {
  x: number;
  y: number;
  width: number;
  height: number;
}

const MOST_IN_ROW = 4;
/** Between the cells of a block. */
const GAP = 1;

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
  while (size > 2 && walk(sizes, width, size) > maxHeight) size--;
  const cells: Cell[] = [];
  const height = walk(sizes, width, size, (x, y, count) => {
    for (let i = 0; i < count; i++) {
      const [row, column] = [Math.floor(i / MOST_IN_ROW), i % MOST_IN_ROW];
      cells.push({ x: x + column * (size + GAP), y: y + row * (size + GAP), size });
    }
  });
  return { cells, width, height };
}

/** `layOut` for one map over time. Its last layout is given again while the sizes of the workers and the map are the same. */
export function keptLayout(): typeof layOut {
  let kept: { sizes: readonly number[]; maxHeight: number; layout: Layout } | null = null;
  return (sizes, width, maxHeight) => {
    if (kept?.layout.width !== width || kept.maxHeight !== maxHeight || !areEqual(kept.sizes, sizes))
      kept = { sizes, maxHeight, layout: layOut(sizes, width, maxHeight) };
    return kept.layout;
  };
}

function areEqual(some: readonly number[], others: readonly number[]): boolean {
  return some.length === others.length && some.every((size, index) => size === others[index]);
}

/** Visits the upper left corner of each block, with cells of this size. The answer is the height of all blocks. */
function walk(
  sizes: readonly number[],
  width: number,
  size: number,
  visit?: (x: number, y: number, count: number) => void,
): number {
  const between = Math.max(3, Math.round(size * 0.8));
  let [x, y, rowHeight] = [0, 0, 0];
  for (const count of sizes) {
    const blockWidth = Math.min(count, MOST_IN_ROW) * (size + GAP) - GAP;
    const blockHeight = Math.ceil(count / MOST_IN_ROW) * (size + GAP) - GAP;
    if (x > 0 && x + blockWidth > width) {
      x = 0;
      y += rowHeight + between;
      rowHeight = 0;
    }
    visit?.(x, y, count);
    x += blockWidth + between;
    rowHeight = Math.max(rowHeight, blockHeight);
  }
  return y + rowHeight;
}

/** The smallest area with all of these cells. */
export function around(layout: Layout, indices: Iterable<number>): Area {
  let [left, top, right, bottom] = [layout.width, layout.height, 0, 0];
  for (const index of indices) {
    const cell = layout.cells[index];
    if (!cell) continue;
    left = Math.min(left, cell.x);
    top = Math.min(top, cell.y);
    right = Math.max(right, cell.x + cell.size);
    bottom = Math.max(bottom, cell.y + cell.size);
  }
  return { x: left, y: top, width: right - left, height: bottom - top };
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
