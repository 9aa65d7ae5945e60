import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useResource } from "../../api/load";
import type { Event, Page } from "../../api/types";
import { useLive } from "../../live/subscribe";
import { Content, Empty, Panel } from "../../parts/panel";
import { EventLine, runs } from "./line";

const SHOWN = 12;
const REREAD_MS = 3000;

/** The newest events of the cluster, as they come. */
export function LatestEvents() {
  const page = useResource<Page<Event>>(`events?limit=${SHOWN * 2}`);
  return (
    <Panel
      title="What happened"
      actions={
        <a class="button" href="/ui/events">
          All events
        </a>
      }
    >
      <Content of={page} rows={SHOWN}>
        {(value) => <Following first={value.items} shown={SHOWN} empty="Nothing has happened yet." />}
      </Content>
    </Panel>
  );
}

interface FollowingProps {
  first: readonly Event[];
  shown: number;
  empty: string;
  params?: Record<string, unknown>;
}

/** Events newest first, with those that come. */
export function Following({ first, shown, empty, params = {} }: FollowingProps) {
  const key = JSON.stringify(params);
  const come = useEvents(first, key, params);
  const lines = runs(come).slice(0, shown);
  if (!lines.length) return <Empty>{empty}</Empty>;
  return (
    <ol class="events">
      {lines.map((run) => (
        <EventLine key={run.events.at(-1)?.id} run={run} />
      ))}
    </ol>
  );
}

const KEPT = 2000;
const byKey = new Map<string, ReturnType<typeof signal<Event[]>>>();

function useEvents(first: readonly Event[], key: string, params: Record<string, unknown>): Event[] {
  let held = byKey.get(key);
  if (!held) {
    held = signal<Event[]>([]);
    byKey.set(key, held);
  }
  const events = held;
  useEffect(() => {
    events.value = [...first];
    return () => void byKey.delete(key);
  }, [first, key]);
  useLive(
    "events",
    key,
    () => ({ ...params, since: Math.max(0, ...(events.peek() ?? []).map((one) => one.id)) }),
    (message) => {
      const event = message.event as Event | undefined;
      if (message.type !== "event" || !event?.id || events.peek()?.some((one) => one.id === event.id)) return;
      events.value = [event, ...(events.peek() ?? [])].slice(0, KEPT);
    },
  );
  return events.value ?? [];
}

/** The events of one object, as they come: `worker/NAME`, `deployment/NAME`, `gpu:UUID`. */
export function Story({ object, empty }: { object: string; empty: string }) {
  const page = useResource<Page<Event>>(`events?limit=200&object=${encodeURIComponent(object)}`, REREAD_MS);
  return (
    <Panel title="What happened" part="story">
      <Content of={page} rows={6}>
        {({ items }) =>
          items.length ? (
            <ol class="events">
              {runs(items).map((run) => (
                <EventLine key={run.events.at(-1)?.id} run={run} />
              ))}
            </ol>
          ) : (
            <Empty>{empty}</Empty>
          )
        }
      </Content>
    </Panel>
  );
}
