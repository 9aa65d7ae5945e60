/** Where lines are in the window of a log: of equal height, or wrapped. Pure. */

import type { Line } from "./lines";

export const ROW_PX = 18;

/** The rows that a line takes where so many columns fit. Null: lines do not wrap. */
export function rowsOf(line: Line, columns: number | null): number {
  return columns === null ? 1 : Math.max(1, Math.ceil(line.cells / columns));
}

export interface Places {
  /** All lines together. */
  height: number;
  /** The line at a place, and where it begins. */
  at: (top: number) => { first: number; offset: number };
  /** Where a line begins. */
  topOf: (place: number) => number;
}

/** The places of lines; wrapped ones are summed up once. */
export function placesOf(lines: readonly Line[], columns: number | null): Places {
  const last = Math.max(0, lines.length - 1);
  if (columns === null) {
    const topOf = (place: number): number => place * ROW_PX;
    const at = (top: number): { first: number; offset: number } => {
      const first = Math.max(0, Math.min(last, Math.floor(top / ROW_PX)));
      return { first, offset: topOf(first) };
    };
    return { height: lines.length * ROW_PX, at, topOf };
  }
  const ends = new Float64Array(lines.length);
  let sum = 0;
  lines.forEach((line, place) => {
    sum += rowsOf(line, columns) * ROW_PX;
    ends[place] = sum;
  });
  const topOf = (place: number): number => (place > 0 ? (ends[place - 1] ?? sum) : 0);
  return {
    height: sum,
    topOf,
    at: (top) => {
      const first = firstWhere(last, (place) => (ends[place] ?? 0) > top);
      return { first, offset: topOf(first) };
    },
  };
}

/** The place of the line with this number, or of the next one that is shown. */
export function placeOf(lines: readonly Line[], number: number): number {
  return firstWhere(Math.max(0, lines.length - 1), (place) => (lines[place]?.number ?? Infinity) >= number);
}

/** The first place up to `last` for which it holds; it holds for all after it. */
function firstWhere(last: number, holds: (place: number) => boolean): number {
  let [low, high] = [0, last];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
