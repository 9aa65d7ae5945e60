import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asApiError } from "../../api/load";
import { all, request } from "../../api/request";
import type { Plan } from "../../api/types";
import { gib } from "../../format/numbers";
import { deployments, instances, known, workers } from "../../live/cluster";
import { proposeDraft } from "../../manifest/manifest";
import { Empty, Panel, Skeleton } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { Words } from "../../parts/words";
import { may } from "../../session/session";
import { type Entry, entriesOf, manifestFor } from "./entries";
import { WellKnown } from "./well-known";

/** So many workers are asked for their caches at most; each answers by itself. */
const MOST_ASKED = 50;

/** Models that the cluster knows: deployed ones, and those in the caches of workers. */
export function Catalog() {
  useTitle("Catalog");
  const cached = useSignal<ReadonlyMap<string, string[]>>(new Map());
  const names = workers.all
    .filter((one) => one.status.connected)
    .slice(0, MOST_ASKED)
    .map((one) => one.name)
    .join();
  useEffect(() => {
    const ended = new AbortController();
    void readCaches(names ? names.split(",") : [], ended.signal).then((found) => {
      if (!ended.signal.aborted) cached.value = found;
    });
    return () => ended.abort();
  }, [names]);
  const entries = entriesOf(deployments.all, instances.all, cached.value);
  return (
    <>
      <div class="page-head">
        <h1>Catalog</h1>
        {may("operate") && (
          <a class="button primary" href="/ui/apply" onClick={() => proposeDraft(manifestFor("hf:Qwen/Qwen3-0.6B"))}>
            Deploy another model
          </a>
        )}
      </div>
      <Panel title="Models of this cluster">
        {known.value ? (
          <Table
            label="Models"
            columns={COLUMNS}
            rows={entries}
            id={(one) => one.model}
            sort={{ key: "model" }}
            empty={<Empty>No model is deployed or cached yet.</Empty>}
          />
        ) : (
          <Skeleton rows={6} />
        )}
      </Panel>
      <WellKnown />
    </>
  );
}

const COLUMNS: readonly Column<Entry>[] = [
  { key: "model", title: "Model", cell: (one) => <code>{one.model}</code>, value: (one) => one.model },
  {
    key: "deployments",
    title: "Deployed as",
    cell: (one) =>
      one.deployments.length
        ? one.deployments.map((name, index) => (
            <span key={name}>
              {index > 0 && ", "}
              <a href={`/ui/deployments/${name}`}>{name}</a>
            </span>
          ))
        : "–",
  },
  { key: "cached", title: "Cached on", cell: (one) => one.cachedOn.join(", ") || "–", rank: 2 },
  { key: "need", title: "Claims per GPU", cell: (one) => gib(one.needMib), value: (one) => one.needMib, numeric: true },
  { key: "fits", title: "Fits now", cell: (one) => <Fits model={one.model} /> },
  {
    key: "plan",
    title: "Plan",
    cell: (one) =>
      may("operate") && (
        <a class="button" href="/ui/apply" onClick={() => proposeDraft(manifestFor(one.model))}>
          Plan
        </a>
      ),
  },
];

function Fits({ model }: { model: string }) {
  const answer = useSignal("");
  const busy = useSignal(false);
  if (!may("operate")) return <>–</>;
  const check = async (): Promise<void> => {
    busy.value = true;
    try {
      answer.value = fitText(await planOf(model));
    } catch (error) {
      answer.value = asApiError(error).message;
    } finally {
      busy.value = false;
    }
  };
  if (answer.value) return <Words text={answer.value} />;
  return (
    <button type="button" onClick={() => void check()} disabled={busy.value} aria-busy={busy.value}>
      Where does it fit?
    </button>
  );
}

async function planOf(model: string): Promise<Plan> {
  const { parse } = await import("yaml");
  const manifest: unknown = parse(manifestFor(model));
  return request<Plan>("plan", { method: "POST", body: { manifests: [manifest] }, deadlineMs: 60_000 });
}

function fitText(plan: Plan): string {
  const [item] = plan.items;
  if (!item) return "It runs already.";
  if (item.fits)
    return `on ${item.workers?.length ? item.workers.join(", ") : (item.worker ?? "")}, ${gib(item.memory_mib_per_gpu)} on each GPU`;
  return item.explain?.message ?? item.reason ?? "nowhere";
}

async function readCaches(names: readonly string[], signal: AbortSignal): Promise<Map<string, string[]>> {
  const found = new Map<string, string[]>();
  await Promise.all(
    names.map(async (worker) => {
      try {
        for (const { name } of await all<{ name: string }>(`workers/${encodeURIComponent(worker)}/cache`, signal)) {
          found.set(name, [...(found.get(name) ?? []), worker]);
        }
      } catch {
        // A worker that does not answer has nothing to show; the page Workers says why.
      }
    }),
  );
  return found;
}
