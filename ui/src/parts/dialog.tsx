import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

/** A modal dialog. The browser keeps the focus in it and gives it back; Esc closes it. */
export function Dialog({ title, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  // With the page, not after its paint: keys that are pressed between would be the page's.
  useLayoutEffect(() => {
    const before = document.activeElement;
    const shown = dialog.current;
    shown?.showModal();
    return () => {
      shown?.close(); // while it is open, nothing else can have the focus
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  // The browser tells of a close later, when this dialog may be gone and the next one be there.
  const closed = (): void => {
    if (dialog.current) onClose();
  };
  // Esc: this comes at once. Until the close is told, a hidden field would have the focus, and take the next key.
  const cancelled = (event: Event): void => {
    if (event.target === dialog.current) onClose();
  };
  return (
    <dialog ref={dialog} aria-labelledby="dialog-title" onCancel={cancelled} onClose={closed}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}
