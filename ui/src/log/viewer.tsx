import { type Signal, useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Instance } from "../api/types";
import { socket } from "../live/cluster";
import { Panel } from "../parts/panel";
import { may } from "../session/session";
import { Choice } from "./choice";
import { Foot } from "./foot";
import { filterOf } from "./lines";
import { logSettings, setLog } from "./settings";
import { ALL, type Only } from "./sources";
import { LogStream, MOST_LINES, type Wanted } from "./stream";
import { LogWindow } from "./window";

interface LogProps {
  deployment: string;
  /** Of this instance alone. */
  instance?: string | undefined;
  /** The instances whose logs these are, as they are now. */
  instances: readonly Instance[];
}

/** So many lines of the previous start are shown first: they are there at once. */
const PREVIOUS_LINES = 50;
const WHOLE = 1_000_000;

/** The logs of a deployment by time, or of one of its instances. They are followed, over restarts and new replicas. */
export function LogViewer(props: LogProps) {
  if (!may("logs")) return null;
  return <Viewer key={`${props.deployment} ${props.instance ?? ""}`} {...props} />;
}

function Viewer({ deployment, instance, instances }: LogProps) {
  const live = socket.value;
  const following = useSignal(true);
  const fresh = useSignal(0);
  const previous = useSignal(false);
  const previousLines = useSignal(PREVIOUS_LINES);
  const search = useSignal("");
  const only = useSignal<Only>(ALL);
  const crowded = useSignal(false);
  const log = useMemo(
    () =>
      new LogStream((lines) => {
        if (!following.peek()) fresh.value += lines;
      }),
    [],
  );
  // Where there are too many logs to merge, a chosen instance is read alone.
  const alone = crowded.value ? only.value.instance : null;
  const open = (): void => {
    following.value = true;
    fresh.value = 0;
    const wanted: Wanted = { deployment, instance: instance ?? alone };
    if (previous.peek()) log.readPrevious(wanted, previousLines.peek());
    else if (live) log.follow(live, wanted, Math.ceil(MOST_LINES / logsOf(instances)));
    log.buffer.filter(filter.peek().keep);
  };
  const filter = useComputed(() => filterOf(search.value, logSettings.value.regExp, only.value));
  useEffect(() => {
    open();
    return () => log.close();
  }, [live, alone, previous.value, previousLines.value]);
  useEffect(() => {
    log.buffer.filter(filter.value.keep);
    log.version.value++;
  }, [filter.value]);
  const reading = log.reading.value;
  useEffect(() => {
    if (reading.state === "failed" && reading.error.code === "too_many_logs") crowded.value = true;
  }, [reading]);
  void log.version.value;
  const name = instance ?? deployment;
  return (
    <Panel
      title={previous.value ? "Log of the previous start" : "Log"}
      part="log"
      actions={<Actions {...{ deployment, instance, instances, previous, previousLines }} only={only.value} />}
    >
      <Controls search={search} problem={filter.value.problem} />
      <Choice only={only} sources={log.sources} instances={instance === undefined ? instances.map(nameOf) : []} />
      <LogWindow log={log} following={following} fresh={fresh} withInstance={!instance} label={`Log of ${name}`} />
      <Foot
        {...{ log, following, fresh }}
        only={only.value}
        again={open}
        nextTry={previous.value ? null : nextTry(instances, only.value)}
      />
    </Panel>
  );
}

interface ActionProps extends LogProps {
  previous: Signal<boolean>;
  previousLines: Signal<number>;
  only: Only;
}

/** Between the present and the previous start, and the whole log of what is chosen as a file. */
function Actions({ deployment, instance, instances, previous, previousLines, only }: ActionProps) {
  const hasPrevious = instances.some((one) => one.status.restarts > 0);
  const query = new URLSearchParams({ tail: String(WHOLE) });
  const chosen = instance ?? only.instance;
  if (chosen !== null) query.set("instance", chosen);
  if (only.rank !== null) query.set("rank", String(only.rank));
  if (previous.value) query.set("previous", "true");
  if (logSettings.value.times) query.set("timestamps", "true");
  const rank = only.rank === null ? "" : `-rank-${only.rank}`;
  const file = `${chosen ?? deployment}${rank}${previous.value ? "-previous" : ""}.log`;
  return (
    <>
      {previous.value && previousLines.value === PREVIOUS_LINES && (
        <button type="button" onClick={() => (previousLines.value = MOST_LINES)}>
          More than the last {PREVIOUS_LINES} lines
        </button>
      )}
      {(hasPrevious || previous.value) && (
        <button
          type="button"
          aria-pressed={previous.value}
          onClick={() => {
            previousLines.value = PREVIOUS_LINES;
            previous.value = !previous.value;
          }}
        >
          Previous start
        </button>
      )}
      <a class="button" href={`/api/v1/deployments/${encodeURIComponent(deployment)}/logs?${query}`} download={file}>
        Download
      </a>
    </>
  );
}

function Controls({ search, problem }: { search: Signal<string>; problem: string }) {
  const settings = logSettings.value;
  return (
    <div class="log-controls">
      <label class="filter">
        Search
        <input
          type="search"
          value={search.value}
          aria-invalid={problem ? true : undefined}
          onInput={(event) => (search.value = event.currentTarget.value)}
          spellcheck={false}
        />
      </label>
      <Check label="Regular expression" on={settings.regExp} set={(regExp) => setLog({ regExp })} />
      <Check label="Wrap" on={settings.wrap} set={(wrap) => setLog({ wrap })} />
      <Check label="Times" on={settings.times} set={(times) => setLog({ times })} />
      {problem && <span class="refused">{problem}</span>}
    </div>
  );
}

function Check({ label, on, set }: { label: string; on: boolean; set: (on: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={on} onChange={(event) => set(event.currentTarget.checked)} />
      {label}
    </label>
  );
}

function nameOf(instance: Instance): string {
  return instance.name;
}

/** How many logs there are: a process on each worker of each instance. */
function logsOf(instances: readonly Instance[]): number {
  return Math.max(
    1,
    instances.reduce((sum, { status }) => sum + Math.max(1, status.workers.length), 0),
  );
}

/** When the only instance that is shown is tried again. */
function nextTry(instances: readonly Instance[], only: Only): string | null {
  const [first, ...more] = instances.filter((one) => (only.instance ?? one.name) === one.name);
  return first && !more.length && first.status.phase === "backoff" ? (first.status.not_before ?? null) : null;
}
