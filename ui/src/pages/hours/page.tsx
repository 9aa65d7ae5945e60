import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { useResource } from "../../api/load";
import type { IdleFigures, IdleReport } from "../../api/types";
import { hours, money, percent } from "../../format/numbers";
import { fullTime, span } from "../../format/times";
import { Content, Empty, Panel } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { csvOf } from "./csv";
import { stretchesPage } from "./stretches";

type Item = IdleReport["items"][number];
const PERIODS: readonly (readonly [string, string])[] = [
  ["1d", "1 day"],
  ["7d", "7 days"],
  ["14d", "14 days"],
];

/** A figure with its share of what was claimed, as the command line shows it. */
function share(part: number, of: IdleFigures): string {
  return hours(part) + (of.claimed ? ` (${percent((100 * part) / of.claimed)})` : "");
}

const COLUMNS: readonly Column<Item>[] = [
  {
    key: "deployment",
    title: "Deployment",
    cell: (one) =>
      one.deleted ? `${one.deployment}, deleted` : <a href={`/ui/deployments/${one.deployment}`}>{one.deployment}</a>,
    value: (one) => one.deployment,
  },
  { key: "policy", title: "Policy", cell: (one) => one.policy || "–", value: (one) => one.policy, rank: 2 },
  {
    key: "below",
    title: "Below",
    cell: (one) => percent(one.min_gpu_utilization),
    value: (one) => one.min_gpu_utilization,
    numeric: true,
    rank: 3,
  },
  {
    key: "claimed",
    title: "Claimed",
    cell: (one) => hours(one.gpu_hours.claimed),
    value: (one) => one.gpu_hours.claimed,
    numeric: true,
  },
  {
    key: "used",
    title: "Used",
    cell: (one) => share(one.gpu_hours.used, one.gpu_hours),
    value: (one) => one.gpu_hours.used,
    numeric: true,
    rank: 2,
  },
  {
    key: "wasted",
    title: "Wasted",
    cell: (one) => share(one.gpu_hours.wasted, one.gpu_hours),
    value: (one) => one.gpu_hours.wasted,
    numeric: true,
  },
  {
    key: "unknown",
    title: "Unknown",
    cell: (one) => share(one.gpu_hours.unknown, one.gpu_hours),
    value: (one) => one.gpu_hours.unknown,
    numeric: true,
    rank: 2,
  },
  {
    key: "freed",
    title: "Freed",
    cell: (one) => hours(one.gpu_hours.freed),
    value: (one) => one.gpu_hours.freed,
    numeric: true,
    rank: 2,
  },
];
const WOULD: Column<Item> = {
  key: "would",
  title: "Would free",
  cell: (one) => hours(one.gpu_hours.would_free),
  value: (one) => one.gpu_hours.would_free ?? null,
  numeric: true,
};

const COSTS = [
  ["claimed", "Claimed"],
  ["used", "Used"],
  ["wasted", "Wasted"],
  ["unknown", "Unknown"],
  ["would_free", "Would free"],
] as const;

/** The columns in money; none where no prices are set. */
function costsOf(report: IdleReport): Column<Item>[] {
  const { currency } = report;
  if (!currency) return [];
  return COSTS.filter(([figure]) => figure !== "would_free" || report.replayed).map(([figure, title]) => ({
    key: `${figure}_cost`,
    title: `${title}, ${currency}`,
    cell: (one) => money(one.cost?.[figure]),
    value: (one) => (one.cost?.[figure] == null ? null : Number(one.cost[figure])),
    numeric: true,
    ...(figure === "used" || figure === "unknown" ? { rank: 3 as const } : {}),
  }));
}

function stretchesOf(since: string): Column<Item> {
  return {
    key: "stretches",
    title: "When",
    cell: (one) => (
      <a class="no-wrap" href={stretchesPage(one.deployment, one.uid, since)}>
        idle stretches
      </a>
    ),
  };
}

