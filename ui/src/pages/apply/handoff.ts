/** Hands a manifest from another page to the page Apply, in this tab alone. */

const STORED = "gpuward.draft";

/** Keeps the text for the next opening of the page Apply. */
export function handToApply(text: string): void {
  sessionStorage.setItem(STORED, text);
}

/** The text that another page has left, or what was typed before a reload. */
export function handedText(): string {
  return sessionStorage.getItem(STORED) ?? "";
}
