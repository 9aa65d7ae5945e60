import { useComputed, useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import type { Event } from "../../api/types";
import { now } from "../../format/times";
import { Panel } from "../../parts/panel";
import { useTitle } from "../../parts/title";
import { addressOf, type EventFilter, filterOf, isWanted, KINDS, parametersOf, PERIODS, withGiven } from "./filter";
import { FollowedEvents } from "./followed";

const PAGE = 200;
/** So often those that have grown too old leave the page. */
const LEAVE_MS = 10_000;

/** All events, newest first, as they come; older ones on demand. The filter is part of the address. */
export function Events() {
  useTitle("Events");
  const filter = useSignal<EventFilter>(useMemo(() => filterOf(location.search), []));
  const address = addressOf(filter.value);
  history.replaceState(null, "", address ? `?${address}` : location.pathname);
  const parameters = parametersOf(filter.value);
  // Where a time is asked for, events grow too old while the page is open.
  const at = useComputed(() => (filter.value.after ? Math.floor(now.value / LEAVE_MS) * LEAVE_MS : 0)).value;
  const path = `events?limit=${PAGE}${parameters ? `&${parameters}` : ""}`;
  return (
    <>
      <div class="page-head">
        <h1>Events</h1>
        <Filters filter={filter.value} onChange={(changed) => (filter.value = { ...filter.value, ...changed })} />
      </div>
      <Panel title="What happened">
        <FollowedEvents
          path={path}
          belongs={(event) => isWanted(event, filter.value, now.peek())}
          {...(isChosenHere(filter.value) ? { shown: (event: Event) => isWanted(event, filter.value, at) } : {})}
          empty={(more) => (more ? `None of the newest ${more} events is like this.` : emptyText(filter.value))}
        />
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
          {withGiven(PERIODS, filter.after).map((period) => (
            <option key={period} value={period}>
              last {period}
            </option>
          ))}
        </select>
      </label>
    </form>
  );
}

/** Whether the API has not chosen all of it: it has no filter for a kind alone, and none for the time that goes by. */
function isChosenHere({ kind, name, after }: EventFilter): boolean {
  return after !== "" || (kind !== "" && !name.trim());
}

function emptyText(filter: EventFilter): string {
  return addressOf(filter) ? "No event is like this." : "Nothing has happened yet.";
}
