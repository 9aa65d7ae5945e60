import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { useResource } from "../../api/load";
import { request } from "../../api/request";
import type { Event, Page } from "../../api/types";
import { Content, Panel } from "../../parts/panel";
import { useTitle } from "../../parts/title";
import { EventLine, runs } from "./line";
import { Following } from "./latest";

const PAGE = 200;

/** All events, newest first, with filters; older ones on demand. The filters are part of the address. */
export function Events() {
  useTitle("Events");
  const given = useMemo(() => new URLSearchParams(location.search), []);
  const reason = useSignal(given.get("reason") ?? "");
  const object = useSignal(given.get("object") ?? "");
  const filter = new URLSearchParams();
  if (reason.value.trim()) filter.set("reason", reason.value.trim());
  if (object.value.trim()) filter.set("object", object.value.trim());
  const query = filter.toString();
  const keep = (): void => history.replaceState(null, "", query ? `?${query}` : location.pathname);
  keep();
  const read = useResource<Page<Event>>(`events?limit=${PAGE}${query ? `&${query}` : ""}`);
  return (
    <>
      <div class="page-head">
        <h1>Events</h1>
        <form class="actions filters" role="search" onSubmit={(event) => event.preventDefault()}>
          <label>
            Reason{" "}
            <input
              value={reason.value}
              placeholder="running,backoff"
              onChange={(event) => (reason.value = event.currentTarget.value)}
              spellcheck={false}
            />
          </label>
          <label>
            Object{" "}
            <input
              value={object.value}
              placeholder="deployment/chat"
              onChange={(event) => (object.value = event.currentTarget.value)}
              spellcheck={false}
            />
          </label>
        </form>
      </div>
      <Panel title="What happened">
        <Content of={read} rows={12}>
          {(page) => (
            <>
              {query ? (
                <Plain events={page.items} />
              ) : (
                <Following first={page.items} shown={PAGE} empty="Nothing has happened yet." />
              )}
              <Older key={query} query={query} cursor={page.next ?? null} />
            </>
          )}
        </Content>
      </Panel>
    </>
  );
}

function Plain({ events }: { events: readonly Event[] }) {
  if (!events.length) return <p class="empty">No event is like this.</p>;
  return (
    <ol class="events">
      {runs(events).map((run) => (
        <EventLine key={run.events.at(-1)?.id} run={run} />
      ))}
    </ol>
  );
}

function Older({ query, cursor }: { query: string; cursor: string | null }) {
  const older = useSignal<Event[]>([]);
  const next = useSignal(cursor);
  const more = async (): Promise<void> => {
    if (next.value === null) return;
    const page = await request<Page<Event>>(
      `events?limit=${PAGE}&cursor=${encodeURIComponent(next.value)}${query ? `&${query}` : ""}`,
    );
    older.value = [...older.value, ...page.items];
    next.value = page.next ?? null;
  };
  return (
    <>
      {older.value.length > 0 && <Plain events={older.value} />}
      {next.value !== null && (
        <button type="button" onClick={() => void more()}>
          Older events
        </button>
      )}
    </>
  );
}
