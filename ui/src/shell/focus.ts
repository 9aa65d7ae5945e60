/** The focus is never lost: where what had it leaves the page, the nearest that remains takes it. */

import { useEffect } from "preact/hooks";

const TAKES_FOCUS = "[tabindex], a[href], button, input, select, textarea, summary";

/** Keeps the focus within `#content`, as long as the component is shown. */
export function useKeptFocus(): void {
  useEffect(() => {
    const content = document.getElementById("content");
    if (!content) return;
    /** What has the focus, then what it stands in, from the inside. */
    let way: Element[] = [];
    const note = (event: FocusEvent): void => {
      way = [];
      for (let at = event.target as Element | null; at && content.contains(at); at = at.parentElement) way.push(at);
    };
    // What the reader leaves by a click into the void is not lost: it is still there.
    const leave = (): void =>
      queueMicrotask(() => {
        if (way[0]?.isConnected && document.activeElement === document.body) way = [];
      });
    const observer = new MutationObserver(() => {
      if (!way.length || way[0]?.isConnected || document.activeElement !== document.body) return;
      const next = way.find((one) => one.isConnected && one.matches(TAKES_FOCUS));
      way = [];
      if (next instanceof HTMLElement) next.focus({ preventScroll: true });
    });
    document.addEventListener("focusin", note);
    content.addEventListener("focusout", leave);
    observer.observe(content, { childList: true, subtree: true });
    return () => {
      document.removeEventListener("focusin", note);
      content.removeEventListener("focusout", leave);
      observer.disconnect();
    };
  }, []);
}