/** GPU hours by deployment, and what a policy would have freed. What is shown is part of the address. */
export function Hours() {
  useTitle("GPU hours");
  const given = useMemo(() => new URLSearchParams(location.search), []);
  const since = useSignal(given.get("since") ?? "7d");
  const minimum = useSignal(given.get("min_gpu_utilization") ?? "");
  const window = useSignal(given.get("time_window") ?? "");
  const query = new URLSearchParams({ since: since.value });
  if (minimum.value && window.value) {
    query.set("min_gpu_utilization", minimum.value);
    query.set("time_window", window.value);
  }
  history.replaceState(null, "", `?${query}`);
  const read = useResource<IdleReport>(`reports/idle?${query}`);
  const replay = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const read = (name: string): string => {
      const value = form.get(name);
      return typeof value === "string" ? value.trim() : "";
    };
    minimum.value = read("minimum");
    window.value = read("window");
  };
  return (
    <>
      <div class="page-head">
        <h1>GPU hours</h1>
        <div class="actions">
          <label class="inline">
            Period{" "}
            <select value={since.value} onChange={(event) => (since.value = event.currentTarget.value)}>
              {!PERIODS.some(([value]) => value === since.value) && <option value={since.value}>{since.value}</option>}
              {PERIODS.map(([value, title]) => (
                <option key={value} value={value}>
                  {title}
                </option>
              ))}
            </select>
          </label>
          <form class="actions filters" onSubmit={replay}>
            <label>
              What if below{" "}
              <input
                name="minimum"
                type="number"
                min="1"
                max="100"
                size={4}
                defaultValue={minimum.value}
                placeholder="30"
              />{" "}
              %
            </label>
            <label>
              for{" "}
              <input name="window" size={6} defaultValue={window.value} placeholder="10m" pattern="\d+(\.\d+)?[smhd]" />
            </label>
            <button type="submit">Replay</button>
          </form>
        </div>
      </div>
      <Panel
        title="By deployment"
        actions={read.loaded.value.state === "there" && <Download report={read.loaded.value.value} />}
      >
        <Content of={read} rows={8}>
          {(report) => (
            <>
              <Table
                label="GPU hours"
                columns={[
                  ...COLUMNS,
                  ...(report.replayed ? [WOULD] : []),
                  ...costsOf(report),
                  stretchesOf(since.value),
                ]}
                rows={report.items}
                id={(one) => one.uid}
                sort={{ key: "wasted", descending: true }}
                empty={<Empty>No GPU was claimed in this time.</Empty>}
              />
              <Total report={report} />
            </>
          )}
        </Content>
      </Panel>
    </>
  );
}

function Total({ report }: { report: IdleReport }) {
  const { total, replayed, currency, total_cost: cost, unpriced } = report;
  return (
    <div class="muted">
      <p>
        In all {hours(total.claimed)} GPU hours claimed, {share(total.used, total)} used, {share(total.wasted, total)}{" "}
        wasted, {share(total.unknown, total)} unknown, {hours(total.freed)} freed by policies
        {replayed && <>, {hours(total.would_free)} would have been freed</>}.
      </p>
      {currency && (
        <p>
          In {currency}: {money(cost?.claimed)} claimed, {money(cost?.used)} used, {money(cost?.wasted)} wasted,{" "}
          {money(cost?.unknown)} unknown
          {replayed && <>, {money(cost?.would_free)} would have been freed</>}.
          {unpriced.length > 0 &&
            ` Without a price: ${unpriced.map((one) => `${one.model || "unknown"} (${hours(one.gpu_hours)} GPU hours)`).join(", ")}. Deployments on them have no amount and are not in these sums.`}
        </p>
      )}
      <p>
        From {fullTime(report.since)} to {fullTime(report.until)}. Wasted: claimed in minutes that never reached the
        percentage below which they count as idle. Unknown: claimed in minutes without samples.
        {replayed &&
          ` Would free: claimed after a policy of ${replayed.min_gpu_utilization} % / ${span(replayed.time_window)} would have found the instance idle.`}
      </p>
    </div>
  );
}

function Download({ report }: { report: IdleReport }) {
  const save = (): void => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(report)], { type: "text/csv" }));
    link.download = "gpu-hours.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  return (
    <button type="button" onClick={save}>
      CSV
    </button>
  );
}
