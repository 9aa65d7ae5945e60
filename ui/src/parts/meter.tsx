/** A bar of a share, besides its figures. It says nothing to a screen reader: the figures do. */
export function Meter({ part, of, tone = "accent" }: { part: number | null; of: number; tone?: "accent" | "warn" }) {
  const share = part === null || of <= 0 ? 0 : Math.min(1, Math.max(0, part / of));
  return (
    <span class={`meter ${tone}`} aria-hidden="true">
      <i style={{ inlineSize: `${share * 100}%` }} />
    </span>
  );
}
