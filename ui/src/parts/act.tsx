import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { asApiError } from "../api/load";
import { isLive } from "../live/cluster";
import { may, type Right } from "../session/session";
import { Dialog } from "./dialog";

export interface Confirmation {
  title: string;
  /** What ends by it, in sentences. */
  lines: string[];
  /** The name that must be typed. */
  typed?: string;
  /** Fields below the lines, and whether they are filled in. */
  form?: () => ComponentChildren;
  ready?: () => boolean;
  verb: string;
}

interface ActProps {
  right: Right;
  onAct: () => Promise<unknown>;
  confirm?: () => Confirmation;
  tone?: "primary" | "danger";
  disabled?: boolean;
  children: ComponentChildren;
}

/**
 * A button that changes something. A role that may not has no such button. It is off without a connection and while
 * the controller has not confirmed; a refusal is shown beside it in the API's words. Off, it keeps the focus.
 */
export function Act({ right, onAct, confirm, tone, disabled = false, children }: ActProps) {
  const busy = useSignal(false);
  const asking = useSignal<Confirmation | null>(null);
  const refused = useSignal("");
  if (!may(right)) return null;
  const run = async (): Promise<void> => {
    asking.value = null;
    busy.value = true;
    refused.value = "";
    try {
      await onAct();
    } catch (error) {
      refused.value = asApiError(error).message;
    } finally {
      busy.value = false;
    }
  };
  const off = disabled || busy.value || !isLive();
  const press = (): void => {
    if (off) return;
    if (confirm) asking.value = confirm();
    else void run();
  };
  return (
    <span class="act">
      <button type="button" class={tone} onClick={press} aria-disabled={off} aria-busy={busy.value}>
        {children}
      </button>
      {refused.value && (
        <span role="alert" class="refused">
          {refused.value}
        </span>
      )}
      {asking.value && <Confirm what={asking.value} onYes={() => void run()} onNo={() => (asking.value = null)} />}
    </span>
  );
}

function Confirm({ what, onYes, onNo }: { what: Confirmation; onYes: () => void; onNo: () => void }) {
  const typed = useSignal("");
  const ready = (what.typed === undefined || typed.value === what.typed) && (what.ready?.() ?? true);
  return (
    <Dialog title={what.title} onClose={onNo}>
      <form
        method="dialog"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) onYes();
        }}
      >
        {what.lines.map((line) => (
          <p key={line}>{line}</p>
        ))}
        {what.form?.()}
        {what.typed !== undefined && (
          <label>
            Type <code>{what.typed}</code> to confirm
            <input
              value={typed.value}
              onInput={(event) => (typed.value = event.currentTarget.value)}
              spellcheck={false}
              autocomplete="off"
            />
          </label>
        )}
        <footer>
          <button type="button" onClick={onNo}>
            Cancel
          </button>
          <button type="submit" class="danger" disabled={!ready || !isLive()}>
            {what.verb}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
