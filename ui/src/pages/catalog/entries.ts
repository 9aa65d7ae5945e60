/** Models of the cluster, each with where it is deployed and cached, and what it needs. Pure. */

import type { Deployment, Instance } from "../../api/types";
import { compareNames } from "../../live/collection";

export interface Entry {
  model: string;
  deployments: string[];
  cachedOn: string[];
  /** What its newest placed instance claims on each GPU; null: none is placed. */
  needMib: number | null;
}

/** All models, by name. */
export function entriesOf(
  deployments: readonly Deployment[],
  instances: readonly Instance[],
  cached: ReadonlyMap<string, readonly string[]>,
): Entry[] {
  const entries = new Map<string, Entry>();
  const entry = (model: string): Entry => {
    let found = entries.get(model);
    if (!found) {
      found = { model, deployments: [], cachedOn: [], needMib: null };
      entries.set(model, found);
    }
    return found;
  };
  for (const one of deployments) if (one.spec.model) entry(one.spec.model).deployments.push(one.name);
  for (const one of instances) {
    const claim = one.status.claims.find((each) => each.kind === "gpu");
    if (one.spec.model && claim) entry(one.spec.model).needMib = claim.memory_mib;
  }
  for (const [model, workers] of cached) entry(model).cachedOn.push(...[...workers].sort(compareNames));
  return [...entries.values()].sort((a, b) => compareNames(a.model, b.model));
}

/** A manifest that deploys a model once, with a name made of the model's. */
export function manifestFor(model: string): string {
  const last = model.split("@")[0]?.split(/[/:]/).at(-1) ?? "model";
  const name = last
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 63);
  return `kind: Deployment\nname: ${name || "model"}\nmodel: ${JSON.stringify(model)}\nreplicas: 1\n`;
}
