import { useSignal } from "@preact/signals";
import { ApiError, request } from "../../api/request";
import type { Deployment, Instance } from "../../api/types";
import { plural } from "../../format/numbers";
import { replicasText } from "../../format/objects";
import { deployments } from "../../live/cluster";
import { changes, changeText } from "../../manifest/defaults";
import { Act, type Confirmation } from "../../parts/act";
import { Ending } from "./ending";

interface ControlsProps {
  deployment: Deployment;
  instances: readonly Instance[];
}

const ENDED = new Set<string>(["succeeded", "failed", "replaced", "stopping"]);

/** What can be done with a deployment. Each confirmation names what ends. */
export function Controls({ deployment, instances }: ControlsProps) {
  const seen = useSignal(deployment);
  const wanted = useSignal("");
  const path = `deployments/${deployment.name}`;
  const live = instances.filter((one) => !ENDED.has(one.status.phase));
  const stopped = deployment.status.intents.some((one) => one.max_replicas === 0);
  const asked = (make: () => Confirmation) => (): Confirmation => {
    seen.value = deployment;
    wanted.value = typeof deployment.spec.replicas === "number" ? String(deployment.spec.replicas) : "";
    return make();
  };
  if (deployment.deleted_at) return null;
  return (
    <div class="actions">
      {deployment.status.intents.length > 0 && (
        <Act right="operate" tone="primary" onAct={() => unlessChanged(deployment, "POST", `${path}/start`)}>
          Start
        </Act>
      )}
      {!stopped && (
        <Act
          right="operate"
          onAct={() => unlessChanged(seen.value, "POST", `${path}/stop`)}
          confirm={asked(() => ({
            title: `Stop ${deployment.name}?`,
            lines: [],
            form: () => (
              <>
                <Ending deployment={deployment} live={live} />
                <p>The deployment stays, and starts again with Start.</p>
              </>
            ),
            verb: "Stop",
          }))}
        >
          Stop
        </Act>
      )}
      <Act
        right="operate"
        onAct={() => unlessChanged(seen.value, "POST", `${path}/scale`, { replicas: Number(wanted.value) })}
        confirm={asked(() => ({
          title: `Scale ${deployment.name}`,
          lines: [],
          form: () => (
            <>
              <label>
                Replicas (now {replicasText(deployment.spec.replicas)})
                <input
                  inputMode="numeric"
                  value={wanted.value}
                  onInput={(event) => (wanted.value = event.currentTarget.value.trim())}
                  autocomplete="off"
                />
              </label>
              <ScaleText wanted={wanted.value} live={live} deployment={deployment} />
            </>
          ),
          ready: () => /^\d{1,6}$/.test(wanted.value),
          verb: "Scale",
        }))}
      >
        Scale
      </Act>
      <Act
        right="operate"
        tone="danger"
        onAct={() => unlessChanged(seen.value, "DELETE", path)}
        confirm={asked(() => ({
          title: `Delete ${deployment.name}?`,
          lines: [],
          form: () => (
            <>
              <Ending deployment={deployment} live={live} />
              <p>Its manifest is gone then; its story and its GPU hours stay.</p>
            </>
          ),
          typed: deployment.name,
          verb: "Delete",
        }))}
      >
        Delete
      </Act>
    </div>
  );
}

function ScaleText({
  wanted,
  live,
  deployment,
}: {
  wanted: string;
  live: readonly Instance[];
  deployment: Deployment;
}) {
  if (!/^\d{1,6}$/.test(wanted)) return <p class="muted">Write a whole number, 0 or more.</p>;
  const fewer = live.length - Number(wanted);
  if (fewer <= 0) return <p>{fewer < 0 ? `${plural(-fewer, "instance")} more.` : "As many as there are."}</p>;
  return <Ending deployment={deployment} live={live} fewer={fewer} />;
}

/** Sends a change, unless the spec is another one by now than the one that was confirmed. */
async function unlessChanged(seen: Deployment, method: "POST" | "DELETE", path: string, body?: unknown): Promise<void> {
  const current = deployments.named(seen.name);
  if (current && current.generation !== seen.generation) throw changedMeanwhile(seen, current);
  const headers = { "If-Match": `"${seen.generation}"` };
  try {
    await request(path, body === undefined ? { method, headers } : { method, headers, body });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 412) throw error;
    throw changedMeanwhile(seen, await request<Deployment>(`deployments/${seen.name}`));
  }
}

function changedMeanwhile(seen: Deployment, current: Deployment): ApiError {
  const found = changes(seen.spec, current.spec).map(changeText);
  const what = found.length ? found.join(", ") : "it was applied anew";
  return new ApiError(
    412,
    "generation_conflict",
    `Changed meanwhile: ${what}. Nothing was done; look, then try again.`,
  );
}
