import { useSignal } from "@preact/signals";
import { request } from "../../api/request";
import type { TokenCreated } from "../../api/types";
import { Act } from "../../parts/act";
import { Copy } from "../../parts/copy";
import { Panel } from "../../parts/panel";
import { may } from "../../session/session";

/** Shown while no worker is known: how to join the first GPU host. */
export function FirstSteps() {
  const token = useSignal("");
  const command = `gpuward agent --controller ${location.origin} --join-token ${token.value || "TOKEN"}`;
  return (
    <Panel title="Join the first GPU host" class="first-steps">
      <p>No worker has joined yet. Run this on a host with GPUs, once Gpuward is installed there:</p>
      <pre tabIndex={0}>
        <code>{command}</code>
      </pre>
      <p>
        <Copy text={() => command} />
        {!token.value && (
          <Act
            right="administer"
            onAct={async () => {
              token.value = (await request<TokenCreated>("tokens", { method: "POST", body: {} })).token;
            }}
          >
            Make a join token
          </Act>
        )}
      </p>
      {token.value ? (
        <p class="muted">The token is shown only here. It joins one host, and is valid for an hour.</p>
      ) : (
        !may("administer") && (
          <p class="muted">
            An administrator makes the token: <code>gpuward join-token create</code>
          </p>
        )
      )}
    </Panel>
  );
}
