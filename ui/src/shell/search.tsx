import { signal, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso";
import { useResource } from "../api/load";
import type { Page, Policy } from "../api/types";
import { deployments, instances, workers } from "../live/cluster";
import { Dialog } from "../parts/dialog";

export const searching = signal(false);

interface Found {
  kind: string;
  name: string;
  href: string;
}
/** The names of objects that no page follows. They are read when the search opens. */
interface Known {
  gpus: readonly string[];
  policies: readonly string[];
}
const NOTHING: Known = { gpus: [], policies: [] };
const MOST = 30;

/** Objects whose name or UUID contains the text; those that begin with it first. `more` are those the page does not follow. */
export function find(text: string, more: Known = NOTHING): Found[] {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const found: Found[] = [];
  const consider = (kind: string, name: string, href: string, also = ""): void => {
    if (`${name} ${also}`.toLowerCase().includes(wanted)) found.push({ kind, name, href });
  };
  for (const one of deployments.all) consider("deployment", one.name, `/ui/deployments/${one.name}`, one.uid);
  for (const one of workers.all) consider("worker", one.name, `/ui/workers/${one.name}`, one.uid);
  for (const one of instances.all) consider("instance", one.name, `/ui/instances/${one.name}`, one.uid);
  for (const name of more.policies) consider("policy", name, `/ui/policies/${name}`);
  for (const uuid of more.gpus) consider("GPU", uuid, `/ui/gpus/${uuid}`);
  const begins = (one: Found): number => (one.name.toLowerCase().startsWith(wanted) ? 0 : 1);
  return found.sort((a, b) => begins(a) - begins(b)).slice(0, MOST);
}

export function Search() {
  if (!searching.value) return null;
  return <SearchDialog />;
}

function SearchDialog() {
  const { route } = useLocation();
  const text = useSignal("");
  const chosen = useSignal(0);
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => field.current?.focus(), []);
  const map = useResource<{ gpus: { uuid: string[] } }>("map").loaded.value;
  const policies = useResource<Page<Policy>>("policies?limit=1000").loaded.value;
  const found = find(text.value, {
    gpus: map.state === "there" ? map.value.gpus.uuid : [],
    policies: policies.state === "there" ? policies.value.items.map((one) => one.name) : [],
  });
  const close = (): void => {
    searching.value = false;
  };
  const go = (to: Found | undefined): void => {
    if (!to) return;
    close();
    route(to.href);
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      chosen.value = Math.max(0, Math.min(found.length - 1, chosen.value + step));
    } else if (event.key === "Enter") {
      event.preventDefault();
      go(found[chosen.value]);
    }
  };
  return (
    <Dialog title="Search" onClose={close}>
      <input
        ref={field}
        role="combobox"
        aria-label="Name or UUID"
        aria-expanded={found.length > 0}
        aria-controls="found"
        aria-activedescendant={found.length ? `found-${chosen.value}` : undefined}
        placeholder="Part of a name or UUID"
        autocomplete="off"
        spellcheck={false}
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          chosen.value = 0;
        }}
        onKeyDown={press}
      />
      {found.length > 0 && (
        <div id="found" role="listbox" aria-label="Found" class="search-results">
          {found.map((one, index) => (
            <a
              key={one.href}
              id={`found-${index}`}
              role="option"
              aria-selected={index === chosen.value}
              href={one.href}
              tabIndex={-1}
              onClick={close}
            >
              <span class="wrap-anywhere">{one.name}</span> <span class="muted">{one.kind}</span>
            </a>
          ))}
        </div>
      )}
      {text.value.trim() && !found.length && <p class="empty">Nothing has this in its name.</p>}
    </Dialog>
  );
}
