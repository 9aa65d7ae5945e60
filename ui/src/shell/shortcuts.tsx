import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { useLocation } from "preact-iso";
import { Dialog } from "../parts/dialog";
import { may } from "../session/session";
import { searching } from "./search";

/** The second key after `g`, and where it leads. */
const PLACES: readonly (readonly [string, string, string])[] = [
  ["c", "Cluster", "/ui/"],
  ["d", "Deployments", "/ui/deployments"],
  ["p", "Pending", "/ui/pending"],
  ["w", "Workers", "/ui/workers"],
  ["h", "GPU hours", "/ui/hours"],
  ["o", "Policies", "/ui/policies"],
  ["e", "Events", "/ui/events"],
  ["m", "Catalog", "/ui/catalog"],
];
const NEXT_KEY_MS = 1500;
const helping = signal(false);

/** Shortcuts of all pages. None acts while one types, or with a modifier. */
export function Shortcuts() {
  const { route } = useLocation();
  // A ref: the page that `g d` opens makes a new listener, and a `g` may have been pressed before it.
  const prefixed = useRef(0);
  // With the page, not after its paint: a key that is pressed between would be lost.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (document.querySelector("dialog[open]")) return;
      if (Date.now() - prefixed.current < NEXT_KEY_MS) {
        prefixed.current = 0;
        const place = PLACES.find(([key]) => key === event.key);
        if (place) route(place[2]);
        else if (event.key === "a" && may("operate")) route("/ui/apply");
      } else if (event.key === "g") prefixed.current = Date.now();
      else if (event.key === "/") {
        event.preventDefault();
        searching.value = true;
      } else if (event.key === "?") helping.value = true;
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [route]);
  if (!helping.value) return null;
  return (
    <Dialog title="Shortcuts" onClose={() => (helping.value = false)}>
      <dl class="facts">
        <dt>
          <kbd>/</kbd>
        </dt>
        <dd>Search</dd>
        <dt>
          <kbd>?</kbd>
        </dt>
        <dd>This list</dd>
        {PLACES.map(([key, name]) => [
          <dt key={key}>
            <kbd>g</kbd> <kbd>{key}</kbd>
          </dt>,
          <dd key={name}>{name}</dd>,
        ])}
        {may("operate") && [
          <dt key="a">
            <kbd>g</kbd> <kbd>a</kbd>
          </dt>,
          <dd key="apply">Apply</dd>,
        ]}
        <dt>
          <kbd>T</kbd>
        </dt>
        <dd>On the map: the same as a table, and back</dd>
        <dt>
          <kbd>Esc</kbd>
        </dt>
        <dd>Close a dialog</dd>
      </dl>
      <footer>
        <button type="button" onClick={() => (helping.value = false)}>
          Close
        </button>
      </footer>
    </Dialog>
  );
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}
