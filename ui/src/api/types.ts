/** The API's objects, by name. `schema.d.ts` is generated from the controller's OpenAPI document by `make ui`. */

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Deployment = Schemas["DeploymentView"];
export type DeploymentLoad = Schemas["DeploymentLoad"];
export type Instance = Schemas["InstanceView"];
export type Worker = Schemas["WorkerView"];
export type Gpu = Schemas["GpuView"];
export type Policy = Schemas["PolicyView"];
export type Event = Schemas["EventView"];
export type Plan = Schemas["PlanView"];
export type Explain = Schemas["Explain"];
export type IdleStretches = Schemas["IdleStretches"];
export type IdleReport = Schemas["IdleReport"];
export type CatalogView = Schemas["CatalogView"];
export type CatalogModel = Schemas["CatalogModel"];
export type IdleFigures = Schemas["IdleFigures"];
export type Key = Schemas["KeyView"];
export type Secret = Schemas["SecretView"];
export type KeyCreated = Schemas["KeyCreated"];
export type Token = Schemas["TokenView"];
export type TokenCreated = Schemas["TokenCreated"];
export type Revision = Schemas["RevisionView"];
export type RevisionDiff = Schemas["RevisionDiff"];
export type Utilization = Schemas["UtilizationView"];

export type Me = Schemas["MeView"];
export type AttentionList = Schemas["AttentionList"];
export type AttentionEntry = Schemas["AttentionEntry"];
export type PendingList = Schemas["PendingList"];
export type Pending = Schemas["PendingView"];
export type FieldChange = Schemas["FieldChange"];

export interface Page<T> {
  items: T[];
  next?: string | null;
}
export type PlanItem = Schemas["PlanItem"];
export type PlanCandidates = Schemas["PlanCandidates"];
