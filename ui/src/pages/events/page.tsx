import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { asApiError, useResource } from "../../api/load";
import { type ApiError, request } from "../../api/request";
import type { Event, Page } from "../../api/types";
import { useLive } from "../../live/subscribe";
import { Content, Empty, Failure, Panel } from "../../parts/panel";
import { useTitle } from "../../parts/title";
import { addressOf, type EventFilter, filterOf, isWanted, KINDS, parametersOf, PERIODS } from "./filter";
import { EventLine, runs } from "./line";

const PAGE = 200;
/** At most so many events are held; older ones are read again when asked for. */
const MOST = 5000;

/** All events, newest first, as they come; older ones on demand. The filter is part of the address. */
export function Events() {
  useTitle("Events");
  const filter = useSignal<EventFilter>(useMemo(() => filterOf(location.search), []));
  const address = addressOf(filter.value);
  history.replaceState(null, "", address ? `?${address}` : location.pathname);
  const parameters = parametersOf(filter.value);
  const path = `events?limit=${PAGE}${parameters ? `&${parameters}` : ""}`;
  const read = useResource<Page<Event>>(path);
  return (
    <>
      <div class="page-head">
        <h1>Events</h1>
        <Filters filter={filter.value} onChange={(changed) => (filter.value = { ...filter.value, ...changed })} />
      </div>
      <Panel title="What happened">
        <Content of={read} rows={12}>
          {(page) => <List key={path} path={path} first={page} filter={filter.value} />}
        </Content>
      </Panel>
    </>
  );
}

function Filters({ filter, onChange }: { filter: EventFilter; onChange: (changed: Partial<EventFilter>) => void }) {
  return (
    <form class="actions filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <label>
        Reason
        <input
          value={filter.reason}
          placeholder="running,backoff"
          onChange={(event) => onChange({ reason: event.currentTarget.value })}
          spellcheck={false}
        />
      </label>
      <label>
        Kind
        <select value={filter.kind} onChange={(event) => onChange({ kind: event.currentTarget.value, name: "" })}>
          <option value="">any</option>
          {KINDS.map((kind) => (
            <option key={kind} value={kind}>
              {kind}
            </option>
          ))}
        </select>
      </label>
      {filter.kind && (
        <label>
          {filter.kind === "gpu" ? "UUID" : "Name"}
          <input
            value={filter.name}
            placeholder="any"
            onChange={(event) => onChange({ name: event.currentTarget.value })}
            spellcheck={false}
          />
        </label>
      )}
      <label>
        Time
        <select value={filter.after} onChange={(event) => onChange({ after: event.currentTarget.value })}>
          <option value="">all</option>
          {PERIODS.map((period) => (
            <option key={period} value={period}>
              last {period}
            </option>
          ))}
        </select>
      </label>
    </form>
  );
}

function List({ path, first, filter }: { path: string; first: Page<Event>; filter: EventFilter }) {
  const come = useSignal<Event[]>([]);
  const older = useSignal<Event[]>([]);
  const next = useSignal(first.next ?? null);
  const failed = useSignal<ApiError | null>(null);
  const newest = (): number | undefined => come.peek()[0]?.id ?? first.items[0]?.id;
  useLive(
    "events",
    path,
    () => ({ since: newest() }),
    (message) => {
      const event = message.event as Event | undefined;
      if (message.type === "event" && event && event.id > (newest() ?? 0))
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
  // The API has chosen by all but a kind without a name.
  const read = [...first.items, ...older.value];
  const chosen = filter.kind && !filter.name ? read.filter((event) => isWanted(event, filter)) : read;
  const wanted = [...come.value.filter((event) => isWanted(event, filter)), ...chosen];
  return (
    <>
      {wanted.length ? (
        <ol class="events">
          {runs(wanted).map((run) => (
            <EventLine key={run.events.at(-1)?.id} run={run} />
          ))}
        </ol>
      ) : (
        <Empty>
          {read.length && next.value !== null
            ? `None of the newest ${read.length} events is like this.`
            : emptyText(filter)}
        </Empty>
      )}
      {failed.value && <Failure error={failed.value} />}
      {next.value !== null && older.value.length < MOST && (
        <button type="button" onClick={() => void more()}>
          Older events
        </button>
      )}
    </>
  );
}

function emptyText(filter: EventFilter): string {
  return addressOf(filter) ? "No event is like this." : "Nothing has happened yet.";
}
