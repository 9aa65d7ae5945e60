import { useSignal } from "@preact/signals";

/** Copies a text. Without a secure context the browser has no clipboard, so the text is selected for the reader. */
export function Copy({ text, label = "Copy" }: { text: () => string | Promise<string>; label?: string }) {
  const done = useSignal("");
  const copy = async (): Promise<void> => {
    const value = await text();
    done.value = (await toClipboard(value)) ? "Copied" : "Copying failed: select the text by hand";
    setTimeout(() => (done.value = ""), 2000);
  };
  return (
    <span class="act">
      <button type="button" onClick={() => void copy()}>
        {label}
      </button>
      <span role="status" class="muted">
        {done.value}
      </span>
    </span>
  );
}

async function toClipboard(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("aria-hidden", "true");
  document.body.append(area);
  area.select();
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- the only way without a secure context
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
