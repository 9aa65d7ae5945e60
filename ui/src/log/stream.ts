/** The logs that a viewer shows: followed over the live connection, or read once of the previous start. */

import { signal } from "@preact/signals";
import { asApiError } from "../api/load";
import { ApiError, stream } from "../api/request";
import type { LiveMessage, LiveSocket } from "../live/socket";
import { JsonLines, LineBuffer } from "./lines";
import { type Sent, type Source, Sources } from "./sources";

export type Reading = { state: "opening" | "following" | "ended" } | { state: "failed"; error: ApiError };

/** As many lines are held, of all logs together. */
export const MOST_LINES = 100_000;
/** As many are parsed for one frame. */
const OF_FRAME = 4000;
const HIDDEN_MS = 250;

/** Which logs: those of a deployment, or of one of its instances. */
export interface Wanted {
  deployment: string;
  instance: string | null;
}

export class LogStream {
  readonly reading = signal<Reading>({ state: "opening" });
  /** Counts up with every change of the lines or of what is followed. */
  readonly version = signal(0);
  buffer = new LineBuffer(MOST_LINES);
  sources = new Sources();
  private end: () => void = () => undefined;
  private waiting: Sent[] = [];
  private due = false;

  /** `onLines` is told how many of the lines that came are shown. */
  constructor(private readonly onLines: (fresh: number) => void) {}

  /** Follows logs, of each at most the last `tail` lines at first; what was shown before goes. */
  follow(live: LiveSocket, { deployment, instance }: Wanted, tail: number): void {
    this.begin();
    const params = (): Record<string, unknown> => ({ deployment, instance, tail, after: this.sources.after() });
    const over = live.open("logs", params, (message) => {
      if (message.type === "opened") this.reading.value = { state: "following" };
      else if (message.type === "sources") {
        this.sources.follow(message.sources as Source[]);
        this.version.value++;
      } else if (message.type === "lines") this.take(message.items as Sent[]);
      else if (message.type === "error") this.reading.value = { state: "failed", error: errorOf(message) };
      else if (message.type === "end") {
        over();
        this.reading.value = { state: "ended" };
      }
    });
    this.end = over;
  }

  /** Reads the last `tail` lines of each log of the previous start. */
  readPrevious({ deployment, instance }: Wanted, tail: number): void {
    this.begin();
    const ended = new AbortController();
    this.end = () => ended.abort();
    const of = instance === null ? "" : `&instance=${encodeURIComponent(instance)}`;
    const path = `deployments/${encodeURIComponent(deployment)}/logs?format=json&previous=true&tail=${tail}${of}`;
    void this.read(path, ended.signal);
  }

  close(): void {
    this.end();
    this.end = () => undefined;
  }

  private begin(): void {
    this.close();
    this.buffer = new LineBuffer(MOST_LINES);
    this.sources = new Sources();
    this.waiting = [];
    this.reading.value = { state: "opening" };
    this.version.value++;
  }

  private async read(path: string, over: AbortSignal): Promise<void> {
    try {
      const lines = new JsonLines();
      const decoder = new TextDecoder();
      const reader = (await stream(path, over)).body?.getReader();
      const known = new Map<string, Source>();
      for (;;) {
        const part = await reader?.read();
        if (over.aborted) return;
        if (!part || part.done) break;
        const sent = lines.feed(decoder.decode(part.value, { stream: true }));
        for (const { instance, rank, epoch } of sent) known.set(`${instance}/${rank}`, { instance, rank, epoch });
        this.sources.follow([...known.values()]);
        this.take(sent);
      }
      this.reading.value = { state: "ended" };
    } catch (error) {
      if (!over.aborted) this.reading.value = { state: "failed", error: asApiError(error) };
    }
  }

  private take(sent: readonly Sent[]): void {
    for (const one of this.sources.take(sent)) this.waiting.push(one);
    this.schedule();
  }

  private schedule(): void {
    if (this.due || !this.waiting.length) return;
    this.due = true;
    const show = (): void => {
      clearTimeout(timer);
      cancelAnimationFrame(frame);
      this.due = false;
      const came = this.waiting.splice(0, document.hidden ? this.waiting.length : OF_FRAME);
      const fresh = this.buffer.add(came);
      this.version.value++;
      this.onLines(fresh);
      this.schedule();
    };
    const frame = requestAnimationFrame(show);
    const timer = setTimeout(show, HIDDEN_MS); // a hidden page draws no frames
  }
}

function errorOf(message: LiveMessage): ApiError {
  const { code, message: text, details } = message.error as ErrorForm;
  return new ApiError(0, code, text, details ?? {});
}
interface ErrorForm {
  code: string;
  message: string;
  details?: Record<string, unknown>;
}
