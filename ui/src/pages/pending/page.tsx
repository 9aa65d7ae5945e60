import { useEffect } from "preact/hooks";
import { useResource } from "../../api/load";
import type { Pending as PendingItem, PendingList } from "../../api/types";
import { ordinal } from "../../format/numbers";
import { instances } from "../../live/cluster";
import { Age, Until } from "../../parts/age";
import { Content, Empty, Panel } from "../../parts/panel";
import { Phase } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { Words } from "../../parts/words";

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
  { key: "phase", title: "Phase", cell: (one) => <Phase phase={one.phase} /> },
  { key: "priority", title: "Priority", cell: (one) => one.priority, numeric: true },
  { key: "age", title: "Age", cell: (one) => <Age at={one.queued_at} />, numeric: true },
  {
    key: "reserved",
    title: "Capacity reserved",
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
                note={(one) => <Why one={one} />}
              />
              {more && <p class="muted">Further instances are pending.</p>}
            </>
          )}
        </Content>
      </Panel>
    </>
  );
}

function Why({ one }: { one: PendingItem }) {
  return (
    <>
      <Words text={one.message || one.reason || ""} />
      {one.not_before && (
        <>
          {" "}
          <Until at={one.not_before} over="due now" />
        </>
      )}
    </>
  );
}
