/** Lines through samples, broken where samples are missing. Pure. */

export interface SampleRun {
  /** The slot of the first value. */
  first: number;
  values: number[];
}

/** The stretches of consecutive samples. */
export function runsOf(values: readonly (number | null)[]): SampleRun[] {
  const found: SampleRun[] = [];
  values.forEach((value, slot) => {
    if (value === null) return;
    const last = found.at(-1);
    if (last && last.first + last.values.length === slot) last.values.push(value);
    else found.push({ first: slot, values: [value] });
  });
  return found;
}

/** The points of a polyline. A value holds over its whole slot, so that a single one is seen too. */
export function points(run: SampleRun, slots: number, width: number, yOf: (value: number) => number): string {
  const each = width / slots;
  return run.values
    .flatMap((value, index) => {
      const from = (run.first + index) * each;
      return [`${round(from)},${round(yOf(value))}`, `${round(from + each)},${round(yOf(value))}`];
    })
    .join(" ");
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
