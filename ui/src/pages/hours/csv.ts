/** The report as CSV, byte for byte as `gpuward report idle -o csv` writes it. Pure. */

import type { IdleReport } from "../../api/types";

const TITLES = [
  "deployment",
  "uid",
  "deleted",
  "policy",
  "min_gpu_utilization",
  "claimed_gpu_hours",
  "used_gpu_hours",
  "wasted_gpu_hours",
  "unknown_gpu_hours",
  "freed_gpu_hours",
  "would_free_gpu_hours",
  "currency",
  "claimed_cost",
  "used_cost",
  "wasted_cost",
  "unknown_cost",
  "would_free_cost",
];

/** A field; in quotes where it holds what separates fields. */
function field(value: string): string {
  return /[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
}

/** One line per deployment, in the order of the report. Hours have four decimals, amounts two; unknown is empty. */
export function csvOf(report: IdleReport): string {
  const rows = report.items.map(
    ({ deployment, uid, deleted, policy, min_gpu_utilization: below, gpu_hours: hours, cost }) => [
      deployment,
      uid,
      String(deleted),
      policy,
      String(below),
      ...[hours.claimed, hours.used, hours.wasted, hours.unknown, hours.freed, hours.would_free].map((value) =>
        value == null ? "" : fixed(value),
      ),
      report.currency ?? "",
      ...[cost?.claimed, cost?.used, cost?.wasted, cost?.unknown, cost?.would_free].map((amount) => amount ?? ""),
    ],
  );
  return [TITLES, ...rows].map((row) => `${row.map(field).join(",")}\n`).join("");
}

/** Four decimals, exact halves to even as Python rounds them. */
function fixed(value: number): string {
  // Of numbers in binary, only odd multiples of 1/32 lie exactly between two figures of four decimals.
  if (Math.abs(value * 32) % 2 !== 1) return value.toFixed(4);
  const below = Math.floor(value * 10_000);
  return ((below % 2 ? below + 1 : below) / 10_000).toFixed(4);
}
