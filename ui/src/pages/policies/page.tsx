import { useLocation, useRoute } from "preact-iso";
import { useResource } from "../../api/load";
import { request } from "../../api/request";
import type { Page, Policy } from "../../api/types";
import { count, hours, plural } from "../../format/numbers";
import { span } from "../../format/times";
import { deployments } from "../../live/cluster";
import { proposeDraft } from "../../manifest/manifest";
import { Act } from "../../parts/act";
import { Content, Empty, Panel } from "../../parts/panel";
import { Badge, Phase } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { may } from "../../session/session";
import { Story } from "../events/story";

const REREAD_MS = 5000;

/** What a policy does, in a line: below 30 % for 10m: stop. */
function rule(policy: Policy): string {
  const { spec } = policy;
  return `below ${spec.min_gpu_utilization} % for ${span(Number(spec.time_window))}: ${spec.action ?? "stop"}`;
}

const COLUMNS: readonly Column<Policy>[] = [
  {
    key: "name",
    title: "Policy",
    cell: (one) => <a href={`/ui/policies/${one.name}`}>{one.name}</a>,
    value: (one) => one.name,
  },
  {
    key: "rule",
    title: "Rule",
    cell: (one) => (
      <>
        {rule(one)} {one.spec.dry_run && <Badge tone="wait">dry run</Badge>}{" "}
        {one.spec.default && <Badge tone="off">default</Badge>}
      </>
    ),
  },
  {
    key: "deployments",
    title: "Deployments",
    cell: (one) => count(one.status.watches?.deployments),
    value: (one) => one.status.watches?.deployments ?? 0,
    numeric: true,
    rank: 2,
  },
  {
    key: "idle",
    title: "Idle",
    cell: (one) => count(one.status.verdicts?.idle),
    value: (one) => one.status.verdicts?.idle ?? 0,
    numeric: true,
  },
  {
    key: "busy",
    title: "Busy",
    cell: (one) => count(one.status.verdicts?.busy),
    value: (one) => one.status.verdicts?.busy ?? 0,
    numeric: true,
    rank: 2,
  },
  {
    key: "unknown",
    title: "Unknown",
    cell: (one) => count(one.status.verdicts?.unknown),
    value: (one) => one.status.verdicts?.unknown ?? 0,
    numeric: true,
    rank: 2,
  },
  {
    key: "actions",
    title: "Acted",
    cell: (one) => count(one.status.actions),
    value: (one) => one.status.actions ?? 0,
    numeric: true,
    rank: 2,
  },
  {
    key: "would",
    title: "Would have acted",
    cell: (one) => count(one.status.would_have_acted),
    value: (one) => one.status.would_have_acted ?? 0,
    numeric: true,
    rank: 3,
  },
  {
    key: "freed",
    title: "GPU hours freed",
    cell: (one) => hours((one.status.gpu_seconds_freed ?? 0) / 3600),
    value: (one) => one.status.gpu_seconds_freed ?? 0,
    numeric: true,
  },
];

/** All utilization policies. */
export function Policies() {
  useTitle("Policies");
  const read = useResource<Page<Policy>>("policies?limit=1000", REREAD_MS);
  return (
    <>
      <div class="page-head">
        <h1>Policies</h1>
        {may("operate") && (
          <a class="button primary" href="/ui/apply" onClick={() => proposeDraft(EXAMPLE)}>
            Apply a policy
          </a>
        )}
      </div>
      <Panel title="Utilization policies">
        <Content of={read}>
          {({ items }) => (
            <Table
              label="Policies"
              columns={COLUMNS}
              rows={items}
              id={(one) => one.uid}
              sort={{ key: "name" }}
              empty={<Empty>No policy is applied: idle deployments keep their GPUs.</Empty>}
            />
          )}
        </Content>
      </Panel>
    </>
  );
}

const EXAMPLE = `kind: UtilizationPolicy
name: stop-idle
min_gpu_utilization: 10
time_window: 30m
action: stop
dry_run: true
`;

/** One policy: its rule, what it applies to, and what it did. */
export function PolicyPage() {
  const { name = "" } = useRoute().params;
  useTitle(name);
  const { route } = useLocation();
  const read = useResource<Policy>(`policies/${encodeURIComponent(name)}`, REREAD_MS);
  const own = deployments.all.filter((one) => one.status.policy?.name === name);
  return (
    <>
      <div class="page-head">
        <h1>{name}</h1>
        {read.loaded.value.state === "there" && (
          <div class="actions">
            <Act
              right="operate"
              tone="danger"
              onAct={async () => {
                await request(`policies/${encodeURIComponent(name)}`, { method: "DELETE" });
                route("/ui/policies");
              }}
              confirm={() => ({
                title: `Delete policy ${name}?`,
                lines: [
                  own.length ? `It applies to ${plural(own.length, "deployment")}.` : "It applies to no deployment.",
                ],
                verb: "Delete",
              })}
            >
              Delete
            </Act>
          </div>
        )}
      </div>
      <Content
        of={read}
        rows={6}
        missing={
          <p>
            No policy has this name now. <a href="/ui/policies">All policies</a>
          </p>
        }
      >
        {(policy) => (
          <div class="halves">
            <Panel title="Rule">
              <dl class="facts">
                <dt>Rule</dt>
                <dd>{rule(policy)}</dd>
                <dt>Dry run</dt>
                <dd>{policy.spec.dry_run ? "yes: it only records what it would do" : "no"}</dd>
                <dt>Default</dt>
                <dd>{policy.spec.default ? "yes: it applies where a deployment names no other" : "no"}</dd>
                <dt>Acted</dt>
                <dd>{count(policy.status.actions)}</dd>
                <dt>Would have acted</dt>
                <dd>{count(policy.status.would_have_acted)}</dd>
                <dt>GPU hours freed</dt>
                <dd>{hours((policy.status.gpu_seconds_freed ?? 0) / 3600)}</dd>
              </dl>
            </Panel>
            <Panel title="Applies to">
              {own.length ? (
                <ul class="entries">
                  {own.map((one) => (
                    <li key={one.uid}>
                      <div class="entry-head">
                        <a href={`/ui/deployments/${one.name}`}>{one.name}</a> <Phase phase={one.status.phase} />
                      </div>
                    </li>
                  ))}
                </ul>
              ) : (
                <Empty>It applies to no deployment.</Empty>
              )}
            </Panel>
          </div>
        )}
      </Content>
      <Story of={`policy/${name}`} empty="It has done nothing yet." />
    </>
  );
}
