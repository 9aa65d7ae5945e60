import type { ComponentChildren } from "preact";
import type { FieldChange } from "../api/types";
import { plural } from "../format/numbers";

/** Fields with their old and new values, and what each change does to running instances. */
export function FieldChanges({ changes, replaces = 0 }: { changes: readonly FieldChange[]; replaces?: number }) {
  if (!changes.length) return null;
  return (
    <div class="scroll" role="group" tabIndex={0} aria-label="Changed fields">
      <table class="diff">
        <thead>
          <tr>
            <th scope="col">Field</th>
            <th scope="col">Old</th>
            <th scope="col">New</th>
            <th scope="col">Effect</th>
          </tr>
        </thead>
        <tbody>
          {changes.map((change) => (
            <tr key={change.field}>
              <th scope="row">
                <code>{breakable(change.field)}</code>
              </th>
              <td>
                <del>{breakableValue(change.old)}</del>
              </td>
              <td>
                <ins>{breakableValue(change.new)}</ins>
              </td>
              <td>{effectText(change, replaces)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A path that may break before its dots. */
function breakable(path: string): ComponentChildren {
  return path.split(/(?=\.)/).map((part) => [part, <wbr key={part} />]);
}

/** A value that may break after its commas. */
function breakableValue(value: unknown): ComponentChildren {
  return written(value)
    .split(/(?<=,)/)
    .map((part, at) => [part, <wbr key={at} />]);
}

function effectText({ effect }: FieldChange, replaces: number): string {
  if (effect === "in_place") return "in place";
  return replaces ? `replaces ${plural(replaces, "instance")}` : "replaces";
}

function written(value: unknown): string {
  if (value === null || value === undefined) return "(not set)";
  return typeof value === "string" && value ? value : JSON.stringify(value);
}
