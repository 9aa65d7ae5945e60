/** Where lines are in the window of a log: of equal height, or wrapped. Pure. */

import type { Line } from "./lines";

export const ROW_PX = 18;

/** The rows that a line takes where so many characters fit. Null: lines do not wrap. */
export function rowsOf(line: Line, columns: number | null): number {
  return columns === null ? 1 : Math.max(1, Math.ceil(line.text.length / columns));
}

export interface Places {
  /** All lines together. */
  height: number;
  /** The first line at or above a place, and where it begins. */
  at: (top: number) => { first: number; offset: number };
}

/** The places of lines; wrapped ones are summed up once. */
export function placesOf(lines: readonly Line[], columns: number | null): Places {
  if (columns === null) {
    const at = (top: number): { first: number; offset: number } => {
      const first = Math.max(0, Math.min(lines.length - 1, Math.floor(top / ROW_PX)));
      return { first, offset: first * ROW_PX };
    };
    return { height: lines.length * ROW_PX, at };
  }
  const ends = new Float64Array(lines.length);
  let sum = 0;
  lines.forEach((line, place) => {
    sum += rowsOf(line, columns) * ROW_PX;
    ends[place] = sum;
  });
  return {
    height: sum,
    at: (top) => {
      let [low, high] = [0, Math.max(0, lines.length - 1)];
      while (low < high) {
        const middle = (low + high) >> 1;
        if ((ends[middle] ?? 0) > top) high = middle;
        else low = middle + 1;
      }
      return { first: low, offset: low ? (ends[low - 1] ?? 0) : 0 };
    },
  };
}
