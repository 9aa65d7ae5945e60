/** Manifests of what is deployed, as YAML. */

import { request } from "../api/request";
import type { Deployment } from "../api/types";
import { type Schema, type Schemas, withoutDefaults } from "./defaults";

let read: Promise<Schemas> | null = null;

/** The schemas of this controller, read once: its defaults are those that count. */
function schemas(): Promise<Schemas> {
  read ??= request<{ components: { schemas: Schemas } }>("/openapi.json").then(
    (document) => document.components.schemas,
    (error: unknown) => {
      read = null;
      throw error;
    },
  );
  return read;
}

/** The manifest of a deployment without defaults, under its own name or another. Applied as it is, it changes nothing. */
export async function manifestOf(deployment: Deployment, name = deployment.name): Promise<string> {
  const [known, { stringify }] = await Promise.all([schemas(), import("yaml")]);
  const schema: Schema = known.DeploymentSpec ?? {};
  const spec = withoutDefaults(deployment.spec, schema, known) as Record<string, unknown>;
  return stringify({ kind: "Deployment", name, ...spec }, { version: "1.1", lineWidth: 0 });
}

const DRAFT = "gpuward.draft";
const PROPOSED = "gpuward.draft.proposed";
const SET_ASIDE = "gpuward.draft.aside";

/** Keeps a manifest for the page Apply, which this tab opens next. */
export function keepDraft(text: string): void {
  sessionStorage.setItem(DRAFT, text);
}

/** The manifest that was kept for the page Apply; empty: none was. It stays until another one is kept. */
export function keptDraft(): string {
  return sessionStorage.getItem(DRAFT) ?? "";
}

/** Puts a proposal into the page Apply. What the user has written there is set aside. */
export function proposeDraft(text: string): void {
  const stood = keptDraft();
  if (stood && stood !== text && stood !== sessionStorage.getItem(PROPOSED)) sessionStorage.setItem(SET_ASIDE, stood);
  sessionStorage.setItem(PROPOSED, text);
  keepDraft(text);
}

/** The user's draft that a proposal has set aside; empty: none was. */
export function draftAside(): string {
  return sessionStorage.getItem(SET_ASIDE) ?? "";
}

/** Forgets the draft that was set aside, once the user has it back. */
export function forgetAside(): void {
  sessionStorage.removeItem(SET_ASIDE);
}
