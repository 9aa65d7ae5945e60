/** Phases of deployments, instances and workers: a shape and a word, besides the colour. */

const TONES: Record<string, Tone> = {
  running: "good",
  ready: "good",
  succeeded: "good",
  ok: "good",
  pending: "wait",
  analyzing: "wait",
  scheduled: "wait",
  starting: "wait",
  progressing: "wait",
  joining: "wait",
  stopping: "wait",
  deleting: "wait",
  draining: "wait",
  cordoned: "wait",
  quarantined: "wait",
  degraded: "bad",
  unhealthy: "bad",
  backoff: "bad",
  failed: "bad",
  unreachable: "bad",
  lost: "bad",
  stopped: "off",
  asleep: "off",
  replaced: "off",
  drained: "off",
  unknown: "off",
};
export type Tone = "good" | "wait" | "bad" | "off";

export function toneOf(phase: string): Tone {
  return TONES[phase] ?? "off";
}

export function Phase({ phase }: { phase: string }) {
  return <span class={`phase ${toneOf(phase)}`}>{phase}</span>;
}

/** A short word on a tinted ground, such as the severity of an entry. */
export function Badge({ tone, children }: { tone: Tone; children: string }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}
