/** Applies manifests as they were planned: policies first, and nothing that another has changed meanwhile. */

import { ApiError, request } from "../../api/request";

/** The fields of a manifest that name it; the rest is its spec. */
function split(manifest: Record<string, unknown>): { kind: string; name: string; spec: Record<string, unknown> } {
  const { kind, name, ...spec } = manifest;
  return { kind: typeof kind === "string" ? kind : "Deployment", name: String(name), spec };
}

const CONFLICT = 412;

/**
 * Applies all manifests. Gives the page of the first deployment.
 *
 * `generations` are those that the plan was made against: a deployment that another has changed meanwhile is refused.
 */
export async function applyAll(
  manifests: readonly Record<string, unknown>[],
  generations: Readonly<Record<string, number>>,
): Promise<string> {
  const parts = manifests.map(split);
  const ordered = [
    ...parts.filter((one) => one.kind !== "Deployment"),
    ...parts.filter((one) => one.kind === "Deployment"),
  ];
  for (const { kind, name, spec } of ordered) {
    const path = `${kind === "Deployment" ? "deployments" : "policies"}/${encodeURIComponent(name)}`;
    const generation = kind === "Deployment" ? generations[name] : undefined;
    try {
      const headers: Record<string, string> = generation === undefined ? {} : { "If-Match": `"${generation}"` };
      await request(path, { method: "PUT", body: spec, headers });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== CONFLICT) throw error;
      const message = `${name} was changed by another meanwhile. The plan is made anew: look at it, and apply again.`;
      throw new ApiError(error.status, error.code, message, error.details);
    }
  }
  const first = parts.find((one) => one.kind === "Deployment");
  return first ? `/ui/deployments/${first.name}` : "/ui/policies";
}
