/** Which logs are followed, how far each has come, and how those that ended did. Pure. */

/** The log of one start of one process. */
export interface Source {
  instance: string;
  rank: number;
  epoch: number;
}

/** How a process ended. */
export interface End {
  reason: string | null;
  exit_code: number | null;
  message: string;
  at: string | null;
  words: string;
}

/** What the API sends: a line of the engine, the end of a process, or a note of Gpuward. */
export interface Sent extends Source {
  at?: string | null;
  position?: number | null;
  line?: string;
  end?: End;
  note?: { code: string; message: string };
}

/** What is shown of all: one instance, one rank of each, or both. Null: all. */
export interface Only {
  instance: string | null;
  rank: number | null;
}
export const ALL: Only = { instance: null, rank: null };

export function isWanted(one: { instance: string; rank: number }, only: Only): boolean {
  return (only.instance ?? one.instance) === one.instance && (only.rank ?? one.rank) === one.rank;
}

/** The processes of a page's logs. */
export class Sources {
  followed: readonly Source[] = [];
  private readonly last = new Map<string, { position: number; atMs: number }>();
  private readonly ends = new Map<string, End>();

  /** Takes the place of what was followed before. */
  follow(sources: readonly Source[]): void {
    this.followed = sources;
    const present = new Set(sources.map(keyOf));
    for (const kept of [this.last, this.ends]) for (const key of kept.keys()) if (!present.has(key)) kept.delete(key);
  }

  /** Notes what came. Returns what was not there yet: a topic that is opened again may send a line twice. */
  take(sent: readonly Sent[]): Sent[] {
    return sent.filter((one) => {
      const key = keyOf(one);
      if (one.end) {
        const isNew = !this.ends.has(key);
        this.ends.set(key, one.end);
        return isNew;
      }
      if (one.line === undefined || typeof one.position !== "number") return true;
      if (one.position <= (this.last.get(key)?.position ?? -1)) return false;
      this.last.set(key, { position: one.position, atMs: one.at ? Date.parse(one.at) : 0 });
      return true;
    });
  }

  /** Where each log goes on, as the API wants it. */
  after(): string[] {
    return [...this.last].map(([key, { position, atMs }]) => `${key}/${position}/${Math.max(0, atMs)}`);
  }

  wanted(only: Only): readonly Source[] {
    return this.followed.filter((one) => isWanted(one, only));
  }

  ended(only: Only): readonly Source[] {
    return this.wanted(only).filter((one) => this.ends.has(keyOf(one)));
  }

  /** The last end, once all that is wanted has ended: then nothing comes any more, unless something starts. */
  ending(only: Only): { source: Source; end: End } | null {
    const wanted = this.wanted(only);
    let found: { source: Source; end: End } | null = null;
    for (const source of wanted) {
      const end = this.ends.get(keyOf(source));
      if (!end) return null;
      if (!found || (end.at ?? "") >= (found.end.at ?? "")) found = { source, end };
    }
    return found;
  }

  /** The instances, in order. */
  get instances(): string[] {
    return [...new Set(this.followed.map((one) => one.instance))];
  }

  /** The ranks of an instance, or of all. */
  ranks(instance: string | null): number[] {
    const found = this.wanted({ instance, rank: null }).map((one) => one.rank);
    return [...new Set(found)].sort((one, other) => one - other);
  }
}

function keyOf({ instance, rank, epoch }: Source): string {
  return `${instance}/${rank}/${epoch}`;
}

/** How a process ended, without the time: "exited with code 3". */
export function endWords(end: End): string {
  if (end.exit_code === null) return `ended: ${end.reason ?? "gone"}`;
  return end.exit_code < 0 ? `ended by signal ${-end.exit_code}` : `exited with code ${end.exit_code}`;
}
