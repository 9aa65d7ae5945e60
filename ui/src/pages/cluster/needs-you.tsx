import { useEffect } from "preact/hooks";
import { useResource } from "../../api/load";
import { deployments, instances, workers } from "../../live/cluster";
import { Age } from "../../parts/age";
import { Content, Empty, Panel } from "../../parts/panel";
import { Badge, type Tone } from "../../parts/phase";
import { pageOf } from "../events/line";

/** One cause that needs a person. Its words are the API's. */
interface Entry {
  severity: string;
  code: string;
  since: string | null;
  title: string;
  message: string;
  count: number;
  subjects: { kind: string; name: string; uid?: string }[];
  advice: string[];
}

const TONES: Record<string, Tone> = { critical: "bad", error: "bad", warning: "wait", info: "off" };
const REREAD_MS = 5000;
const SETTLE_MS = 300;

/** What needs a person, worst first: one entry per cause. */
export function NeedsYou() {
  const read = useResource<{ items: Entry[] }>("attention", REREAD_MS);
  const [d, i, w] = [deployments.all, instances.all, workers.all];
  useEffect(() => {
    const timer = setTimeout(read.reload, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [d, i, w]);
  return (
    <Panel title="Needs you" part="needs-you">
      <Content of={read} rows={4}>
        {({ items }) =>
          items.length ? (
            <ul class="entries">
              {items.map((entry) => (
                <EntryLine key={keyOf(entry)} entry={entry} />
              ))}
            </ul>
          ) : (
            <Empty>Nothing needs you.</Empty>
          )
        }
      </Content>
    </Panel>
  );
}

function EntryLine({ entry }: { entry: Entry }) {
  const [first] = entry.subjects;
  const href = first ? pageOf(first.kind, first.name, first.uid ?? "") : null;
  return (
    <li data-code={entry.code}>
      <div class="entry-head">
        <Badge tone={TONES[entry.severity] ?? "wait"}>{entry.code.replaceAll("_", " ")}</Badge>
        {href ? <a href={href}>{entry.title}</a> : <strong>{entry.title}</strong>}
        {entry.since && (
          <span class="since">
            <Age at={entry.since} />
          </span>
        )}
      </div>
      <div class="muted">{entry.message}</div>
      {entry.advice.map((line) => (
        <div key={line}>{line}</div>
      ))}
    </li>
  );
}

function keyOf(entry: Entry): string {
  return `${entry.code} ${entry.subjects.map((one) => `${one.kind}/${one.name}`).join()}`;
}
