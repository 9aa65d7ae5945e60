/** One read of the API as a signal: loading, failed or there. */

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ApiError, request } from "./request";

export type Loaded<T> =
  { state: "loading" } | { state: "failed"; error: ApiError } | { state: "there"; value: T; again: boolean };

export interface Resource<T> {
  readonly loaded: Signal<Loaded<T>>;
  /** Reads again; what was there stays shown meanwhile. */
  reload: () => void;
}

/** Reads `path` when the component appears, when the path changes, and every `everyMs` where given. */
export function useResource<T>(path: string | null, everyMs = 0, read: Reader<T> = request): Resource<T> {
  const loaded = useSignal<Loaded<T>>({ state: "loading" });
  const round = useSignal(0);
  const wanted = round.value;
  const of = useRef(path);
  if (of.current !== path) {
    of.current = path; // the answer of another path is never shown as the one of this path
    loaded.value = { state: "loading" };
  }
  useEffect(() => {
    if (path === null) return;
    const ended = new AbortController();
    const once = async (): Promise<void> => {
      try {
        const value = await read(path, { signal: ended.signal });
        if (!ended.signal.aborted) loaded.value = { state: "there", value, again: false };
      } catch (error) {
        if (ended.signal.aborted) return;
        // A later failure of a repeated read keeps what is shown: the connection's state says the rest.
        if (everyMs && loaded.value.state === "there") return;
        loaded.value = { state: "failed", error: asApiError(error) };
      }
    };
    void once();
    const timer = everyMs ? setInterval(() => void once(), everyMs) : 0;
    return () => {
      ended.abort();
      clearInterval(timer);
    };
  }, [path, everyMs, wanted]);
  return { loaded, reload: () => void round.value++ };
}

export type Reader<T> = (path: string, options: { signal: AbortSignal }) => Promise<T>;

export function asApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError(0, "unexpected", String(error));
}
