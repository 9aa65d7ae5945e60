/** The GPUs of the cluster as the scheduler judges them for a planned deployment. */

import type { Plan, PlanCandidates } from "../../api/types";

export interface Candidate {
  uuid: string;
  worker: string;
  index: number;
  selectable: boolean;
  code: string;
  message: string;
  since: string | null;
}

/** The candidates of a deployment, in the order of the answer; none where the controller sent none. */
export function candidatesOf(plan: Plan, deployment: string): Candidate[] {
  const columns: PlanCandidates | undefined = plan.candidates?.[deployment];
  if (!columns) return [];
  return columns.uuid.map((uuid, i) => ({
    uuid,
    worker: columns.workers[columns.worker[i] ?? -1] ?? "",
    index: columns.index[i] ?? 0,
    selectable: columns.selectable[i] ?? false,
    code: columns.code[i] ?? "",
    message: columns.message[i] ?? "",
    since: columns.since[i] ?? null,
  }));
}
