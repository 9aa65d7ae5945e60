import type { Event } from "../../api/types";
import { shortGpu } from "../../format/numbers";
import { clock, duration, fullTime } from "../../format/times";
import { Age } from "../../parts/age";

const PAGES: Record<string, (name: string, uid: string) => string> = {
  deployment: (name) => `/ui/deployments/${name}`,
  instance: (name, uid) => `/ui/instances/${name || uid}`,
  worker: (name) => `/ui/workers/${name}`,
  gpu: (_, uid) => `/ui/gpus/${uid}`,
  policy: (name) => `/ui/policies/${name}`,
};

/** Where an object's page is; null for kinds without one. */
export function pageOf(kind: string, name: string, uid: string): string | null {
  return name || uid ? (PAGES[kind.toLowerCase()]?.(name, uid) ?? null) : null;
}

/** What did it, in words: `key:ann` is "ann", `policy:stop-idle` is "policy stop-idle". */
export function actorText(actor: string): string {
  const [kind, ...name] = actor.split(":");
  if (!name.length) return actor;
  if (kind === "token") return `token ${shortId(name.join(":"))}`;
  return kind === "key" ? name.join(":") : `${kind} ${name.join(":")}`;
}

/** The name of an object; of a GPU, and of what has no name of its own, the kind and the first block of its UUID. */
export function subjectText({ kind, name, uid }: Event["subjects"][number]): string {
  if (kind === "gpu") return `GPU ${shortGpu(uid)}`;
  return name && !UUID.test(name) ? name : `${kind} ${shortId(name || uid)}`;
}

const UUID = /^[0-9a-f]{8}-[0-9a-f-]{27}$/;

/** The first block of a UUID; other names stay. */
function shortId(uid: string): string {
  return UUID.test(uid) ? uid.slice(0, 8) : uid;
}

/** Consecutive events that say the same about the same objects, newest first. */
export interface Run {
  events: Event[];
}

export function runs(events: readonly Event[]): Run[] {
  const found: Run[] = [];
  for (const event of events) {
    const before = found.at(-1)?.events[0];
    const same =
      before &&
      before.reason === event.reason &&
      before.message === event.message &&
      before.actor === event.actor &&
      String(before.objects) === String(event.objects);
    if (same) found.at(-1)?.events.push(event);
    else found.push({ events: [event] });
  }
  return found;
}

/** One line: when, what, how long it took, by whom, about which objects. A story has clock times instead of ages. */
export function EventLine({ run, told = false }: { run: Run; told?: boolean }) {
  const [newest] = run.events;
  const oldest = run.events.at(-1);
  if (!newest || !oldest) return null;
  return (
    <li class="event" data-reason={newest.reason}>
      <span class="event-when">{told ? <Clock at={newest.at} /> : <Age at={newest.at} />}</span>
      <code class="event-reason">{newest.reason}</code>
      <span class="event-text">
        {newest.message}
        {run.events.length > 1 && (
          <>
            {" "}
            <strong>×{run.events.length}</strong>{" "}
            <span class="muted">since {told ? <Clock at={oldest.at} /> : <Age at={oldest.at} ago />}</span>
          </>
        )}
        {newest.reason !== "running" && <Took durations={newest.durations} />}
        <span class="event-subjects">
          {(newest.subjects ?? []).map((subject) => {
            const href = pageOf(subject.kind, subject.name ?? "", subject.uid);
            const text = subjectText(subject);
            return <span key={`${subject.kind}${subject.uid}`}>{href ? <a href={href}>{text}</a> : text}</span>;
          })}
        </span>
      </span>
      <span class="event-actor muted">{newest.actor ? actorText(newest.actor) : ""}</span>
    </li>
  );
}

/** The time of day, below it the day where that is not today. The full time shows on focus and hover. */
function Clock({ at }: { at: string }) {
  const today = new Date(at).toDateString() === new Date().toDateString();
  return (
    <time class="tip figures" dateTime={at} data-tip={fullTime(at)} tabIndex={0}>
      {today ? clock(at) : fullTime(at).split(",")[0]}
    </time>
  );
}

const SHORTEST_S = 0.05;

/** How long it took, and what of that its parts took. The message of `running` says it already. */
function Took({ durations }: { durations: Event["durations"] }) {
  const { total, ...parts } = durations ?? {};
  const long = Object.entries(parts).filter(([, seconds]) => seconds >= SHORTEST_S);
  const texts = long.map(([part, seconds]) => `${part.replaceAll("_", " ")} ${duration(seconds)}`);
  if (total === undefined && !texts.length) return null;
  return (
    <span class="event-took muted">
      {total !== undefined && `took ${duration(total)}`}
      {total !== undefined && texts.length > 0 && ": "}
      {texts.join(", ")}
    </span>
  );
}
