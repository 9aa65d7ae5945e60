import { useSignal } from "@preact/signals";
import { type ComponentChildren, Fragment } from "preact";
import { compareNames } from "../live/collection";

/** A column. `value` sorts; null comes last in both directions. Columns of a higher rank leave earlier on narrow screens. */
export interface Column<T> {
  key: string;
  title: string;
  cell: (row: T) => ComponentChildren;
  value?: (row: T) => string | number | null;
  numeric?: boolean;
  /** Sentences: they wrap, but not to a word a line. */
  wide?: boolean;
  rank?: 1 | 2 | 3;
}

interface TableProps<T> {
  label: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  id: (row: T) => string;
  /** The order at first; without it the rows stay as they are given. */
  sort?: { key: string; descending?: boolean };
  empty?: ComponentChildren;
  /** A line of its own below a row, such as why it is pending. */
  note?: (row: T) => ComponentChildren;
  limit?: number;
}

/** A table that sorts by its headings. Rows keep their elements, so that focus and selection stay when data change. */
export function Table<T>({ label, columns, rows, id, sort, empty, note, limit = 500 }: TableProps<T>) {
  const order = useSignal(sort ?? null);
  const shownLimit = useSignal(limit);
  const by = columns.find((column) => column.key === order.value?.key);
  const sorted = by?.value ? [...rows].sort(comparing(by.value, order.value?.descending ?? false)) : rows;
  const turn = (column: Column<T>): void => {
    const same = order.value?.key === column.key;
    order.value = { key: column.key, descending: same ? !order.value?.descending : Boolean(column.numeric) };
  };
  if (!rows.length && empty) return <>{empty}</>;
  return (
    <div class="scroll" role="group" tabIndex={0} aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th
                key={column.key}
                scope="col"
                class={classes(column)}
                aria-sort={
                  order.value?.key === column.key ? (order.value.descending ? "descending" : "ascending") : undefined
                }
              >
                {column.value ? (
                  <button type="button" class="sort" onClick={() => turn(column)}>
                    {column.title}
                  </button>
                ) : (
                  column.title
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {sorted.slice(0, shownLimit.value).map((row) => {
            const more = note?.(row);
            return (
              <Fragment key={id(row)}>
                <tr data-row={id(row)} class={more ? "has-note" : undefined}>
                  {columns.map((column, index) =>
                    index === 0 ? (
                      <th key={column.key} scope="row" class={classes(column)}>
                        {column.cell(row)}
                      </th>
                    ) : (
                      <td key={column.key} class={classes(column)}>
                        {column.cell(row)}
                      </td>
                    ),
                  )}
                </tr>
                {more && (
                  <tr class="note">
                    <td colSpan={columns.length}>{more}</td>
                  </tr>
                )}
              </Fragment>
            );
          })}
        </tbody>
      </table>
      {sorted.length > shownLimit.value && (
        <button type="button" class="more" onClick={() => (shownLimit.value += limit)}>
          Show more ({(sorted.length - shownLimit.value).toLocaleString("en-US")} rows left)
        </button>
      )}
    </div>
  );
}

function classes<T>(column: Column<T>): string {
  return [column.numeric ? "numeric" : "", column.wide ? "wide" : "", column.rank ? `rank${column.rank}` : ""]
    .join(" ")
    .trim();
}

function comparing<T>(value: (row: T) => string | number | null, descending: boolean) {
  const sign = descending ? -1 : 1;
  return (a: T, b: T): number => {
    const [left, right] = [value(a), value(b)];
    if (left === null || right === null) return left === right ? 0 : left === null ? 1 : -1;
    if (typeof left === "number" && typeof right === "number") return sign * (left - right);
    return sign * compareNames(String(left), String(right));
  };
}
