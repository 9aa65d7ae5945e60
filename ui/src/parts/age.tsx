import { age, duration, fullTime, now, secondsSince } from "../format/times";

/** How long ago, live and short. The full time, with its zone, shows on focus and hover. */
export function Age({ at, ago = false }: { at: string | null | undefined; ago?: boolean }) {
  if (!at) return <span class="muted">–</span>;
  const seconds = secondsSince(at);
  return (
    <time class="tip" dateTime={at} data-tip={fullTime(at)} tabIndex={0}>
      {age(seconds)}
      {ago && " ago"}
    </time>
  );
}

/** The time until a moment: a countdown that ends with a word, and never goes below zero. */
export function Until({ at, over }: { at: string; over: string }) {
  const left = (Date.parse(at) - now.value) / 1000;
  return (
    <time class="figures" dateTime={at}>
      {left > 0 ? `in ${duration(Math.ceil(left))}` : over}
    </time>
  );
}
