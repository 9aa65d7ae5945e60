/** Applies manifests as they were planned: all of them or none, and nothing that another has changed meanwhile. */

import { request } from "../../api/request";
import type { Plan } from "../../api/types";

interface Applied {
  items: { kind: string; name: string }[];
}

/** Applies all manifests. Gives the page of the first deployment. */
export async function applyAll(manifests: readonly Record<string, unknown>[], plan: Plan): Promise<string> {
  const expected = { deployments: plan.generations ?? {}, policies: plan.policy_generations ?? {} };
  const { items } = await request<Applied>("apply", { method: "POST", body: { manifests, expected } });
  const first = items.find((one) => one.kind === "Deployment");
  return first ? `/ui/deployments/${first.name}` : "/ui/policies";
}
