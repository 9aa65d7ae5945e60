/** One WebSocket per tab. It carries every subscription of the page, and comes back by itself. */

import { signal } from "@preact/signals";

/** A message of the server about one subscription. */
export interface LiveMessage {
  id: number;
  type: string;
  [field: string]: unknown;
}

export type Topic = "objects" | "gpus" | "events" | "logs";
export type LiveState = { state: "connecting" } | { state: "live" } | { state: "away"; since: number };

interface Subscription {
  topic: Topic;
  params: () => Record<string, unknown>;
  take: (message: LiveMessage) => void;
  /** Whether its snapshot has yet to come on this connection. */
  awaited: boolean;
}

const SESSION_OVER = 4401;
const SHORTEST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
/** A try waits this part of the time without a connection: a return after 20 s is noticed within 4 s. */
const WAIT_PART = 1 / 5;
/** A try without an answer for so long is given up: a host that is off swallows what is sent to it. */
const TRY_MS = 10_000;
/** A quiet cluster sends nothing, and a page does not see the server's pings: after so long it asks for a sign of life. */
const QUIET_MS = 15_000;
/** Without an answer to that for so long, the connection is dead. */
const ANSWER_MS = 10_000;
/** So long while a snapshot is awaited: it may be large, the link slow, and the answer is behind it. */
const FIRST_ANSWER_MS = 120_000;
const LARGE_FIRST: ReadonlySet<Topic> = new Set<Topic>(["objects", "gpus"]);
/** The id of the question. Subscriptions count from 1. */
const PING_ID = 0;

/** How long to wait before the next try: it grows with the time without a connection, up to 10 s; a third is random. */
function waitAfter(awayMs: number, random: number = Math.random()): number {
  const full = Math.min(LONGEST_WAIT_MS, Math.max(SHORTEST_WAIT_MS, awayMs * WAIT_PART));
  return full * (2 / 3 + random / 3);
}

export class LiveSocket {
  readonly state = signal<LiveState>({ state: "connecting" });
  private readonly subscriptions = new Map<number, Subscription>();
  private socket: WebSocket | null = null;
  private nextId = 1;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private silence: ReturnType<typeof setTimeout> | undefined;
  private closed = false;

  constructor(
    private readonly url: string,
    private readonly onSessionOver: () => void,
  ) {
    addEventListener("online", this.hurry);
    document.addEventListener("visibilitychange", this.hurry);
    this.connect();
  }

  /** Subscribes; the returned function ends it. `params` is asked again after each reconnect, so it may move on. */
  open(topic: Topic, params: () => Record<string, unknown>, take: (message: LiveMessage) => void): () => void {
    const id = this.nextId++;
    this.subscriptions.set(id, { topic, params, take, awaited: LARGE_FIRST.has(topic) });
    this.tell({ op: "open", id, topic, params: params() });
    return () => {
      if (this.subscriptions.delete(id)) this.tell({ op: "close", id });
    };
  }

  /** Ends the connection for good. */
  close(): void {
    this.closed = true;
    removeEventListener("online", this.hurry);
    document.removeEventListener("visibilitychange", this.hurry);
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.subscriptions.clear();
    this.socket?.close(1000);
  }

  private tell(message: Record<string, unknown>): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  private connect(): void {
    const socket = new WebSocket(this.url);
    this.socket = socket;
    this.timer = undefined;
    const giveUp = setTimeout(() => this.drop(socket), TRY_MS);
    socket.onopen = () => {
      clearTimeout(giveUp);
      this.state.value = { state: "live" };
      this.listen();
      for (const [id, subscription] of this.subscriptions) {
        subscription.awaited = LARGE_FIRST.has(subscription.topic);
        this.tell({ op: "open", id, topic: subscription.topic, params: subscription.params() });
      }
    };
    socket.onmessage = (event: MessageEvent<string>) => {
      this.listen();
      const message = JSON.parse(event.data) as LiveMessage;
      const subscription = this.subscriptions.get(message.id);
      if (!subscription) return;
      subscription.awaited = false;
      subscription.take(message);
    };
    socket.onclose = (event) => {
      clearTimeout(giveUp);
      this.lose(socket, event.code);
    };
  }

  /** Gives up a connection at once: `close` waits a minute for an answer of a peer that hangs, and tells only then. */
  private drop(socket: WebSocket): void {
    socket.onopen = socket.onmessage = socket.onclose = null;
    this.lose(socket);
    socket.close();
  }

  /** Says that the connection is lost, and tries again after a while. */
  private lose(socket: WebSocket, code?: number): void {
    if (this.closed || this.socket !== socket) return;
    clearTimeout(this.silence);
    this.socket = null;
    if (code === SESSION_OVER) {
      this.close();
      this.onSessionOver();
      return;
    }
    const state = this.state.value;
    const since = state.state === "away" ? state.since : Date.now();
    if (state.state !== "away") this.state.value = { state: "away", since };
    this.timer = setTimeout(() => this.connect(), waitAfter(Date.now() - since));
  }

  /** Tries at once where the network or the reader has come back: a hidden page's timers may be a minute late. */
  private readonly hurry = (): void => {
    if (this.timer === undefined || document.hidden) return;
    clearTimeout(this.timer);
    this.connect();
  };

  /** Begins to wait for the next message anew. */
  private listen(): void {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.tell({ op: "ping", id: PING_ID });
      const awaited = [...this.subscriptions.values()].some((one) => one.awaited);
      this.silence = setTimeout(() => this.socket && this.drop(this.socket), awaited ? FIRST_ANSWER_MS : ANSWER_MS);
    }, QUIET_MS);
  }
}
