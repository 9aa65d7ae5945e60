import { useSignal } from "@preact/signals";
import { request } from "../../api/request";
import { Act } from "../../parts/act";
import { Panel } from "../../parts/panel";

/** Secrets are written and deleted here, and can be read nowhere: there is no list of them either. */
export function Secrets() {
  const name = useSignal("");
  const value = useSignal("");
  const done = useSignal("");
  const path = (): string => `secrets/${encodeURIComponent(name.value.trim())}`;
  const fresh = (): void => {
    name.value = "";
    value.value = "";
    done.value = "";
  };
  const named = () => (
    <label>
      Name
      <input
        value={name.value}
        onInput={(event) => (name.value = event.currentTarget.value)}
        autocomplete="off"
        spellcheck={false}
      />
    </label>
  );
  return (
    <Panel
      title="Secrets"
      actions={
        <>
          <Act
            right="administer"
            onAct={async () => {
              const body = { value: value.value };
              value.value = "";
              await request(path(), { method: "PUT", body });
              done.value = `Secret ${name.value.trim()} is set.`;
            }}
            confirm={() => {
              fresh();
              return {
                title: "Set a secret",
                lines: ["An older value of this name is overwritten."],
                verb: "Set secret",
                ready: () => name.value.trim() !== "" && value.value !== "",
                form: () => (
                  <>
                    {named()}
                    <label>
                      Value
                      <input
                        type="password"
                        value={value.value}
                        onInput={(event) => (value.value = event.currentTarget.value)}
                        autocomplete="new-password"
                      />
                    </label>
                  </>
                ),
              };
            }}
          >
            Set a secret
          </Act>
          <Act
            right="administer"
            tone="danger"
            onAct={async () => {
              await request(path(), { method: "DELETE" });
              done.value = `Secret ${name.value.trim()} is deleted.`;
            }}
            confirm={() => {
              fresh();
              return {
                title: "Delete a secret",
                lines: ["Instances that need it cannot start again."],
                verb: "Delete secret",
                ready: () => name.value.trim() !== "",
                form: named,
              };
            }}
          >
            Delete a secret
          </Act>
        </>
      }
    >
      <p class="muted">Manifests name a secret, such as a token of Hugging Face. Its value is never shown again.</p>
      <p role="status">{done.value}</p>
    </Panel>
  );
}
