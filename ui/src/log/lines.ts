/** The lines of a log: a bounded buffer, and those of it that a filter keeps. Pure. */

import { parseLine, type Piece, plainText, PLAIN, type Style } from "./ansi";

/** One line as it is shown. */
export interface Line {
  /** Its number since the log was opened; lines keep it when older ones leave. */
  number: number;
  instance: string;
  rank: number;
  at: string | null;
  pieces: Piece[];
  text: string;
  /** Said by Gpuward, not by the engine. */
  note: boolean;
}

/** What the API sends for a line: the engine's, the end of a process, or a note. */
export interface Sent {
  instance: string;
  rank: number;
  epoch: number;
  at?: string | null;
  line?: string;
  end?: { reason: string | null; exit_code: number | null; message: string; at: string | null; words: string };
  note?: { code: string; message: string };
}

export type Keep = (line: Line) => boolean;

const LONGEST = 20_000;

/** The newest `most` lines. */
export class LineBuffer {
  private lines: Line[] = [];
  private kept: Line[] | null = null;
  private readonly styles = new Map<string, Style>();
  private next = 0;
  private keep: Keep | null = null;
  /** How many lines have left at the front. */
  dropped = 0;

  constructor(private readonly most: number) {}

  get all(): readonly Line[] {
    return this.lines;
  }

  /** The lines that the filter keeps. */
  get shown(): readonly Line[] {
    return this.kept ?? this.lines;
  }

  /** Sets the filter for what is there and for what comes. Null keeps all. */
  filter(keep: Keep | null): void {
    this.keep = keep;
    this.kept = keep ? this.lines.filter(keep) : null;
  }

  /** Adds what came. Returns how many lines of it are shown. */
  add(sent: readonly Sent[]): number {
    const before = this.shown.at(-1)?.number ?? -1;
    for (const one of sent) {
      const line = this.lineOf(one);
      if (!line) continue;
      this.lines.push(line);
      if (this.kept && this.keep?.(line)) this.kept.push(line);
    }
    const over = this.lines.length - this.most;
    // Leaving lines go in larger steps: each step moves the whole buffer.
    if (over > this.most / 10) {
      this.lines = this.lines.slice(over);
      this.dropped += over;
      const first = this.lines[0]?.number ?? 0;
      if (this.kept) this.kept = this.kept.filter((line) => line.number >= first);
    }
    let fresh = 0;
    for (let place = this.shown.length - 1; place >= 0 && (this.shown[place]?.number ?? -1) > before; place--) fresh++;
    return fresh;
  }

  private lineOf(sent: Sent): Line | null {
    const { instance, rank } = sent;
    const own = { number: this.next, instance, rank, at: sent.at ?? null };
    if (sent.line !== undefined) {
      this.next++;
      const key = `${instance} ${rank}`;
      const cut = sent.line.length > LONGEST ? `${sent.line.slice(0, LONGEST)} …` : sent.line;
      const { pieces, after } = parseLine(cut, this.styles.get(key) ?? PLAIN);
      this.styles.set(key, after);
      return { ...own, pieces, text: plainText(pieces), note: false };
    }
    const said = sent.end ? `the process has ${endWords(sent.end)}` : sent.note?.message;
    if (said === undefined) return null;
    this.next++;
    return { ...own, at: sent.end?.at ?? own.at, pieces: [{ text: said, style: "" }], text: said, note: true };
  }
}

/** How a process ended, without the time: "exited with code 3". */
export function endWords(end: NonNullable<Sent["end"]>): string {
  return end.exit_code === null ? `ended: ${end.reason ?? "gone"}` : `exited with code ${end.exit_code}`;
}

/** What a search keeps: lines with the text whatever its case, or those that a regular expression matches. */
export function keeping(search: string, isRegExp: boolean): Keep | null {
  if (!search) return null;
  if (isRegExp) {
    const pattern = new RegExp(search, "iu");
    return (line) => pattern.test(line.text);
  }
  const wanted = search.toLowerCase();
  return (line) => line.text.toLowerCase().includes(wanted);
}

/** Reads JSON lines out of chunks of text, which may end anywhere. */
export class JsonLines {
  private rest = "";

  feed(chunk: string): Sent[] {
    const parts = (this.rest + chunk).split("\n");
    this.rest = parts.pop() ?? "";
    return parts.filter((part) => part).map((part) => JSON.parse(part) as Sent);
  }
}
