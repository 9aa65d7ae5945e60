import type { Worker } from "../../api/types";

/** The engines that a worker has, with their versions, as `gpuward describe worker` lists them. */
export function engineText(engines: Worker["status"]["engines"]): string {
  if (!engines) {
    return "unknown";
  }
  return engines.map((one) => [one.name, one.version].filter(Boolean).join(" ")).join(", ") || "none installed";
}
