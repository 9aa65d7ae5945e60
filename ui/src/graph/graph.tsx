import { percent } from "../format/numbers";
import { span } from "../format/times";
import { points, runsOf } from "./points";

const WIDTH = 600;
const HEIGHT = 72;

interface GraphProps {
  /** What it is of, for readers that do not see it. */
  name: string;
  /** Percent, oldest first, each slot as long as the others; null where there is no sample. */
  values: readonly (number | null)[];
  windowS: number;
  /** The percentage below which a policy finds it idle, and over which time. */
  mark?: { below: number; overS: number } | null;
}

/** Percent over time. Where there is no sample there is no line. */
export function Graph({ name, values, windowS, mark }: GraphProps) {
  const seen = values.filter((value) => value !== null);
  const said = seen.length
    ? `last ${percent(seen.at(-1))}, highest ${percent(Math.max(...seen))}, samples for ${percent((100 * seen.length) / values.length)} of the time`
    : "no sample";
  const rule = mark ? `; the policy asks whether it stays below ${mark.below} % for ${span(mark.overS)}` : "";
  const from = mark ? WIDTH * Math.max(0, 1 - mark.overS / windowS) : WIDTH;
  return (
    <svg
      class="graph"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={`Utilization of ${name} over ${span(windowS)}: ${said}${rule}`}
    >
      {mark && <rect class="graph-window" data-part="window" x={from} y={0} width={WIDTH - from} height={HEIGHT} />}
      {[0, 50, 100].map((level) => (
        <line key={level} class="graph-level" x1={0} x2={WIDTH} y1={yOf(level)} y2={yOf(level)} />
      ))}
      {runsOf(values).map((run) => (
        <polyline key={run.first} class="graph-line" data-part="line" points={points(run, values.length, WIDTH, yOf)} />
      ))}
      {mark && (
        <line class="graph-mark" data-part="threshold" x1={0} x2={WIDTH} y1={yOf(mark.below)} y2={yOf(mark.below)} />
      )}
    </svg>
  );
}

function yOf(value: number): number {
  return HEIGHT - 1 - (Math.min(100, Math.max(0, value)) / 100) * (HEIGHT - 2);
}
