import { useRoute } from "preact-iso";
import { useMemo } from "preact/hooks";
import { useResource } from "../../api/load";
import type { IdleStretches } from "../../api/types";
import { count, hours } from "../../format/numbers";
import { duration, fullTime, span } from "../../format/times";
import { Content, Empty, Panel } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";

type Stretch = IdleStretches["items"][number];
const COLUMNS: readonly Column<Stretch>[] = [
  { key: "since", title: "From", cell: (one) => fullTime(one.since), value: (one) => Date.parse(one.since) },
  { key: "until", title: "To", cell: (one) => fullTime(one.until), value: (one) => Date.parse(one.until), rank: 2 },
  { key: "long", title: "Long", cell: (one) => duration(one.seconds), value: (one) => one.seconds, numeric: true },
  {
    key: "gpus",
    title: "GPUs at most",
    cell: (one) => count(one.gpus),
    value: (one) => one.gpus,
    numeric: true,
    rank: 2,
  },
  {
    key: "hours",
    title: "GPU hours wasted",
    cell: (one) => hours(one.gpu_hours),
    value: (one) => one.gpu_hours,
    numeric: true,
  },
];

/** The page of the idle stretches of a deployment, also of one that is deleted. */
export function stretchesPage(deployment: string, uid: string, since: string): string {
  return `/ui/hours/${encodeURIComponent(deployment)}?${new URLSearchParams({ uid, since })}`;
}

/** When one deployment wasted GPU hours. */
export function Stretches() {
  const name = useRoute().params.name ?? "";
  useTitle(`Idle stretches of ${name}`);
  const query = useMemo(() => new URLSearchParams(location.search).toString(), [name]);
  const read = useResource<IdleStretches>(`deployments/${encodeURIComponent(name)}/idle?${query}`);
  return (
    <>
      <div class="page-head">
        <h1>Idle stretches of {name}</h1>
        <a href="/ui/hours" class="aside">
          All GPU hours
        </a>
      </div>
      <Panel title="When GPU hours were wasted">
        <Content of={read} rows={6} missing={<Empty>No deployment has this name now.</Empty>}>
          {(found) => (
            <>
              <Table
                label="Idle stretches"
                columns={COLUMNS}
                rows={found.items}
                id={(one) => one.since}
                sort={{ key: "hours", descending: true }}
                empty={<Empty>No GPU hours were wasted.</Empty>}
              />
              <p class="muted">
                In all {hours(found.gpu_hours)} GPU hours wasted, in minutes below {found.min_gpu_utilization} %
                {found.policy && ` (policy ${found.policy})`}. From {fullTime(found.since)} to {fullTime(found.until)},
                which is {span(Math.round((Date.parse(found.until) - Date.parse(found.since)) / 1000))}.
              </p>
            </>
          )}
        </Content>
      </Panel>
    </>
  );
}
