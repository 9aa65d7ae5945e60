/** A text of the API. What stands in backquotes is a command or a name, and is set as such. */
export function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}
