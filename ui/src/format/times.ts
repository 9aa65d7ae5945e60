/** Times and ages. Times are shown in the reader's zone, which is named. */

import { signal } from "@preact/signals";

/** The present to the second, in milliseconds, corrected by the controller's clock where it is known. */
export const now = signal(Date.now());
let aheadMs = 0;
setInterval(() => {
  now.value = Date.now() + aheadMs;
}, 1000);

/** Notes what time the controller has, so that ages are right on a machine whose clock is wrong. */
export function noteServerTime(header: string | null): void {
  const there = header === null ? Number.NaN : Date.parse(header);
  if (Number.isNaN(there)) return;
  const ahead = there - Date.now();
  aheadMs = Math.abs(ahead) > 2000 ? ahead : 0;
}

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

/** An age in one unit, as the command line writes it: 45s, 61s, 12m, 5h, 3d. */
export function age(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 2 * MINUTE) return `${whole}s`;
  if (whole < 2 * HOUR) return `${Math.floor(whole / MINUTE)}m`;
  if (whole < 2 * DAY) return `${Math.floor(whole / HOUR)}h`;
  return `${Math.floor(whole / DAY)}d`;
}

/** A duration in its two largest units: 50s, 4m10s, 2h05m, 3d04h; below ten seconds with a decimal. */
export function duration(seconds: number): string {
  if (seconds > 0 && seconds < 10) return `${Math.round(seconds * 10) / 10}s`;
  const whole = Math.max(0, Math.floor(seconds));
  for (const [unit, name, part, partName] of [
    [DAY, "d", HOUR, "h"],
    [HOUR, "h", MINUTE, "m"],
    [MINUTE, "m", 1, "s"],
  ] as const) {
    if (whole >= unit) {
      const rest = String(Math.floor((whole % unit) / part)).padStart(2, "0");
      return `${Math.floor(whole / unit)}${name}${rest}${partName}`;
    }
  }
  return `${whole}s`;
}

/** A policy's window or grace: 90s, 10m, 7d. */
export function span(seconds: number): string {
  for (const [unit, name] of [
    [DAY, "d"],
    [HOUR, "h"],
    [MINUTE, "m"],
  ] as const) {
    if (seconds >= unit && seconds % unit === 0) return `${seconds / unit}${name}`;
  }
  return `${seconds}s`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const fullFormat = new Intl.DateTimeFormat("en-GB", {
  year: "numeric",
  month: "short",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  timeZoneName: "short",
});

/** 14:05:12 in the reader's zone. */
export function clock(moment: string | number): string {
  return clockFormat.format(new Date(moment));
}

const minuteFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short" });

/** 14:05 in the reader's zone; on another day than today 24 Nov, 14:05. */
export function minuteOfDay(moment: string | number): string {
  const at = new Date(moment);
  const text = minuteFormat.format(at);
  const today = at.toDateString() === new Date(now.value).toDateString();
  return today ? text : `${dayFormat.format(at)}, ${text}`;
}

/** 23 Nov 2026, 14:05:12 CET. */
export function fullTime(moment: string | number): string {
  return fullFormat.format(new Date(moment));
}

/** Seconds from a moment until now; negative for one to come. */
export function secondsSince(moment: string): number {
  return (now.value - Date.parse(moment)) / 1000;
}
