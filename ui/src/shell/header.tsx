import { useSignal } from "@preact/signals";
import { useLocation } from "preact-iso";
import { asApiError } from "../api/load";
import { clock } from "../format/times";
import { instances, socket } from "../live/cluster";
import { isLocal } from "../session/login";
import { logout, may, me, type Right } from "../session/session";
import { searching } from "./search";
import { type Theme, theme } from "./theme";

interface Place {
  title: string;
  href: string;
  right?: Right;
}
const PLACES: readonly Place[] = [
  { title: "Cluster", href: "/ui/" },
  { title: "Deployments", href: "/ui/deployments" },
  { title: "Pending", href: "/ui/pending" },
  { title: "Workers", href: "/ui/workers" },
  { title: "Catalog", href: "/ui/catalog" },
  { title: "GPU hours", href: "/ui/hours" },
  { title: "Policies", href: "/ui/policies" },
  { title: "Events", href: "/ui/events" },
  { title: "Playground", href: "/ui/playground", right: "infer" },
  { title: "Apply", href: "/ui/apply", right: "operate" },
  { title: "Access", href: "/ui/access", right: "administer" },
];

export function Header() {
  const { path } = useLocation();
  // On a narrow screen the pages are behind a button; a page that was chosen closes them.
  const opened = useSignal("");
  const isOpen = opened.value === path;
  const pending = instances.all.filter(
    (one) => one.status.phase === "pending" || one.status.phase === "analyzing",
  ).length;
  return (
    <header class="top">
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <a class="brand" href="/ui/">
        <img src="/ui/icon.svg" alt="" width="22" height="22" /> <span class="brand-name">Gpuward</span>
      </a>
      <button
        type="button"
        class="pages-button"
        aria-expanded={isOpen}
        aria-controls="pages"
        onClick={() => (opened.value = isOpen ? "" : path)}
      >
        Pages
      </button>
      <nav aria-label="Pages" id="pages" class={isOpen ? "open" : ""}>
        <ul>
          {PLACES.filter(({ right }) => !right || may(right)).map(({ title, href }) => (
            <li key={href}>
              <a href={href} aria-current={isWithin(path, href) ? "page" : undefined}>
                {title}
                {title === "Pending" && pending > 0 && <span class="number">{pending.toLocaleString("en-US")}</span>}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="side">
        <button type="button" onClick={() => (searching.value = true)}>
          Search <kbd>/</kbd>
        </button>
        <Live />
        <details class="menu">
          <summary>
            {me.value?.name}
            <span class="role"> ({me.value?.role})</span>
          </summary>
          <div class="menu-body">
            <label>
              Colours
              <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
                <option value="system">as the system</option>
                <option value="light">light</option>
                <option value="dark">dark</option>
              </select>
            </label>
            <button type="button" onClick={() => void leave()}>
              Log out
            </button>
          </div>
        </details>
        {location.protocol === "http:" && !isLocal() && (
          <span class="muted" data-part="insecure">
            not encrypted
          </span>
        )}
      </div>
    </header>
  );
}

async function leave(): Promise<void> {
  try {
    await logout();
  } catch (error) {
    alert(asApiError(error).message);
  }
}

function Live() {
  const state = socket.value?.state.value;
  if (state?.state === "live")
    return (
      <span class="live on" data-part="live" role="status">
        live
      </span>
    );
  if (state?.state === "away") {
    return (
      <span class="live off" data-part="live" role="status">
        no connection since {clock(state.since)}
      </span>
    );
  }
  return (
    <span class="live muted" data-part="live" role="status">
      connecting
    </span>
  );
}

function isWithin(path: string, href: string): boolean {
  return href === "/ui/" ? path === "/ui/" || path === "/ui" : path === href || path.startsWith(`${href}/`);
}
