/** What the objects say of themselves, in a line. */

import type { Deployment, Instance } from "../api/types";

/** Why an instance has its phase; for a pending one why it is pending. */
export function whyInstance({ status }: Instance): string {
  if (status.phase === "pending" && status.explain?.message) return status.explain.message;
  const sick = status.claims.find((claim) => claim.kind === "gpu" && claim.health !== "ok");
  const ofGpu = sick ? `${sick.device} is ${sick.health}: ${sick.health_reason}` : "";
  return status.message || status.reason || ofGpu;
}

export function whyDeployment({ status }: Deployment): string {
  return status.message || status.reason;
}

/** "3", or "0 to 4" of a range. */
export function replicasText(replicas: Deployment["spec"]["replicas"]): string {
  return typeof replicas === "number" ? String(replicas) : `${replicas.min} to ${replicas.max}`;
}

/** The model without its scheme: `hf:Qwen/Qwen3-0.6B` is Qwen/Qwen3-0.6B. A custom command is its program. */
export function modelText({ spec }: Deployment): string {
  return spec.model ?? spec.command.join(" ");
}
