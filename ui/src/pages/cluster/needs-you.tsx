import { useEffect } from "preact/hooks";
import { useResource } from "../../api/load";
import type { AttentionEntry, AttentionList } from "../../api/types";
import { plural } from "../../format/numbers";
import { deployments, instances, workers } from "../../live/cluster";
import { Age } from "../../parts/age";
import { Content, Empty, Panel } from "../../parts/panel";
import { Badge, type Tone } from "../../parts/phase";
import { Words } from "../../parts/words";
import { pageOf } from "../events/line";

const TONES: Record<Severity, Tone> = { critical: "bad", error: "bad", warning: "wait", notice: "off" };
type Severity = AttentionEntry["severity"];
const REREAD_MS = 5000;
const SETTLE_MS = 300;

/** What needs a person, worst first: one entry per cause. */
export function NeedsYou() {
  const read = useResource<AttentionList>("attention", REREAD_MS);
  const [d, i, w] = [deployments.all, instances.all, workers.all];
  useEffect(() => {
    const timer = setTimeout(read.reload, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [d, i, w]);
  return (
    <Panel title="Needs you" part="needs-you">
      <Content of={read} rows={4}>
        {({ items, more }) =>
          items.length ? (
            <>
              <ul class="entries">
                {items.map((entry) => (
                  <EntryLine key={entry.id} entry={entry} />
                ))}
              </ul>
              {more > 0 && <p class="muted">{plural(more, "more entry", "more entries")}</p>}
            </>
          ) : (
            <Empty>Nothing needs you.</Empty>
          )
        }
      </Content>
    </Panel>
  );
}

function EntryLine({ entry }: { entry: AttentionEntry }) {
  const href = pageOf(entry.object.kind, entry.object.name ?? "", "");
  return (
    <li data-cause={entry.cause}>
      <div class="entry-head">
        <Badge tone={TONES[entry.severity]}>{entry.cause.replaceAll("_", " ")}</Badge>
        {href ? <a href={href}>{entry.title}</a> : <strong>{entry.title}</strong>}
        {entry.since && (
          <span class="since">
            <Age at={entry.since} />
          </span>
        )}
      </div>
      {entry.message && (
        <div class="muted">
          <Words text={entry.message} />
        </div>
      )}
      {entry.advice && (
        <div>
          <Words text={entry.advice} />
        </div>
      )}
    </li>
  );
}
