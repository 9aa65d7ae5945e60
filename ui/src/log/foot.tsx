import type { Signal } from "@preact/signals";
import { count, plural } from "../format/numbers";
import { clock } from "../format/times";
import { isLive } from "../live/cluster";
import { Until } from "../parts/age";
import { Failure } from "../parts/panel";
import { endWords, type Only } from "./sources";
import type { LogStream } from "./stream";

interface FootProps {
  log: LogStream;
  only: Only;
  following: Signal<boolean>;
  fresh: Signal<number>;
  again: () => void;
  /** When what is shown is tried again, where it is on back-off. */
  nextTry: string | null;
}

/** Whether it follows, or how what is followed ended; how many lines there are; the way back to the end. */
export function Foot({ log, only, following, fresh, again, nextTry }: FootProps) {
  void log.version.value;
  const reading = log.reading.value;
  const { shown, all, dropped } = log.buffer;
  const of = shown.length === all.length ? "" : ` of ${count(all.length)}`;
  const gone = dropped ? `; ${count(dropped)} older ones have left this window` : "";
  const hasEnded = log.sources.ending(only) !== null;
  return (
    <div class="log-foot">
      {reading.state === "failed" ? (
        <Failure error={reading.error} again={again} />
      ) : (
        <>
          <span role="status" class="log-state">
            {stateText(log, only, following.value)}
          </span>
          {hasEnded && nextTry && (
            <span>
              next try <Until at={nextTry} over="starting" />
            </span>
          )}
        </>
      )}
      <span class="muted">
        {count(shown.length)}
        {of} {shown.length === 1 && !of ? "line" : "lines"}
        {gone}
      </span>
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
  );
}

/** In words. One end is told as the end only where nothing else is followed. */
function stateText({ reading, sources }: LogStream, only: Only, isFollowing: boolean): string {
  const ending = sources.ending(only);
  if (ending) {
    const { source, end } = ending;
    const words = end.at ? `${endWords(end)} at ${clock(end.at)}` : endWords(end);
    return sources.wanted(only).length > 1 ? `all have ended, the last one: ${source.instance} ${words}` : words;
  }
  const { state } = reading.value;
  if (state === "ended") return "the log ends here";
  if (state === "opening") return "opening";
  if (!isLive()) return "no connection";
  if (!sources.wanted(only).length) return "nothing has started yet";
  const ended = sources.ended(only).length;
  const some = ended ? `, ${ended} of ${sources.wanted(only).length} have ended` : "";
  return (isFollowing ? "following" : "not following: End resumes") + some;
}
