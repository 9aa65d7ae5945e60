import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { asApiError } from "../api/load";
import { plural } from "../format/numbers";
import { login } from "./session";

/** The only page that is drawn without a session. */
export function Login() {
  const field = useRef<HTMLInputElement>(null);
  const refused = useSignal("");
  const waitS = useSignal(0);
  const busy = useSignal(false);

  useEffect(() => field.current?.focus(), []);
  useEffect(() => {
    if (waitS.value <= 0) return;
    const timer = setTimeout(() => waitS.value--, 1000);
    return () => clearTimeout(timer);
  }, [waitS.value]);

  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const key = field.current?.value.trim() ?? "";
    if (!key || busy.value) return;
    busy.value = true;
    try {
      await login(key);
    } catch (error) {
      const known = asApiError(error);
      refused.value = known.message;
      waitS.value = known.status === 429 ? Math.ceil(known.retryAfterS ?? 60) : 0;
    } finally {
      busy.value = false;
      if (field.current) {
        field.current.value = "";
        field.current.focus();
      }
    }
  };

  const message = waitS.value > 0 ? `Too many attempts. Try again in ${plural(waitS.value, "second")}.` : refused.value;
  return (
    <main class="login">
      <form onSubmit={submit} autocomplete="off">
        <h1>
          <img src="/ui/icon.svg" alt="" width="28" height="28" /> Gpuward
        </h1>
        <label for="key">API key</label>
        <input
          ref={field}
          id="key"
          type="password"
          name="key"
          required
          autocomplete="off"
          spellcheck={false}
          aria-describedby={message ? "refused" : "hint"}
          aria-invalid={message ? true : undefined}
        />
        {message && (
          <p id="refused" role="alert" class="alert">
            {message}
          </p>
        )}
        <button type="submit" class="primary" disabled={busy.value || waitS.value > 0}>
          {busy.value ? "Logging in" : "Log in"}
        </button>
        <p id="hint" class="muted">
          A key is made with <code>gpuward key create --role viewer</code>. It stays in this form: the browser keeps
          only a session of 12 hours.
        </p>
        {location.protocol === "http:" && !isLocal() && (
          <p class="muted" data-part="insecure">
            This page came without TLS: the way to the controller is not encrypted.
          </p>
        )}
      </form>
    </main>
  );
}

export function isLocal(): boolean {
  return ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
}
