/** The filters of the page Events: as the address, as the API's parameters, and as a test of one event. Pure. */

import type { Event } from "../../api/types";

export interface EventFilter {
  reason: string;
  kind: string;
  name: string;
  /** How far back, such as 1h; empty: all. */
  after: string;
}

export const KINDS = ["deployment", "instance", "worker", "gpu", "policy", "key", "token", "secret"] as const;
export const PERIODS = ["10m", "1h", "1d", "7d"] as const;

export function filterOf(search: string): EventFilter {
  const given = new URLSearchParams(search);
  // An address of before: object=deployment/chat.
  const [, kind = "", name = ""] = /^([a-z]+)[/:](.*)$/.exec(given.get("object") ?? "") ?? [];
  return {
    reason: given.get("reason") ?? "",
    kind: given.get("kind") ?? kind,
    name: given.get("name") ?? name,
    after: given.get("after") ?? "",
  };
}

/** The filter as the page's address has it; without what is not set. */
export function addressOf(filter: EventFilter): string {
  const set = Object.entries(filter).filter(([, value]) => (value as string).trim());
  return new URLSearchParams(set.map(([key, value]) => [key, (value as string).trim()])).toString();
}

/** The filter as the API takes it. It has none for a kind alone: those events are chosen here. */
export function parametersOf({ reason, kind, name, after }: EventFilter): string {
  const query = new URLSearchParams();
  if (reason.trim()) query.set("reason", reason.trim());
  if (kind && name.trim()) query.set("object", `${kind}/${name.trim()}`);
  if (after) query.set("after", after);
  return query.toString();
}

/** Whether an event that comes is one of these. */
export function isWanted(event: Event, { reason, kind, name }: EventFilter): boolean {
  const reasons = reason.split(",").flatMap((one) => one.trim() || []);
  if (reasons.length && !reasons.includes(event.reason)) return false;
  if (!kind) return true;
  const ofKind = event.subjects.filter((one) => one.kind.toLowerCase() === kind);
  return name.trim() ? ofKind.some((one) => one.name === name.trim() || one.uid === name.trim()) : ofKind.length > 0;
}

/** The periods to choose from, with the one of the address where it is another. */
export function withGiven(periods: readonly string[], given: string): readonly string[] {
  return !given || periods.includes(given) ? periods : [given, ...periods];
}
