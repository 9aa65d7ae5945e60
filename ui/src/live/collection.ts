/** Objects of one kind, kept by uid. Readers are told once per frame, however many have changed. */

import { signal } from "@preact/signals";

interface Named {
  uid: string;
  name: string;
}

export class Collection<T extends Named> {
  private readonly byUid = new Map<string, T>();
  private readonly version = signal(0);
  private sorted: T[] | null = null;

  /** All objects by name. A reader is drawn again when any of them has changed. */
  get all(): readonly T[] {
    void this.version.value;
    this.sorted ??= [...this.byUid.values()].sort((a, b) => compareNames(a.name, b.name));
    return this.sorted;
  }

  named(name: string): T | undefined {
    return this.all.find((one) => one.name === name);
  }

  replace(objects: readonly T[]): void {
    this.byUid.clear();
    for (const one of objects) this.byUid.set(one.uid, one);
    this.told();
  }

  put(object: T): void {
    this.byUid.set(object.uid, object);
    this.told();
  }

  drop(uid: string): void {
    if (this.byUid.delete(uid)) this.told();
  }

  private told(): void {
    this.sorted = null;
    changed.add(this.bump);
    schedule();
  }

  private readonly bump = (): void => {
    this.version.value++;
  };
}

/** By name, numbers in it by their value: gpu-2 before gpu-10. */
const collator = new Intl.Collator("en", { numeric: true });
export function compareNames(a: string, b: string): number {
  return collator.compare(a, b);
}

const changed = new Set<() => void>();
let scheduled = false;
function schedule(): void {
  if (scheduled) return;
  scheduled = true;
  // A hidden tab draws no frames, and must not collect forever.
  const run = document.hidden ? (act: () => void) => setTimeout(act, 250) : requestAnimationFrame;
  run(() => {
    scheduled = false;
    const due = [...changed];
    changed.clear();
    for (const bump of due) bump();
  });
}
