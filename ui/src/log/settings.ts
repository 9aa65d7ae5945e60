/** How logs are shown, kept in this browser. */

import { effect, signal } from "@preact/signals";

export interface LogSettings {
  wrap: boolean;
  times: boolean;
  regExp: boolean;
}
const KEPT = "gpuward.log";
const FIRST: LogSettings = { wrap: false, times: false, regExp: false };

function kept(): LogSettings {
  try {
    return { ...FIRST, ...(JSON.parse(localStorage.getItem(KEPT) ?? "{}") as Partial<LogSettings>) };
  } catch {
    return FIRST;
  }
}

export const logSettings = signal<LogSettings>(kept());
effect(() => {
  const text = JSON.stringify(logSettings.value);
  try {
    localStorage.setItem(KEPT, text);
  } catch {
    // A browser that keeps nothing shows logs all the same.
  }
});

export function setLog(change: Partial<LogSettings>): void {
  logSettings.value = { ...logSettings.value, ...change };
}
