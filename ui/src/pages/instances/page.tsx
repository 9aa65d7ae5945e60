import type { ComponentChildren } from "preact";
import { useRoute } from "preact-iso";
import { useResource } from "../../api/load";
import type { Explain, Instance } from "../../api/types";
import { count, gib, plural, shortGpu } from "../../format/numbers";
import { whyInstance } from "../../format/objects";
import { UtilizationPanel } from "../../graph/utilization";
import { instances, known } from "../../live/cluster";
import { LogViewer } from "../../log/viewer";
import { Acts } from "../../parts/acts";
import { Age, Until } from "../../parts/age";
import { Content, Empty, Panel, Skeleton } from "../../parts/panel";
import { Phase } from "../../parts/phase";
import { Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { Story } from "../events/story";
import { Advice } from "../pending/advice";

/** One instance: why it is as it is, what it holds and needs, its log and its story. */
export function InstancePage() {
  const name = useRoute().params.id ?? "";
  useTitle(name);
  const found = instances.all.find((one) => one.name === name || one.uid === name);
  if (!known.value) return <Skeleton rows={10} />;
  if (!found)
    return (
      <>
        <h1>{name}</h1>
        <p>
          No instance has this name now. <a href="/ui/deployments">All deployments</a>
        </p>
        <Story of={`instance/${name}`} />
      </>
    );
  const { status, spec } = found;
  return (
    <>
      <div class="page-head">
        <h1>{found.name}</h1>
        <Phase phase={status.phase} />
        {status.not_before && status.phase === "backoff" && <Until at={status.not_before} over="starting" />}
        <span class="muted">
          for <Age at={status.phase_since} />
        </span>
        <span>
          of <a href={`/ui/deployments/${spec.deployment}`}>{spec.deployment}</a>
        </span>
      </div>
      <Facts instance={found} />
      {(status.phase === "pending" || status.phase === "analyzing") && <Pending instance={found} />}
      <div class="halves">
        <Claims instance={found} />
        <Need instance={found} />
      </div>
      {status.claims.some((claim) => claim.kind === "gpu") && (
        <UtilizationPanel of={`instance=${encodeURIComponent(found.name)}`} empty="No GPU of it has samples." />
      )}
      {status.epoch > 0 && <LogViewer deployment={spec.deployment} instance={found.name} instances={[found]} />}
      <Story of={`instance/${found.name}`} deployment={spec.deployment} />
    </>
  );
}

function Facts({ instance }: { instance: Instance }) {
  const { status, spec } = instance;
  const why = whyInstance(instance);
  const found = status.utilization;
  const rows: [string, ComponentChildren][] = [];
  if (why)
    rows.push([
      "Why",
      <>
        {why} {status.reason && why !== status.reason && <code class="muted">{status.reason}</code>}
      </>,
    ]);
  if (found)
    rows.push([
      "Utilization",
      <>
        {found.verdict}: {found.message || found.reason} <Acts status={status} />
      </>,
    ]);
  rows.push(
    ["Engine", `${status.engine ?? spec.engine}${spec.runtime === "docker" ? " in Docker" : ""}`],
    ["Model", spec.model ?? "–"],
    ["Restarts", count(status.restarts)],
    ["Revision", count(spec.revision)],
    ["Age", <Age key="age" at={instance.created_at} />],
  );
  return (
    <Panel title="What it is">
      <dl class="facts columns-of-facts">
        {rows.map(([title, value]) => (
          <div key={title} class={title === "Why" || title === "Utilization" ? "whole" : ""}>
            <dt>{title}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </Panel>
  );
}

function Pending({ instance }: { instance: Instance }) {
  const read = useResource<Explain>(`instances/${instance.name}/explain`, 10_000);
  return (
    <Panel title="Why it is pending" part="explain">
      <Content of={read} rows={3}>
        {(found) => (
          <>
            <p>{found.message}</p>
            {found.note && <p>{found.note}</p>}
            <ul class="plain-list">
              {Object.entries(found.rejected).map(([code, workers]) => (
                <li key={code}>
                  <code>{code}</code> {plural(workers, "worker")}
                </li>
              ))}
              {found.nearest && (
                <li>
                  nearest: <a href={`/ui/workers/${found.nearest.worker}`}>{found.nearest.worker}</a>{" "}
                  {found.nearest.message || found.nearest.code}
                </li>
              )}
              {found.tried.map((one) => (
                <li key={`${one.gpus} ${one.tp}`}>
                  ruled out: {plural(one.gpus, "GPU")}, tp {one.tp} ({one.reason})
                </li>
              ))}
            </ul>
            {found.advice.length > 0 && (
              <>
                <h3>What would make it fit</h3>
                <Advice lines={found.advice} deployment={instance.spec.deployment} />
              </>
            )}
          </>
        )}
      </Content>
    </Panel>
  );
}

function Claims({ instance }: { instance: Instance }) {
  return (
    <Panel title="Claims">
      <Table
        label="Claims"
        rows={instance.status.claims}
        id={(one) => `${one.worker} ${one.device} ${one.rank}`}
        empty={<Empty>It claims nothing.</Empty>}
        note={(one) => (one.health === "ok" ? null : `${one.health}: ${one.health_reason}`)}
        columns={[
          {
            key: "device",
            title: "What",
            cell: (one) =>
              one.kind === "gpu" ? <a href={`/ui/gpus/${one.device}`}>GPU {shortGpu(one.device)}</a> : "host memory",
          },
          {
            key: "worker",
            title: "Worker",
            cell: (one) => <a href={`/ui/workers/${one.worker}`}>{one.worker}</a>,
          },
          {
            key: "memory",
            title: "Memory",
            cell: (one) => `${gib(one.memory_mib)}${one.exclusive ? ", whole" : ""}`,
            numeric: true,
          },
          { key: "rank", title: "Rank", cell: (one) => count(one.rank), numeric: true, rank: 3 },
        ]}
      />
    </Panel>
  );
}

function Need({ instance }: { instance: Instance }) {
  const { need, layout } = instance.status;
  return (
    <Panel title="Need and layout">
      {!need && !layout && <Empty>Nothing is known yet.</Empty>}
      <dl class="facts">
        {need && (
          <>
            <dt>GPU memory</dt>
            <dd>
              {need.memory_mib === null
                ? "unknown, so whole GPUs are claimed"
                : `${gib(need.memory_mib)} ${need.per_gpu ? "of each GPU" : "in total"}`}
            </dd>
          </>
        )}
        {Object.entries(need?.parts ?? {}).map(([part, size]) => (
          <>
            <dt key={part}>· {part}</dt>
            <dd>{gib(size)}</dd>
          </>
        ))}
        {need && need.host_memory_mib > 0 && (
          <>
            <dt>Host memory</dt>
            <dd>{gib(need.host_memory_mib)}</dd>
          </>
        )}
        {layout && (
          <>
            <dt>Layout</dt>
            <dd>
              {plural(layout.gpus, "GPU")} on {plural(layout.workers, "worker")}
              {layout.tp * layout.pp * layout.dp > 1 && ` (tp ${layout.tp}, pp ${layout.pp}, dp ${layout.dp})`}
            </dd>
          </>
        )}
      </dl>
      {need?.notes.map((line) => (
        <p key={line} class="muted">
          {line}
        </p>
      ))}
    </Panel>
  );
}
