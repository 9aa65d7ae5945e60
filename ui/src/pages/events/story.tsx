import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asApiError, useResource } from "../../api/load";
import { type ApiError, request } from "../../api/request";
import type { Event, Page } from "../../api/types";
import { useLive } from "../../live/subscribe";
import { Content, Empty, Failure, Panel } from "../../parts/panel";
import { EventLine, runs } from "./line";

const PAGE = 100;
/** At most so many events are held; older ones are read again when asked for. */
const MOST = 5000;

interface StoryProps {
  /** The object whose events are told: `deployment/chat`. */
  of: string;
  /** The deployment to which it belongs, whose new events are followed. */
  deployment: string;
  /** Which of the new ones belong to the object. */
  concerns?: (event: Event) => boolean;
}

/** All that happened to an object, newest first, with what comes. */
export function Story(props: StoryProps) {
  const path = `events?object=${encodeURIComponent(props.of)}&limit=${PAGE}`;
  const page = useResource<Page<Event>>(path);
  return (
    <Panel title="Story" part="story">
      <Content of={page} rows={6}>
        {(first) => <Told key={props.of} {...props} path={path} first={first} />}
      </Content>
    </Panel>
  );
}

function Told({ of, deployment, concerns, path, first }: StoryProps & { path: string; first: Page<Event> }) {
  const come = useSignal<Event[]>([]);
  const older = useSignal<Event[]>([]);
  const next = useSignal(first.next ?? null);
  const failed = useSignal<ApiError | null>(null);
  useEffect(() => {
    older.value = [];
    next.value = first.next ?? null;
  }, [first]);
  useLive(
    "events",
    deployment ? of : null,
    () => ({ deployment, since: come.peek()[0]?.id ?? first.items[0]?.id ?? 0 }),
    (message) => {
      const event = message.event as Event | undefined;
      if (message.type !== "event" || !event || !(concerns?.(event) ?? true)) return;
      const newest = come.peek()[0]?.id ?? first.items[0]?.id ?? 0;
      if (event.id > newest) come.value = [event, ...come.peek()].slice(0, MOST);
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
  const lines = runs([...come.value, ...first.items, ...older.value]);
  if (!lines.length) return <Empty>Nothing has happened yet.</Empty>;
  return (
    <>
      <ol class="events story">
        {lines.map((run) => (
          <EventLine key={run.events.at(-1)?.id} run={run} told />
        ))}
      </ol>
      {failed.value && <Failure error={failed.value} />}
      {next.value !== null && older.value.length < MOST && (
        <button type="button" onClick={() => void more()}>
          Show older
        </button>
      )}
    </>
  );
}
