import { useSignal } from "@preact/signals";
import { useResource } from "../../api/load";
import { request } from "../../api/request";
import type { Page, Secret } from "../../api/types";
import { Act } from "../../parts/act";
import { Age } from "../../parts/age";
import { Content, Empty, Panel } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";

/** Names of secrets and what they are for. A value is written here, and can be read nowhere. */
export function Secrets() {
  const secrets = useResource<Page<Secret>>("secrets");
  const name = useSignal("");
  const value = useSignal("");
  const done = useSignal("");
  const set = async (): Promise<void> => {
    const body = { value: value.value };
    value.value = "";
    await request(pathOf(name.value.trim()), { method: "PUT", body });
    done.value = `Secret ${name.value.trim()} is set.`;
    secrets.reload();
  };
  const remove = async (one: Secret): Promise<void> => {
    await request(pathOf(one.name), { method: "DELETE" });
    done.value = `Secret ${one.name} is deleted.`;
    secrets.reload();
  };
  return (
    <Panel
      title="Secrets"
      actions={
        <Act
          right="administer"
          onAct={set}
          confirm={() => {
            name.value = value.value = done.value = "";
            return {
              title: "Set a secret",
              lines: ["An older value of this name is overwritten. What it is for stays as it was."],
              verb: "Set secret",
              ready: () => name.value.trim() !== "" && value.value !== "",
              form: () => (
                <>
                  <label>
                    Name
                    <input
                      value={name.value}
                      onInput={(event) => (name.value = event.currentTarget.value)}
                      autocomplete="off"
                      spellcheck={false}
                    />
                  </label>
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
      }
    >
      <p class="muted">Manifests name a secret, such as a token of Hugging Face. Its value is never shown again.</p>
      <p role="status">{done.value}</p>
      <Content of={secrets}>
        {({ items }) => (
          <Table
            label="Secrets"
            columns={columns(remove)}
            rows={items}
            id={(one) => one.name}
            empty={<Empty>No secret is set.</Empty>}
          />
        )}
      </Content>
    </Panel>
  );
}

function pathOf(name: string): string {
  return `secrets/${encodeURIComponent(name)}`;
}

function columns(remove: (one: Secret) => Promise<void>): Column<Secret>[] {
  return [
    { key: "name", title: "Name", cell: (one) => one.name, value: (one) => one.name },
    { key: "for", title: "For", cell: purpose },
    { key: "state", title: "At rest", cell: state, rank: 2 },
    {
      key: "used",
      title: "Used",
      cell: (one) => (one.used_at ? <Age at={one.used_at} ago /> : "never"),
      numeric: true,
      rank: 2,
    },
    { key: "changed", title: "Set", cell: (one) => <Age at={one.updated_at} ago />, numeric: true, rank: 2 },
    {
      key: "delete",
      title: "Delete",
      cell: (one) => (
        <Act
          right="administer"
          tone="danger"
          onAct={() => remove(one)}
          confirm={() => ({
            title: `Delete secret ${one.name}?`,
            lines: ["Instances that need it cannot start again."],
            verb: "Delete secret",
          })}
        >
          Delete
        </Act>
      ),
    },
  ];
}

function purpose({ deployments, admins_only }: Secret): string {
  const which = deployments.length ? deployments.join(", ") : "all deployments";
  return admins_only ? `${which}, written by administrators` : which;
}

function state({ encrypted, readable }: Secret): string {
  if (!readable) return "cannot be read: its key is missing";
  return encrypted ? "encrypted" : "not encrypted";
}
