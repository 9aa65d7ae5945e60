import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { asApiError, useResource } from "../../api/load";
import { send } from "../../api/request";
import { count, tenths, UNKNOWN } from "../../format/numbers";
import { duration } from "../../format/times";
import { Copy } from "../../parts/copy";
import { Content, Empty, Panel } from "../../parts/panel";
import { useTitle } from "../../parts/title";
import { may } from "../../session/session";
import { piecesOf } from "./stream";

interface Turn {
  role: "user" | "assistant";
  content: string;
}
interface Measured {
  firstMs: number | null;
  totalMs: number | null;
  tokens: number | null;
}
const NOTHING: Measured = { firstMs: null, totalMs: null, tokens: null };
const ANSWER_LIMIT_MS = 30 * 60_000;

/** A chat with a deployed model. Nothing of it is stored: it ends with the page. */
export function Playground() {
  useTitle("Playground");
  const models = useResource<{ data: { id: string }[] }>(may("infer") ? "/v1/models" : null);
  if (!may("infer"))
    return (
      <>
        <h1>Playground</h1>
        <p>Your role may not send requests to models.</p>
      </>
    );
  return (
    <>
      <div class="page-head">
        <h1>Playground</h1>
      </div>
      <Content of={models}>
        {({ data }) =>
          data.length ? (
            <Chat models={data.map((one) => one.id)} />
          ) : (
            <Empty>
              No model is deployed. <a href="/ui/apply">Apply a deployment</a>
            </Empty>
          )
        }
      </Content>
    </>
  );
}

function Chat({ models }: { models: readonly string[] }) {
  const wanted = useMemo(() => new URLSearchParams(location.search).get("model"), []);
  const model = useSignal(wanted !== null && models.includes(wanted) ? wanted : (models[0] ?? ""));
  const turns = useSignal<Turn[]>([]);
  const prompt = useSignal("");
  const measured = useSignal<Measured>(NOTHING);
  const failed = useSignal("");
  const under = useRef<AbortController | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const busy = useSignal(false);
  useEffect(() => () => under.current?.abort(), []);

  const ask = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const content = prompt.value.trim();
    if (!content || busy.value) return;
    turns.value = [...turns.value, { role: "user", content }];
    prompt.value = "";
    field.current?.focus(); // Send is off now
    failed.value = "";
    measured.value = NOTHING;
    busy.value = true;
    const stop = new AbortController();
    under.current = stop;
    try {
      await answer(model.value, turns.value, stop.signal, (text, now) => {
        const last = turns.value.at(-1);
        const before = last?.role === "assistant" ? turns.value.slice(0, -1) : turns.value;
        turns.value = [...before, { role: "assistant", content: text }];
        measured.value = now;
      });
    } catch (error) {
      if (!stop.signal.aborted) failed.value = whyOf(error);
    } finally {
      busy.value = false;
      under.current = null;
    }
  };
  const stopAsking = (): void => {
    under.current?.abort();
    field.current?.focus();
  };
  return (
    <div class="halves">
      <Panel
        title="Chat"
        part="chat"
        actions={
          <label class="inline">
            Model{" "}
            <select value={model.value} onChange={(event) => (model.value = event.currentTarget.value)}>
              {models.map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </label>
        }
      >
        <ol class="turns" aria-live="polite">
          {turns.value.map((turn, index) => (
            <li key={index} class={turn.role}>
              <span class="muted">{turn.role === "user" ? "You" : model.value}</span>
              <div class="turn-text">{turn.content}</div>
            </li>
          ))}
        </ol>
        {failed.value && (
          <p class="alert" role="alert">
            {failed.value}
          </p>
        )}
        <form onSubmit={ask} class="prompt">
          <label class="sr" for="prompt">
            Message
          </label>
          <textarea
            ref={field}
            id="prompt"
            rows={3}
            value={prompt.value}
            placeholder="Message"
            onInput={(event) => (prompt.value = event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && !event.shiftKey) {
                event.preventDefault();
                event.currentTarget.form?.requestSubmit();
              }
            }}
          />
          <div class="actions">
            <button type="submit" class="primary" disabled={busy.value || !prompt.value.trim()}>
              Send
            </button>
            <button type="button" disabled={!busy.value} onClick={stopAsking}>
              Stop
            </button>
            <button
              type="button"
              class="plain"
              disabled={busy.value || !turns.value.length}
              onClick={() => {
                turns.value = [];
                measured.value = NOTHING;
                failed.value = "";
              }}
            >
              Clear
            </button>
          </div>
        </form>
      </Panel>
      <div class="stack">
        <Panel title="Measured">
          <Figures measured={measured.value} />
        </Panel>
        <Panel title="The same from a program">
          <Snippets model={model.value} />
        </Panel>
      </div>
    </div>
  );
}

function Figures({ measured: { firstMs, totalMs, tokens } }: { measured: Measured }) {
  const after = firstMs !== null && totalMs !== null ? totalMs - firstMs : null;
  const rate = after && tokens && tokens > 1 ? (1000 * (tokens - 1)) / after : null;
  return (
    <dl class="facts figures">
      <dt>Time to first token</dt>
      <dd>{firstMs === null ? UNKNOWN : duration(firstMs / 1000)}</dd>
      <dt>Whole answer</dt>
      <dd>{totalMs === null ? UNKNOWN : duration(totalMs / 1000)}</dd>
      <dt>Tokens</dt>
      <dd>{count(tokens)}</dd>
      <dt>Tokens per second</dt>
      <dd>{tenths(rate)}</dd>
    </dl>
  );
}

function whyOf(error: unknown): string {
  const known = asApiError(error);
  const after = known.retryAfterS === null ? "" : ` It can be tried again in ${duration(known.retryAfterS)}.`;
  return known.message + after;
}

/** Sends the chat and tells the answer so far, each time it grows. */
async function answer(
  model: string,
  messages: readonly Turn[],
  signal: AbortSignal,
  tell: (text: string, now: Measured) => void,
): Promise<void> {
  const begun = performance.now();
  const body = { model, messages, stream: true, stream_options: { include_usage: true } };
  const response = await send("/v1/chat/completions", { method: "POST", body, signal, deadlineMs: ANSWER_LIMIT_MS });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  let [buffer, text, counted] = ["", "", 0];
  const now: Measured = { ...NOTHING };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const { pieces, rest } = piecesOf(buffer + value);
    buffer = rest;
    for (const piece of pieces) {
      if (piece.text) {
        now.firstMs ??= performance.now() - begun;
        counted++;
      }
      text += piece.text;
      now.tokens = piece.tokens ?? Math.max(now.tokens ?? 0, counted);
    }
    now.totalMs = performance.now() - begun;
    tell(text, { ...now });
  }
}

function Snippets({ model }: { model: string }) {
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hello!" }] });
  const curl = `curl ${location.origin}/v1/chat/completions \\\n  -H "Authorization: Bearer $GPUWARD_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${body}'`;
  const python = `from openai import OpenAI\n\nclient = OpenAI(\n    base_url="${location.origin}/v1",\n    api_key=os.environ["GPUWARD_API_KEY"],\n)\nanswer = client.chat.completions.create(\n    model="${model}",\n    messages=[{"role": "user", "content": "Hello!"}],\n)`;
  return (
    <>
      {[
        ["curl", curl],
        ["openai (Python)", `import os\n${python}`],
      ].map(([title = "", text = ""]) => (
        <section key={title} class="snippet">
          <h3>
            {title} <Copy text={() => text} />
          </h3>
          <pre tabIndex={0}>
            <code>{text}</code>
          </pre>
        </section>
      ))}
    </>
  );
}
