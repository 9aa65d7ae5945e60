import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { clock, fullTime } from "../format/times";
import type { Line } from "./lines";
import { placeOf, placesOf, ROW_PX, rowsOf } from "./places";
import { logSettings } from "./settings";
import type { LogStream } from "./stream";

interface WindowProps {
  log: LogStream;
  following: Signal<boolean>;
  fresh: Signal<number>;
  /** Whether lines are of several instances, and show of which. */
  withInstance: boolean;
  label: string;
}

const OVERSCAN_PX = 270;
const END_PX = 4;
const PADDING_PX = 24;
/** A log of at most so many pixels has a low window. */
const SHORT_PX = 180;
const TIME_COLUMNS = 10;

/** The lines in view. Of a long log only these are in the page. */
export function LogWindow({ log, following, fresh, withInstance, label }: WindowProps) {
  const view = useRef<HTMLElement>(null);
  const measure = useRef<HTMLSpanElement>(null);
  const top = useSignal(0);
  const size = useSignal({ height: 480, columns: 120 });
  const lastTop = useRef(0);
  /** The line at the top of the view, and how far it is scrolled out: it stays there while others come and go. */
  const anchor = useRef({ number: 0, past: 0 });
  const version = log.version.value;
  const { wrap, times } = logSettings.value;
  const lines = log.buffer.shown;
  const withRank = log.sources.followed.some((one) => one.rank > 0);
  const width = useMemo(() => longestName(log, withInstance, withRank), [log.sources.followed, withInstance, withRank]);
  const prefix = (times ? TIME_COLUMNS : 0) + (width ? width + 2 : 0);
  const columns = wrap ? Math.max(20, size.value.columns - prefix) : null;
  const places = useMemo(() => placesOf(lines, columns), [lines, version, columns]);
  const { first, offset } = places.at(Math.max(0, top.value - OVERSCAN_PX));
  const seen: Line[] = [];
  /** As many elements are kept for rows: they are filled anew, since making and removing them is what takes long. */
  const pool = useRef(1);
  let below = offset;
  for (let place = first; place < lines.length && below < top.value + size.value.height + OVERSCAN_PX; place++) {
    const line = lines[place];
    if (!line) break;
    seen.push(line);
    below += rowsOf(line, columns) * ROW_PX;
  }
  // Low while there is little; once high it stays, so that a filter does not move what stands below.
  const wasHigh = useRef(false);
  wasHigh.current ||= places.height > SHORT_PX;
  const isShort = !wasHigh.current;
  pool.current = Math.max(pool.current, seen.length);
  const note = (element: HTMLElement): void => {
    lastTop.current = top.value = element.scrollTop;
    const at = places.at(element.scrollTop);
    anchor.current = { number: lines[at.first]?.number ?? 0, past: element.scrollTop - at.offset };
  };
  useLayoutEffect(() => {
    const element = view.current;
    if (!element) return;
    const { number, past } = anchor.current;
    element.scrollTop = following.value ? element.scrollHeight : places.topOf(placeOf(lines, number)) + past;
    note(element);
  }, [places, following.value, isShort]);
  useEffect(() => {
    const element = view.current;
    if (!element) return;
    const observer = new ResizeObserver(() => {
      const character = (measure.current?.getBoundingClientRect().width ?? 75) / 10;
      const columnsNow = Math.floor((element.clientWidth - PADDING_PX) / character);
      size.value = { height: element.clientHeight, columns: columnsNow };
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const onScroll = (): void => {
    const element = view.current;
    if (!element) return;
    const isAtEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - END_PX;
    if (isAtEnd) {
      following.value = true;
      fresh.value = 0;
    } else if (element.scrollTop < lastTop.current - 1) following.value = false;
    note(element);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key !== "End") return;
    event.preventDefault();
    following.value = true;
    fresh.value = 0;
  };
  return (
    <section
      ref={view}
      class={`log-view ${wrap ? "wrap" : ""} ${isShort ? "short" : ""}`}
      tabIndex={0}
      aria-label={label}
      onScroll={onScroll}
      onKeyDown={onKeyDown}
    >
      <span class="log-measure" ref={measure} aria-hidden="true">
        0123456789
      </span>
      <div class="log-space" style={{ blockSize: `${places.height}px` }}>
        <div class="log-lines" style={{ transform: `translateY(${offset}px)` }}>
          {seen.map((line, row) => (
            <LineRow
              key={(first + row) % pool.current}
              line={line}
              times={times}
              name={nameOf(line, withInstance, withRank, width)}
            />
          ))}
        </div>
      </div>
    </section>
  );
}

function LineRow({ line, times, name }: { line: Line; times: boolean; name: string }) {
  return (
    <div class={line.note ? "log-line note" : "log-line"}>
      {times && (
        <time class="log-time" dateTime={line.at ?? ""} title={line.at ? fullTime(line.at) : ""}>
          {line.at ? clock(line.at) : "–"}
        </time>
      )}
      {name && <span class="log-name">{name}</span>}
      <span class="log-text">
        {line.pieces.map((piece, place) =>
          piece.style ? (
            <span key={place} class={piece.style}>
              {piece.text}
            </span>
          ) : (
            piece.text
          ),
        )}
      </span>
    </div>
  );
}

/** Of which process a line is, as wide as the longest of these names. */
function nameOf(
  { instance, rank }: { instance: string; rank: number },
  withInstance: boolean,
  withRank: boolean,
  width = 0,
): string {
  const ofRank = withRank ? `rank ${rank}` : "";
  return (withInstance ? `${instance}${ofRank && ` ${ofRank}`}` : ofRank).padEnd(width);
}

function longestName({ sources }: LogStream, withInstance: boolean, withRank: boolean): number {
  return sources.followed.reduce((most, one) => Math.max(most, nameOf(one, withInstance, withRank).length), 0);
}
