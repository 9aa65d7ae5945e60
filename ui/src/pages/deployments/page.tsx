import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useRoute } from "preact-iso";
import type { Deployment, Instance } from "../../api/types";
import { count, gib, plural, sizeText } from "../../format/numbers";
import { modelText, replicasText, whyDeployment } from "../../format/objects";
import { span } from "../../format/times";
import { UtilizationPanel } from "../../graph/utilization";
import { deployments, instances, known } from "../../live/cluster";
import { LogViewer } from "../../log/viewer";
import { Age } from "../../parts/age";
import { Panel, Skeleton } from "../../parts/panel";
import { Phase } from "../../parts/phase";
import { useTitle } from "../../parts/title";
import { Story } from "../events/story";
import { Controls } from "./controls";
import { Replicas } from "./replicas";
import { Revisions } from "./revisions";
import { Spec } from "./spec";

/** One deployment: what it is, its replicas, its story, its manifest and its revisions. */
export function DeploymentPage() {
  const name = useRoute().params.name ?? "";
  useTitle(name);
  // The graphs of all replicas are read on demand: the page itself follows the live connection alone.
  const used = useSignal(false);
  const found = deployments.named(name);
  if (!known.value) return <Skeleton rows={10} />;
  if (!found) return <Gone name={name} />;
  const own = instances.all.filter((one) => one.spec.deployment_uid === found.uid);
  return (
    <>
      <div class="page-head">
        <h1>{name}</h1>
        <Phase phase={found.status.phase} />
        <span>
          {count(found.status.ready)} of {count(found.status.wanted)} ready
        </span>
        <Controls deployment={found} instances={own} />
      </div>
      <Facts deployment={found} instances={own} />
      <Replicas
        instances={own}
        actions={
          own.length > 0 &&
          !used.value && (
            <button type="button" onClick={() => (used.value = true)}>
              Show utilization
            </button>
          )
        }
      />
      {own.length > 0 && used.value && (
        <UtilizationPanel of={`deployment=${encodeURIComponent(name)}`} empty="No GPU of it has samples." />
      )}
      {own.length > 0 && <LogViewer deployment={name} instances={own} />}
      <Story of={`deployment/${name}`} deployment={name} />
      <div class="halves">
        <Spec deployment={found} />
        <Revisions deployment={found} />
      </div>
    </>
  );
}

function Gone({ name }: { name: string }) {
  return (
    <>
      <h1>{name}</h1>
      <p>
        No deployment has this name now. <a href="/ui/deployments">All deployments</a>
      </p>
      <Story of={`deployment/${name}`} deployment={name} />
    </>
  );
}

const WHOLE = new Set(["Why", "Command", "Model", "Rollout", "Scaling"]);

function Facts({ deployment, instances: own }: { deployment: Deployment; instances: readonly Instance[] }) {
  const { spec, status } = deployment;
  const why = whyDeployment(deployment);
  const claimed = own.flatMap((one) => one.status.claims.filter((claim) => claim.kind === "gpu"));
  const memory = claimed.reduce((sum, claim) => sum + claim.memory_mib, 0);
  // What has stopped it is the reason of its phase already.
  const limits = status.intents.filter((one) => one.max_replicas > 0 || status.phase !== "stopped");
  const rows: [string, ComponentChildren][] = [];
  if (why) rows.push(["Why", <Why key="why" code={status.reason} text={why} />]);
  rows.push(
    [
      spec.model === null && spec.command.length ? "Command" : "Model",
      <code key="m">{modelText(deployment) || "–"}</code>,
    ],
    ["Engine", spec.runtime === "docker" ? `${spec.engine} in Docker` : spec.engine],
    ["Replicas", replicasText(spec.replicas)],
    ["GPUs of each", `${spec.resources.gpus}${spec.resources.exclusive ? ", whole" : ""}`],
    ["Memory of each", sizeText(spec.resources.gpu_memory)],
    [
      "Claimed now",
      claimed.length ? `${gib(memory)} on ${plural(new Set(claimed.map((one) => one.device)).size, "GPU")}` : "nothing",
    ],
    ["Priority", `${count(spec.priority)}${spec.preempt ? ", may preempt" : ""}`],
    ["Policy", <PolicyText key="p" deployment={deployment} />],
    ["Age", <Age key="a" at={deployment.created_at} />],
  );
  if (status.rollout && status.rollout.state !== "complete")
    rows.push(["Rollout", `${status.rollout.state} to revision ${status.rollout.revision}: ${status.rollout.message}`]);
  if (status.scaling)
    rows.push(["Scaling", `${status.scaling.number} wanted: ${status.scaling.message || status.scaling.reason}`]);
  return (
    <Panel title="What it is">
      {limits.map((one) => (
        <p class="notice" key={`${one.source}${one.created_at}`}>
          Limited to {count(one.max_replicas)} {one.max_replicas === 1 ? "replica" : "replicas"} by {one.source}:{" "}
          {one.message || one.reason}{" "}
          <span class="muted">
            (<Age at={one.created_at} ago />)
          </span>
        </p>
      ))}
      <dl class="facts columns-of-facts">
        {rows.map(([title, value]) => (
          <div key={title} class={WHOLE.has(title) ? "whole" : ""}>
            <dt>{title}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </Panel>
  );
}

function Why({ code, text }: { code: string; text: string }) {
  return (
    <>
      {text} {code && text !== code && <code class="muted">{code}</code>}
    </>
  );
}

function PolicyText({ deployment }: { deployment: Deployment }) {
  const policy = deployment.status.policy;
  if (!policy) return <>none</>;
  const rule = `below ${policy.spec.min_gpu_utilization} % for ${spanText(policy.spec.time_window)}`;
  return (
    <>
      {policy.name ? <a href={`/ui/policies/${policy.name}`}>{policy.name}</a> : "inline"}{" "}
      <span class="muted">
        {rule}: {policy.spec.action.replace("_", " ")}
        {policy.spec.dry_run && " (dry run)"}
      </span>
    </>
  );
}

function spanText(seconds: number | string): string {
  return typeof seconds === "number" ? span(seconds) : seconds;
}
