import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useResource } from "../../api/load";
import type { Explain, Pending as PendingItem, PendingList } from "../../api/types";
import { ordinal } from "../../format/numbers";
import { instances } from "../../live/cluster";
import { Age, Until } from "../../parts/age";
import { Content, Empty, Panel } from "../../parts/panel";
import { Phase } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { Words } from "../../parts/words";
import { Advice } from "./advice";

const REREAD_MS = 5000;
const SETTLE_MS = 300;

const COLUMNS: readonly Column<PendingItem>[] = [
  {
    key: "place",
    title: "Place",
    cell: (one) => (one.place == null ? "–" : `${ordinal(one.place)} of ${one.of}`),
  },
  { key: "instance", title: "Instance", cell: (one) => <a href={`/ui/instances/${one.instance}`}>{one.instance}</a> },
  {
    key: "deployment",
    title: "Deployment",
    cell: (one) => <a href={`/ui/deployments/${one.deployment}`}>{one.deployment}</a>,
    rank: 2,
  },
  { key: "phase", title: "Phase", cell: (one) => <Phase phase={one.phase} />, rank: 2 },
  { key: "priority", title: "Priority", cell: (one) => one.priority, numeric: true },
  { key: "age", title: "Age", cell: (one) => <Age at={one.queued_at} />, numeric: true },
  {
    key: "reserved",
    title: "Capacity reserved",
    rank: 2,
    cell: (one) =>
      one.reserved_on?.length
        ? one.reserved_on.map((worker, index) => (
            <span key={worker}>
              {index > 0 && ", "}
              <a href={`/ui/workers/${worker}`}>{worker}</a>
            </span>
          ))
        : "–",
  },
];

/** All pending instances in the order in which they are placed, each with the reason. */
export function Pending() {
  useTitle("Pending");
  const read = useResource<PendingList>("pending", REREAD_MS);
  const now = instances.all;
  useEffect(() => {
    const timer = setTimeout(read.reload, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [now]);
  return (
    <>
      <div class="page-head">
        <h1>Pending</h1>
        <p class="muted">In the order in which they are placed.</p>
      </div>
      <Panel title="Queue" part="pending">
        <Content of={read}>
          {({ items, more }) => (
            <>
              <Table
                label="Pending instances"
                columns={COLUMNS}
                rows={items}
                id={(one) => one.instance}
                empty={<Empty>Nothing is pending.</Empty>}
                note={(one) => <Why one={one} advise={advisedFirst(items).has(one.instance)} />}
              />
              {more && <p class="muted">Further instances are pending.</p>}
            </>
          )}
        </Content>
      </Panel>
    </>
  );
}

const ADVISED = 5;

/** The instances whose advice is shown at once: the first of each of the first few deployments. It is costly to find. */
function advisedFirst(items: readonly PendingItem[]): Set<string> {
  const first = new Map<string, string>();
  for (const one of items) if (!first.has(one.deployment)) first.set(one.deployment, one.instance);
  return new Set([...first.values()].slice(0, ADVISED));
}

function Why({ one, advise }: { one: PendingItem; advise: boolean }) {
  const asked = useSignal(false);
  return (
    <>
      <Words text={one.message || one.reason || ""} />
      {one.not_before && (
        <>
          {" "}
          <Until at={one.not_before} over="due now" />
        </>
      )}
      {one.phase === "pending" &&
        (advise || asked.value ? (
          <Advised one={one} />
        ) : (
          <>
            {" "}
            <button type="button" class="plain" onClick={() => (asked.value = true)}>
              What would make it fit?
            </button>
          </>
        ))}
    </>
  );
}

const ADVICE_MS = 15_000;

function Advised({ one }: { one: PendingItem }) {
  const read = useResource<Explain>(`instances/${encodeURIComponent(one.instance)}/explain`, ADVICE_MS);
  const loaded = read.loaded.value;
  if (loaded.state !== "there") return null;
  return <Advice lines={loaded.value.advice} deployment={one.deployment} />;
}
