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

const UNITS_MS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const PARTS = /(\d+(?:\.\d+)?)(ms|[smhd])/g;
const WITH_ZONE = /(?:z|[+-]\d\d:?\d\d)$/i;

/** The moment after which events are wanted, in milliseconds: so long before now, or as it is written; null: all. */
export function afterMs(after: string, nowMs: number): number | null {
  const text = after.trim();
  if (!text) return null;
  if (/^\d+(?:\.\d+)?$/.test(text)) return nowMs - Number(text) * 1000;
  if (!text.toLowerCase().replace(PARTS, "")) {
    const parts = [...text.toLowerCase().matchAll(PARTS)];
    return nowMs - parts.reduce((sum, [, number, unit = ""]) => sum + Number(number) * (UNITS_MS[unit] ?? 0), 0);
  }
  const written = Date.parse(WITH_ZONE.test(text) ? text.replace(" ", "+") : `${text}Z`);
  return Number.isNaN(written) ? null : written;
}

/** Whether an event is one of these. The API judges `after` when it reads; here it is judged anew, as time goes on. */
export function isWanted(event: Event, { reason, kind, name, after }: EventFilter, nowMs: number): boolean {
  const from = afterMs(after, nowMs);
  if (from !== null && Date.parse(event.at) <= from) return false;
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
