/** A log as it is read: one request at a time, whose lines come in batches, one per frame. */

import { signal } from "@preact/signals";
import { asApiError } from "../api/load";
import { type ApiError, stream } from "../api/request";
import { JsonLines, LineBuffer, type Sent } from "./lines";

export type Reading =
  | { state: "opening" }
  | { state: "following" }
  | { state: "ended"; end: Sent["end"] | null }
  | { state: "failed"; error: ApiError };

/** As many lines are held. */
export const MOST_LINES = 100_000;

export class LogStream {
  readonly reading = signal<Reading>({ state: "opening" });
  /** Counts up with every change of the lines. */
  readonly version = signal(0);
  buffer = new LineBuffer(MOST_LINES);
  private ended = new AbortController();
  private waiting: Sent[] = [];
  private due = false;

  /** `onLines` is told how many of the lines that came are shown. */
  constructor(private readonly onLines: (fresh: number) => void) {}

  /** Reads a log from its beginning; what was shown before goes. */
  open(path: string): void {
    this.close();
    this.ended = new AbortController();
    this.buffer = new LineBuffer(MOST_LINES);
    this.waiting = [];
    this.version.value++;
    this.reading.value = { state: "opening" };
    void this.read(path, this.ended.signal);
  }

  close(): void {
    this.ended.abort();
  }

  private async read(path: string, over: AbortSignal): Promise<void> {
    let end: Sent["end"] | null = null;
    try {
      const lines = new JsonLines();
      const decoder = new TextDecoder();
      const response = await stream(path, over);
      if (over.aborted) return;
      this.reading.value = { state: "following" };
      const reader = response.body?.getReader();
      for (;;) {
        const part = await reader?.read();
        if (over.aborted || !part || part.done) break;
        const sent = lines.feed(decoder.decode(part.value, { stream: true }));
        end = sent.findLast((one) => one.end)?.end ?? end;
        this.take(sent);
      }
      if (!over.aborted) this.reading.value = { state: "ended", end };
    } catch (error) {
      if (!over.aborted) this.reading.value = { state: "failed", error: asApiError(error) };
    }
  }

  private take(sent: Sent[]): void {
    for (const one of sent) this.waiting.push(one);
    if (this.due) return;
    this.due = true;
    const show = (): void => {
      this.due = false;
      const came = this.waiting;
      this.waiting = [];
      const fresh = this.buffer.add(came);
      this.version.value++;
      this.onLines(fresh);
    };
    if (document.hidden) setTimeout(show, 250);
    else requestAnimationFrame(show);
  }
}
