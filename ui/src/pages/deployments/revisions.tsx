import { useEffect } from "preact/hooks";
import { useResource } from "../../api/load";
import { request } from "../../api/request";
import type { Deployment, Revision } from "../../api/types";
import { count } from "../../format/numbers";
import { changes, changeText } from "../../manifest/defaults";
import { Act } from "../../parts/act";
import { Age } from "../../parts/age";
import { Content, Panel } from "../../parts/panel";
import { Badge } from "../../parts/phase";
import { type Column, Table } from "../../parts/table";
import { actorText } from "../events/line";
import { Compare } from "./compare";

/** The revisions of a deployment, newest first, with what each has changed. */
export function Revisions({ deployment }: { deployment: Deployment }) {
  const { name, status } = deployment;
  const read = useResource<{ items: Revision[] }>(`deployments/${name}/revisions`);
  const known = `${status.revision} ${status.rollout?.stable ?? ""} ${status.rollout?.state ?? ""}`;
  const loaded = read.loaded.value.state !== "loading";
  useEffect(() => {
    if (loaded) read.reload();
  }, [known]);
  return (
    <Panel title="Revisions">
      <Content of={read} rows={3}>
        {({ items }) => {
          const sorted = [...items].sort((a, b) => b.revision - a.revision);
          return (
            <>
              <Table
                label="Revisions"
                columns={columns(sorted, name)}
                rows={sorted}
                id={(one) => String(one.revision)}
                note={(one) => changedText(one, sorted) || null}
              />
              <Compare name={name} revisions={sorted} />
            </>
          );
        }}
      </Content>
    </Panel>
  );
}

function changedText(one: Revision, all: readonly Revision[]): string {
  const before = all[all.indexOf(one) + 1];
  return before ? changes(before.spec, one.spec).map(changeText).join(", ") : "";
}

function columns(all: readonly Revision[], name: string): Column<Revision>[] {
  return [
    {
      key: "revision",
      title: "Revision",
      cell: (one) => (
        <>
          {count(one.revision)} {one.newest && <Badge tone="good">newest</Badge>}{" "}
          {one.stable && <Badge tone="off">stable</Badge>}
        </>
      ),
    },
    { key: "instances", title: "Instances", cell: (one) => count(one.instances), numeric: true },
    { key: "actor", title: "By", cell: (one) => (one.actor ? actorText(one.actor) : "–") },
    { key: "applied", title: "Applied", cell: (one) => <Age at={one.applied_at} />, numeric: true },
    ...(all.length > 1 ? [undoColumn(all, name)] : []),
  ];
}

function undoColumn(all: readonly Revision[], name: string): Column<Revision> {
  return {
    key: "undo",
    title: "Undo",
    cell: (one) =>
      !one.newest && (
        <Act
          right="operate"
          onAct={() =>
            request(`deployments/${name}/rollout/undo`, { method: "POST", body: { revision: one.revision } })
          }
          confirm={() => ({
            title: `Go back to revision ${one.revision}?`,
            lines: [
              `Changes back: ${goingBack(one, all)}.`,
              "Instances of the newest revision are replaced as `update` and `rollout` say.",
            ],
            verb: "Go back",
          })}
        >
          Go back
        </Act>
      ),
  };
}

function goingBack(one: Revision, all: readonly Revision[]): string {
  const newest = all.find((other) => other.newest);
  return newest ? changes(newest.spec, one.spec).map(changeText).join(", ") : "unknown";
}
