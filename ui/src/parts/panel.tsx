import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { Loaded, Resource } from "../api/load";
import type { ApiError } from "../api/request";

interface PanelProps {
  title: string;
  part?: string;
  level?: 2 | 3;
  actions?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}

let panels = 0;

/** A titled section. Each panel fails by itself. */
export function Panel({ title, part, level = 2, actions, children, class: more = "" }: PanelProps) {
  const id = useSignal(`panel-${++panels}`).value;
  const Heading = `h${level}` as "h2";
  return (
    <section class={`panel ${more}`} data-part={part} aria-labelledby={id}>
      <header>
        <Heading id={id}>{title}</Heading>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </section>
  );
}

/** What a read gave: a skeleton while it takes long, the failure with "Try again", or the content. */
export function Content<T>({
  of,
  rows = 4,
  missing,
  children,
}: {
  of: Resource<T>;
  rows?: number;
  /** What stands there where the object does not exist; another try would not mend it. */
  missing?: ComponentChildren;
  children: (value: T) => ComponentChildren;
}) {
  const loaded: Loaded<T> = of.loaded.value;
  if (loaded.state === "loading") return <Skeleton rows={rows} />;
  if (loaded.state === "failed" && loaded.error.status === 404 && missing) return <>{missing}</>;
  if (loaded.state === "failed") return <Failure error={loaded.error} again={of.reload} />;
  return <>{children(loaded.value)}</>;
}

/** Grey lines in the size of what comes, from 300 ms on: an answer that is quick shows none. */
export function Skeleton({ rows }: { rows: number }) {
  const late = useSignal(false);
  useEffect(() => {
    const timer = setTimeout(() => {
      late.value = true;
    }, 300);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class="skeleton" aria-busy="true">
      <span class="sr">Loading</span>
      {Array.from({ length: rows }, (_, row) => (
        <i key={row} class={late.value ? "shown" : ""} />
      ))}
    </div>
  );
}

export function Failure({ error, again }: { error: ApiError; again?: () => void }) {
  return (
    <div class="alert" role="alert">
      <p>{error.message}</p>
      {error.problems.map(({ path, message }) => (
        <p key={path}>
          {path}: {message}
        </p>
      ))}
      {error.requestId && (
        <p class="muted">
          Request <code>{error.requestId}</code>
        </p>
      )}
      {again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}
