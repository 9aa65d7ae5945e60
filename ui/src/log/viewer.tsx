import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { plural } from "../format/numbers";
import { clock } from "../format/times";
import { Failure, Panel } from "../parts/panel";
import { may } from "../session/session";
import { endWords, type Keep, keeping } from "./lines";
import { logSettings, setLog } from "./settings";
import { LogStream } from "./stream";
import { LogWindow } from "./window";

interface LogProps {
  /** Where it is read: `instances/chat-1/logs`. */
  path: string;
  /** What the file of a download is called. */
  name: string;
  /** Whether lines are of several instances, and show whose they are. */
  named?: boolean;
  /** The present start of the instance; after another one the log can be read anew. */
  epoch?: number;
  /** Whether there was a start before the present one. */
  hasPrevious?: boolean;
}

const TAIL = 100_000;

/** The log of an instance, or of all instances of a deployment by time. It follows until it ends. */
export function LogViewer(props: LogProps) {
  if (!may("logs")) return null;
  return <Viewer key={props.path} {...props} />;
}

function Viewer({ path, name, named = false, epoch = 0, hasPrevious = false }: LogProps) {
  const following = useSignal(true);
  const fresh = useSignal(0);
  const previous = useSignal(false);
  const search = useSignal("");
  const only = useSignal("");
  const opened = useSignal(epoch);
  const sources = useSignal<readonly string[]>([]);
  const log = useMemo(
    () =>
      new LogStream((lines) => {
        if (!following.peek()) fresh.value += lines;
      }),
    [],
  );
  const open = (): void => {
    opened.value = epoch;
    following.value = true;
    fresh.value = 0;
    const mode = previous.value ? "previous=true" : "follow=true";
    log.open(`${path}?format=json&tail=${TAIL}&${mode}`);
  };
  useEffect(() => {
    open();
    return () => log.close();
  }, [previous.value]);
  const filter = useComputed(() => filterOf(search.value, logSettings.value.regExp, only.value));
  useEffect(() => {
    log.buffer.filter(filter.value.keep);
    log.version.value++;
  }, [filter.value, log.buffer]);
  useEffect(() => {
    if (!named) return;
    const found = new Set(sources.peek());
    for (const line of log.buffer.all.slice(-2000)) found.add(line.instance);
    if (found.size !== sources.peek().length) sources.value = [...found].sort();
  }, [log.version.value]);
  const settings = logSettings.value;
  return (
    <Panel
      title={previous.value ? "Log of the previous start" : "Log"}
      part="log"
      actions={
        <>
          {(hasPrevious || previous.value) && (
            <button type="button" aria-pressed={previous.value} onClick={() => (previous.value = !previous.value)}>
              Previous start
            </button>
          )}
          <a
            class="button"
            href={`/api/v1/${path}${previous.value ? "?previous=true" : ""}`}
            download={`${name}${previous.value ? "-previous" : ""}.log`}
          >
            Download
          </a>
        </>
      }
    >
      <div class="log-controls">
        <label class="filter">
          Search
          <input
            type="search"
            value={search.value}
            aria-invalid={filter.value.problem ? true : undefined}
            onInput={(event) => (search.value = event.currentTarget.value)}
            spellcheck={false}
          />
        </label>
        <Check label="Regular expression" on={settings.regExp} set={(regExp) => setLog({ regExp })} />
        <Check label="Wrap" on={settings.wrap} set={(wrap) => setLog({ wrap })} />
        <Check label="Times" on={settings.times} set={(times) => setLog({ times })} />
        {named && sources.value.length > 1 && (
          <label class="filter">
            Only
            <select value={only.value} onChange={(event) => (only.value = event.currentTarget.value)}>
              <option value="">all instances</option>
              {sources.value.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
        )}
        {filter.value.problem && <span class="refused">{filter.value.problem}</span>}
      </div>
      <LogWindow log={log} following={following} fresh={fresh} named={named} label={`Log of ${name}`} />
      <div class="log-foot">
        <State log={log} following={following.value} again={open} isNewer={epoch > opened.value && !previous.value} />
        {fresh.value > 0 && !following.value && (
          <button
            type="button"
            class="primary"
            onClick={() => {
              following.value = true;
              fresh.value = 0;
            }}
          >
            {plural(fresh.value, "new line")}
          </button>
        )}
      </div>
    </Panel>
  );
}

function filterOf(search: string, isRegExp: boolean, only: string): { keep: Keep | null; problem: string } {
  let found: Keep | null = null;
  let problem = "";
  try {
    found = keeping(search, isRegExp);
  } catch (error) {
    problem = error instanceof Error ? error.message : String(error);
  }
  if (!only) return { keep: found, problem };
  return { keep: (line) => line.instance === only && (found?.(line) ?? true), problem };
}

function Check({ label, on, set }: { label: string; on: boolean; set: (on: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={on} onChange={(event) => set(event.currentTarget.checked)} />
      {label}
    </label>
  );
}

/** Whether it follows, or how the log ended. */
function State({
  log,
  following,
  again,
  isNewer,
}: {
  log: LogStream;
  following: boolean;
  again: () => void;
  isNewer: boolean;
}) {
  void log.version.value;
  const reading = log.reading.value;
  const { shown, all, dropped } = log.buffer;
  const of = shown.length === all.length ? "" : ` of ${all.length.toLocaleString("en-US")}`;
  const gone = dropped ? `; ${dropped.toLocaleString("en-US")} older ones have left this window` : "";
  if (reading.state === "failed") return <Failure error={reading.error} again={again} />;
  return (
    <>
      <span role="status" class="log-state">
        {reading.state === "opening" && "opening"}
        {reading.state === "following" && (following ? "following" : "not following: End resumes")}
        {reading.state === "ended" && endText(reading.end)}
      </span>
      <span class="muted">
        {shown.length.toLocaleString("en-US")}
        {of} {shown.length === 1 && !of ? "line" : "lines"}
        {gone}
      </span>
      {isNewer && (
        <button type="button" onClick={again}>
          It has started again: read the new log
        </button>
      )}
    </>
  );
}

function endText(end: Parameters<typeof endWords>[0] | null | undefined): string {
  if (!end) return "the log ends here";
  return end.at ? `${endWords(end)} at ${clock(end.at)}` : endWords(end);
}
