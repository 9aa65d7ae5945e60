import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { clock, fullTime } from "../format/times";
import type { Line } from "./lines";
import { placesOf, ROW_PX, rowsOf } from "./places";
import { logSettings } from "./settings";
import type { LogStream } from "./stream";

interface WindowProps {
  log: LogStream;
  following: Signal<boolean>;
  fresh: Signal<number>;
  named: boolean;
  label: string;
}

const OVERSCAN_PX = 600;
const END_PX = 4;
const PADDING_PX = 24;

/** The lines in view. Of a long log only these are in the page. */
export function LogWindow({ log, following, fresh, named, label }: WindowProps) {
  const view = useRef<HTMLElement>(null);
  const measure = useRef<HTMLSpanElement>(null);
  const top = useSignal(0);
  const size = useSignal({ height: 480, columns: 120 });
  const lastTop = useRef(0);
  const lastDropped = useRef(0);
  void log.version.value;
  const { wrap, times } = logSettings.value;
  const lines = log.buffer.shown;
  const prefix = (times ? 10 : 0) + (named ? longestName(lines) + 2 : 0);
  const columns = wrap ? Math.max(20, size.value.columns - prefix) : null;
  const places = placesOf(lines, columns);
  const { first, offset } = places.at(Math.max(0, top.value - OVERSCAN_PX));
  const seen: Line[] = [];
  let below = offset;
  for (let place = first; place < lines.length && below < top.value + size.value.height + OVERSCAN_PX; place++) {
    const line = lines[place];
    if (!line) break;
    seen.push(line);
    below += rowsOf(line, columns) * ROW_PX;
  }
  useLayoutEffect(() => {
    const element = view.current;
    if (!element) return;
    const gone = log.buffer.dropped - lastDropped.current;
    lastDropped.current = log.buffer.dropped;
    if (following.value) element.scrollTop = element.scrollHeight;
    else if (gone > 0 && lines === log.buffer.all && !wrap) element.scrollTop -= gone * ROW_PX;
    lastTop.current = element.scrollTop;
    top.value = element.scrollTop;
  });
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
    lastTop.current = element.scrollTop;
    top.value = element.scrollTop;
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
      class={wrap ? "log-view wrap" : "log-view"}
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
          {seen.map((line) => (
            <LineRow key={line.number} line={line} times={times} named={named} />
          ))}
        </div>
      </div>
    </section>
  );
}

function LineRow({ line, times, named }: { line: Line; times: boolean; named: boolean }) {
  return (
    <div class={line.note ? "log-line note" : "log-line"}>
      {times && (
        <time class="log-time" dateTime={line.at ?? ""} title={line.at ? fullTime(line.at) : ""}>
          {line.at ? clock(line.at) : "–"}
        </time>
      )}
      {named && <span class="log-name">{nameOf(line)}</span>}
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

function nameOf(line: Line): string {
  return line.rank ? `${line.instance} rank ${line.rank}` : line.instance;
}

function longestName(lines: readonly Line[]): number {
  let longest = 0;
  for (let place = Math.max(0, lines.length - 200); place < lines.length; place++) {
    const line = lines[place];
    if (line) longest = Math.max(longest, nameOf(line).length);
  }
  return longest;
}
