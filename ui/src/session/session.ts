/** The session of this browser: a cookie that scripts cannot read. The key itself is never kept. */

import { computed, signal } from "@preact/signals";
import type { Me } from "../api/types";
import { ApiError, request, whenUnauthorized } from "../api/request";

export type SessionState =
  { state: "unknown" } | { state: "out" } | { state: "in"; me: Me } | { state: "failed"; error: ApiError };

export const session = signal<SessionState>({ state: "unknown" });
export const me = computed(() => (session.value.state === "in" ? session.value.me : null));

export type Right = Me["may"][number];

/** Whether the session's role may do this. What it may not do is absent from the pages. */
export function may(right: Right): boolean {
  return me.value?.may.includes(right) ?? false;
}

whenUnauthorized(() => ended());

/** Forgets everything that the session has shown: the gate draws nothing but the login. */
export function ended(): void {
  if (session.value.state !== "out") session.value = { state: "out" };
}

/** Finds out whether the browser has a session. */
export async function resume(): Promise<void> {
  try {
    session.value = { state: "in", me: await request<Me>("me") };
  } catch (error) {
    if (error instanceof ApiError && error.status !== 401 && error.status !== 403)
      session.value = { state: "failed", error };
    else ended();
  }
}

/** Exchanges a key for a session. Throws `ApiError` where the key is refused. */
export async function login(key: string): Promise<void> {
  await request("session", { method: "POST", body: { key } });
  session.value = { state: "in", me: await request<Me>("me") };
}

/** Ends the session here and on the server. */
export async function logout(): Promise<void> {
  await request("session", { method: "DELETE" });
  ended();
}
