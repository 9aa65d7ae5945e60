import { useSignal } from "@preact/signals";
import { useResource } from "../../api/load";
import { request } from "../../api/request";
import type { Key, KeyCreated, Page, Token, TokenCreated } from "../../api/types";
import { count } from "../../format/numbers";
import { Act } from "../../parts/act";
import { Age, Until } from "../../parts/age";
import { Copy } from "../../parts/copy";
import { Dialog } from "../../parts/dialog";
import { Content, Empty, Panel } from "../../parts/panel";
import { Badge } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";
import { useTitle } from "../../parts/title";
import { may } from "../../session/session";
import { NewKey } from "./new-key";
import { Secrets } from "./secrets";

/** Keys, join tokens and secrets, for administrators. A secret value is shown once, and kept nowhere. */
export function Access() {
  useTitle("Access");
  const shown = useSignal<{ title: string; value: string } | null>(null);
  const keys = useResource<Page<Key>>(may("administer") ? "keys" : null);
  const tokens = useResource<Page<Token>>(may("administer") ? "tokens" : null);
  if (!may("administer"))
    return (
      <>
        <h1>Access</h1>
        <p>Your role may not see this page.</p>
      </>
    );
  return (
    <>
      <div class="page-head">
        <h1>Access</h1>
      </div>
      <Panel
        title="API keys"
        actions={
          <NewKey
            onMade={(made) => {
              shown.value = { title: `Key ${made.name}`, value: made.key };
              keys.reload();
            }}
          />
        }
      >
        <Content of={keys}>
          {({ items }) => (
            <Table
              label="API keys"
              columns={keyColumns(keys.reload, (made) => {
                shown.value = { title: `Key ${made.name}`, value: made.key };
                keys.reload();
              })}
              rows={items.filter((one) => !one.revoked_at)}
              id={(one) => one.id}
              empty={<Empty>There is no key.</Empty>}
            />
          )}
        </Content>
      </Panel>
      <Panel
        title="Join tokens"
        actions={
          <Act
            right="administer"
            onAct={async () => {
              const made = await request<TokenCreated>("tokens", { method: "POST", body: {} });
              shown.value = { title: "Join token", value: made.token };
              tokens.reload();
            }}
          >
            Make a join token
          </Act>
        }
      >
        <Content of={tokens}>
          {({ items }) => (
            <Table
              label="Join tokens"
              columns={tokenColumns(tokens.reload)}
              rows={items.filter((one) => !one.revoked_at && (one.uses ?? 0) < (one.max_uses ?? 1))}
              id={(one) => one.id}
              empty={<Empty>No join token is unused.</Empty>}
            />
          )}
        </Content>
      </Panel>
      <Secrets />
      {shown.value && (
        <Dialog title={shown.value.title} onClose={() => (shown.value = null)}>
          <p>It is shown only here. Copy it now.</p>
          <p>
            <code class="wrap-anywhere">{shown.value.value}</code>
          </p>
          <footer>
            <Copy text={() => shown.value?.value ?? ""} />
            <button type="button" onClick={() => (shown.value = null)}>
              Done
            </button>
          </footer>
        </Dialog>
      )}
    </>
  );
}

function limitsOf(key: Key): string {
  const limits: [string, number | null | undefined][] = [
    ["requests/min", key.rpm],
    ["tokens/min", key.tpm],
    ["tokens/day", key.tokens_per_day],
    ["at once", key.parallel],
  ];
  const texts = limits.flatMap(([name, value]) => (value == null ? [] : [`${count(value)} ${name}`]));
  if (key.models?.length) texts.unshift(`models ${key.models.join(", ")}`);
  return texts.join("; ") || "none";
}

function keyColumns(reload: () => void, onRotated: (made: KeyCreated) => void): Column<Key>[] {
  return [
    { key: "name", title: "Name", cell: (one) => one.name, value: (one) => one.name },
    {
      key: "role",
      title: "Role",
      cell: (one) => <Badge tone={one.role === "admin" ? "wait" : "off"}>{one.role}</Badge>,
      value: (one) => one.role,
    },
    { key: "limits", title: "Limits", cell: limitsOf, rank: 2 },
    {
      key: "expires",
      title: "Expires",
      cell: (one) => (one.expires_at ? <Until at={one.expires_at} over="expired" /> : "never"),
      rank: 2,
    },
    {
      key: "used",
      title: "Used",
      cell: (one) => (one.used_at ? <Age at={one.used_at} ago /> : "never"),
      value: (one) => (one.used_at ? -Date.parse(one.used_at) : 0),
      numeric: true,
      rank: 2,
    },
    {
      key: "age",
      title: "Age",
      cell: (one) => <Age at={one.created_at} />,
      value: (one) => -Date.parse(one.created_at),
      numeric: true,
      rank: 2,
    },
    {
      key: "rotate",
      title: "Rotate",
      rank: 2,
      cell: (one) =>
        one.rotated_to ? (
          "replaced"
        ) : (
          <Act
            right="administer"
            onAct={async () =>
              onRotated(await request<KeyCreated>(`keys/${one.id}/rotate`, { method: "POST", body: {} }))
            }
            confirm={() => ({
              title: `Rotate key ${one.name}?`,
              lines: ["A new key with the same role and limits is made. The old one is valid for one more day."],
              verb: "Rotate",
            })}
          >
            Rotate
          </Act>
        ),
    },
    {
      key: "revoke",
      title: "Revoke",
      cell: (one) => (
        <Act
          right="administer"
          tone="danger"
          onAct={async () => {
            await request(`keys/${one.id}`, { method: "DELETE" });
            reload();
          }}
          confirm={() => ({
            title: `Revoke key ${one.name}?`,
            lines: ["Requests with it are refused at once, and its sessions end."],
            verb: "Revoke",
          })}
        >
          Revoke
        </Act>
      ),
    },
  ];
}

function tokenColumns(reload: () => void): Column<Token>[] {
  return [
    { key: "id", title: "Id", cell: (one) => <code>{one.id.slice(0, 8)}</code> },
    { key: "expires", title: "Expires", cell: (one) => <Until at={one.expires_at} over="expired" /> },
    { key: "hosts", title: "Hosts", cell: (one) => `${one.uses ?? 0} of ${one.max_uses ?? 1}`, numeric: true, rank: 1 },
    { key: "age", title: "Age", cell: (one) => <Age at={one.created_at} />, numeric: true },
    {
      key: "revoke",
      title: "Revoke",
      cell: (one) => (
        <Act
          right="administer"
          onAct={async () => {
            await request(`tokens/${one.id}`, { method: "DELETE" });
            reload();
          }}
        >
          Revoke
        </Act>
      ),
    },
  ];
}
