/** The lines of logs: a bounded buffer, and those of it that a filter keeps. Pure. */

import { parseLine, type Piece, plainText, PLAIN, type Style } from "./ansi";
import { endWords, isWanted, type Only, type Sent } from "./sources";

/** One line as it is shown. */
export interface Line {
  /** Its number since the log was opened; lines keep it when older ones leave. */
  number: number;
  instance: string;
  rank: number;
  at: string | null;
  pieces: Piece[];
  text: string;
  /** How many columns of the window it takes. */
  cells: number;
  /** Said by Gpuward, not by the engine. */
  note: boolean;
}

export type Keep = (line: Line) => boolean;

const LONGEST = 20_000;

/** The newest `most` lines, and no more than so many characters. */
export class LineBuffer {
  private lines: Line[] = [];
  private kept: Line[] | null = null;
  private readonly styles = new Map<string, Style>();
  private next = 0;
  private characters = 0;
  private keep: Keep | null = null;
  /** How many lines have left at the front. */
  dropped = 0;

  constructor(
    private readonly most: number,
    private readonly mostCharacters = 50_000_000,
  ) {}

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
    let fresh = 0;
    for (const one of sent) {
      const line = this.lineOf(one);
      if (!line) continue;
      this.lines.push(line);
      this.characters += line.text.length;
      const isShown = this.keep?.(line) ?? true;
      if (isShown) this.kept?.push(line);
      if (isShown) fresh++;
    }
    this.trim();
    return Math.min(fresh, this.shown.length);
  }

  /** Leaving lines go in larger steps: each step moves the whole buffer. */
  private trim(): void {
    let leaving = this.lines.length > this.most * 1.1 ? this.lines.length - this.most : 0;
    let left = this.characters - lengthOf(this.lines, 0, leaving);
    if (left > this.mostCharacters * 1.1)
      while (left > this.mostCharacters && leaving < this.lines.length) left -= this.lines[leaving++]?.text.length ?? 0;
    if (!leaving) return;
    this.lines = this.lines.slice(leaving);
    this.characters = left;
    this.dropped += leaving;
    const first = this.lines[0]?.number ?? this.next;
    if (this.kept) this.kept = this.kept.filter((line) => line.number >= first);
  }

  private lineOf(sent: Sent): Line | null {
    const { instance, rank } = sent;
    const own = { instance, rank, at: sent.at ?? sent.end?.at ?? null };
    const key = `${instance} ${rank}`;
    if (sent.line !== undefined) {
      const cut = sent.line.length > LONGEST ? `${sent.line.slice(0, LONGEST)} …` : sent.line;
      const { pieces, after } = parseLine(cut, this.styles.get(key) ?? PLAIN);
      this.styles.set(key, after);
      const text = plainText(pieces);
      return { ...own, number: this.next++, pieces, text, cells: cellsOf(text), note: false };
    }
    const said = sent.end ? `the process has ${endWords(sent.end)}` : sent.note?.message;
    if (said === undefined) return null;
    if (sent.end) this.styles.delete(key); // the next start begins without colours
    const pieces = [{ text: said, style: "" }];
    return { ...own, number: this.next++, pieces, text: said, cells: said.length, note: true };
  }
}

function lengthOf(lines: readonly Line[], from: number, to: number): number {
  let sum = 0;
  for (let place = from; place < to; place++) sum += lines[place]?.text.length ?? 0;
  return sum;
}

const NARROW = /^[\x20-\x7e]*$/;
// Wide in a terminal and in monospaced fonts: East Asian scripts, full forms, emoji.
const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const TAB = 8;

/** The columns that a text takes in the window. */
export function cellsOf(text: string): number {
  if (NARROW.test(text)) return text.length;
  let cells = 0;
  for (const character of text) {
    if (character === "\t") cells += TAB - (cells % TAB);
    else cells += WIDE.test(character) ? 2 : 1;
  }
  return cells;
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

/** What a search in some of the logs keeps, and what is wrong with its expression. */
export function filterOf(search: string, isRegExp: boolean, only: Only): { keep: Keep | null; problem: string } {
  let found: Keep | null = null;
  let problem = "";
  try {
    found = keeping(search, isRegExp);
  } catch (error) {
    problem = error instanceof Error ? error.message : String(error);
  }
  if (only.instance === null && only.rank === null) return { keep: found, problem };
  return { keep: (line) => isWanted(line, only) && (found?.(line) ?? true), problem };
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
