/** Requests to the controller's API: a deadline for each, and one kind of error. */

export interface FieldProblem {
  path: string;
  message: string;
}

/** A refused or failed request. `message` is the API's own sentence. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: Record<string, unknown> = {},
    readonly requestId = "",
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
  }

  /** The invalid fields, where the error is about fields. */
  get problems(): FieldProblem[] {
    const found = this.details.problems ?? this.details.fields;
    return Array.isArray(found) ? (found as FieldProblem[]) : [];
  }
}

export interface RequestOptions {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  deadlineMs?: number;
}

const DEADLINE_MS = 30_000;
const LONGEST_STREAM_MS = 24 * 3600_000;

/** Called when the server says that the session is over. */
let onUnauthorized: () => void = () => undefined;
export function whenUnauthorized(act: () => void): void {
  onUnauthorized = act;
}

/** Sends a request below `/api/v1` and gives the answer. Throws `ApiError` for every failure but an abort. */
export async function send(path: string, options: RequestOptions = {}): Promise<Response> {
  const signals = [AbortSignal.timeout(options.deadlineMs ?? DEADLINE_MS)];
  if (options.signal) signals.push(options.signal);
  const headers: Record<string, string> = { Accept: "application/json", ...options.headers };
  const init: RequestInit = { method: options.method ?? "GET", headers, signal: AbortSignal.any(signals) };
  if (options.body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  let response: Response;
  try {
    response = await fetch(path.startsWith("/") ? path : `/api/v1/${path}`, init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    const late = error instanceof DOMException && error.name === "TimeoutError";
    throw new ApiError(
      0,
      late ? "timeout" : "unreachable",
      late ? "The controller did not answer in time." : "The controller cannot be reached.",
    );
  }
  if (response.ok || response.status === 304) return response;
  const refused = await asError(response);
  if (refused.status === 401 && !path.startsWith("session")) onUnauthorized();
  throw refused;
}

/** Opens an answer that stays open: only its beginning has a deadline. Throws as `send`, but for an abort. */
export async function stream(path: string, over: AbortSignal): Promise<Response> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), DEADLINE_MS);
  try {
    return await send(path, { signal: AbortSignal.any([over, late.signal]), deadlineMs: LONGEST_STREAM_MS });
  } catch (error) {
    if (late.signal.aborted && !over.aborted)
      throw new ApiError(0, "timeout", "The controller did not answer in time.");
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** The JSON of an answer; `undefined` for an empty one. */
export async function request<T>(path: string, options: RequestOptions = {}): Promise<T> {
  const response = await send(path, options);
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

/** All items of a paged list. */
export async function all<T>(path: string, signal?: AbortSignal): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const mark: string = path.includes("?") ? "&" : "?";
    const page: { items: T[]; next?: string | null } = await request(
      cursor === null ? path : `${path}${mark}cursor=${encodeURIComponent(cursor)}`,
      signal ? { signal } : {},
    );
    items.push(...page.items);
    cursor = page.next ?? null;
  } while (cursor !== null && items.length < 100_000);
  return items;
}

async function asError(response: Response): Promise<ApiError> {
  const requestId = response.headers.get("X-Request-ID") ?? "";
  const after = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  const retry = Number.isFinite(after) ? after : null;
  try {
    const body = (await response.json()) as {
      error: { code: string; message: string; details?: Record<string, unknown> };
    };
    return new ApiError(
      response.status,
      body.error.code,
      body.error.message,
      body.error.details ?? {},
      requestId,
      retry,
    );
  } catch {
    return new ApiError(
      response.status,
      "unexpected",
      `The controller answered ${response.status}.`,
      {},
      requestId,
      retry,
    );
  }
}
