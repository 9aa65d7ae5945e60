/** A spec without what equals the defaults, by the JSON schema of the API. Pure. */

export interface Schema {
  $ref?: string;
  default?: unknown;
  properties?: Record<string, Schema>;
  anyOf?: Schema[];
  oneOf?: Schema[];
}
export type Schemas = Readonly<Record<string, Schema>>;
type Fields = Record<string, unknown>;

/** `value` as a user would write it: fields that have their default are left out, at every depth. */
export function withoutDefaults(value: unknown, schema: Schema, schemas: Schemas): unknown {
  const properties = isFields(value) ? propertiesOf(schema, schemas) : undefined;
  if (!properties || !isFields(value)) return value;
  const kept: Fields = {};
  for (const [name, part] of Object.entries(value)) {
    const field = properties[name];
    if (!field) {
      kept[name] = part;
      continue;
    }
    const written = withoutDefaults(part, field, schemas);
    if ("default" in field && equal(written, withoutDefaults(field.default, field, schemas))) continue;
    kept[name] = written;
  }
  return kept;
}

function propertiesOf(schema: Schema, schemas: Schemas): Record<string, Schema> | undefined {
  if (schema.properties) return schema.properties;
  if (schema.$ref) {
    const named = schemas[schema.$ref.slice(schema.$ref.lastIndexOf("/") + 1)];
    return named && propertiesOf(named, schemas);
  }
  for (const one of [...(schema.anyOf ?? []), ...(schema.oneOf ?? [])]) {
    const found = propertiesOf(one, schemas);
    if (found) return found;
  }
  return undefined;
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Whether two JSON values are the same, whatever the order of their fields. */
export function equal(left: unknown, right: unknown): boolean {
  if (Array.isArray(left) && Array.isArray(right))
    return left.length === right.length && left.every((one, place) => equal(one, right[place]));
  if (isFields(left) && isFields(right)) {
    const names = Object.keys(left);
    return (
      names.length === Object.keys(right).length &&
      names.every((name) => name in right && equal(left[name], right[name]))
    );
  }
  return left === right;
}

export interface Change {
  field: string;
  before: unknown;
  after: unknown;
}

/** The fields in which two specs differ, by their path: `resources.gpus`. */
export function changes(before: unknown, after: unknown, path = ""): Change[] {
  if (!isFields(before) || !isFields(after)) return equal(before, after) ? [] : [{ field: path, before, after }];
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return names.flatMap((name) => changes(before[name], after[name], path ? `${path}.${name}` : name));
}

/** A change in one line: `replicas 3 → 2`. */
export function changeText({ field, before, after }: Change): string {
  return `${field} ${short(before)} → ${short(after)}`;
}

function short(value: unknown): string {
  if (value == null) return "–";
  const text = typeof value === "string" ? sizeText(value) : JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

/** A size as the API's comparisons write it: `2048MiB` is `2GiB`. Other text stays. */
function sizeText(value: string): string {
  const mib = Number(/^(\d+)MiB$/.exec(value)?.[1] ?? 0);
  return mib && mib % 1024 === 0 ? `${mib / 1024}GiB` : value;
}
