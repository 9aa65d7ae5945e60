import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { asApiError, useResource } from "../../api/load";
import { type ApiError, request } from "../../api/request";
import type { Event, Page } from "../../api/types";
import { useLive } from "../../live/subscribe";
import { Content, Empty, Failure } from "../../parts/panel";
import { EventLine, runs } from "./line";

/** At most so many events are held; older ones are read again when asked for. */
const MOST = 5000;

interface FollowedProps {
  /** The list that is read: `events?limit=100`. A new one begins anew. */
  path: string;
  /** The deployment whose events are followed; without one, those of all. */
  deployment?: string;
  /** Which of those that come belong to the list. Those that are read the API has chosen. */
  belongs?: (event: Event) => boolean;
  /** Which of all are shown, where the API has no such choice. */
  shown?: (event: Event) => boolean;
  /** With clock times, as a story, instead of ages. */
  told?: boolean;
  /** Shows so many lines, and none older. */
  newest?: number;
  /** What stands there without events. `more`: how many others were read, where older ones are left. */
  empty: (more: number) => ComponentChildren;
}

/** Events newest first, with those that come; older ones on demand. */
export function FollowedEvents(props: FollowedProps) {
  const read = useResource<Page<Event>>(props.path);
  return (
    <Content of={read} rows={props.newest ?? 8}>
      {(first) => <List key={props.path} {...props} first={first} />}
    </Content>
  );
}

function List({
  path,
  deployment,
  belongs,
  shown,
  told,
  newest,
  empty,
  first,
}: FollowedProps & { first: Page<Event> }) {
  const come = useSignal<Event[]>([]);
  const older = useSignal<Event[]>([]);
  const next = useSignal(first.next ?? null);
  const failed = useSignal<ApiError | null>(null);
  /** The newest event that is held. Without one there is no `since`: 0 would bring all that were ever kept. */
  const since = (): number | undefined => come.peek()[0]?.id ?? first.items[0]?.id;
  useLive(
    "events",
    path,
    () => ({
      ...(since() === undefined ? {} : { since: since() }),
      ...(deployment === undefined ? {} : { deployment }),
    }),
    (message) => {
      const event = message.event as Event | undefined;
      if (message.type !== "event" || !event || event.id <= (since() ?? 0) || !(belongs?.(event) ?? true)) return;
      come.value = [event, ...come.peek()].slice(0, MOST);
    },
  );
  const more = async (): Promise<void> => {
    if (next.value === null) return;
    try {
      const page = await request<Page<Event>>(`${path}&cursor=${encodeURIComponent(next.value)}`);
      older.value = [...older.value, ...page.items];
      next.value = page.next ?? null;
      failed.value = null;
    } catch (error) {
      failed.value = asApiError(error);
    }
  };
  const held = [...come.value, ...first.items, ...older.value];
  const lines = runs(shown ? held.filter(shown) : held).slice(0, newest);
  return (
    <>
      {lines.length ? (
        <ol class={told ? "events story" : "events"}>
          {lines.map((run) => (
            <EventLine key={run.events.at(-1)?.id} run={run} told={told ?? false} />
          ))}
        </ol>
      ) : (
        <Empty>{empty(next.value === null ? 0 : held.length)}</Empty>
      )}
      {failed.value && <Failure error={failed.value} />}
      {newest === undefined && next.value !== null && older.value.length < MOST && (
        <button type="button" onClick={() => void more()}>
          Older events
        </button>
      )}
    </>
  );
}
