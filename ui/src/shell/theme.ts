/** Light, dark, or as the system has it. Kept in this browser. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const STORED = "gpuward.theme";

function stored(): Theme {
  const value = localStorage.getItem(STORED);
  return value === "light" || value === "dark" ? value : "system";
}

export const theme = signal<Theme>(stored());

/** Whether dark colours are in use now. */
export const isDark = signal(false);
const system = matchMedia("(prefers-color-scheme: dark)");
const note = (): void => {
  isDark.value = theme.value === "dark" || (theme.value === "system" && system.matches);
};
system.addEventListener("change", note);

effect(() => {
  if (theme.value === "system") {
    localStorage.removeItem(STORED);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(STORED, theme.value);
    document.documentElement.dataset.theme = theme.value;
  }
  note();
});
