/** Manifests as text: what they hold, and at which line each field stands. Pure. */

import { isMap, isNode, isScalar, isSeq, LineCounter, type Node, parseAllDocuments, stringify } from "yaml";
import type { FieldProblem } from "../../api/request";

/** A problem of the text, with the line (from 1) where it stands. */
export interface LineProblem {
  line: number;
  path: string;
  message: string;
}

export interface ParsedText {
  manifests: Record<string, unknown>[];
  /** Problems of the YAML itself. */
  problems: LineProblem[];
  /** The line of a path such as `[1].resources.gpus`; the nearest field above it where it is not written. */
  lineOf: (path: string) => number;
}

const MOST_BYTES = 2 ** 20;

/** Reads YAML or JSON. The values are checked by the controller; here only what could not be sent is refused. */
export function parseText(text: string): ParsedText {
  const lines = new LineCounter();
  if (text.length > MOST_BYTES) {
    const message = "larger than 1 MiB; split it into several applies";
    return { manifests: [], problems: [{ line: 1, path: "", message }], lineOf: () => 1 };
  }
  const parsed = parseAllDocuments(text, { lineCounter: lines, version: "1.2", schema: "core", uniqueKeys: true });
  const documents = Array.isArray(parsed) ? parsed.filter((one) => one.contents !== null) : [];
  const problems: LineProblem[] = [];
  const manifests: Record<string, unknown>[] = [];
  const roots: Node[] = [];
  for (const document of documents) {
    for (const error of document.errors) {
      const [message = error.message] = error.message.split(" at line ");
      problems.push({ line: lines.linePos(error.pos[0]).line, path: "", message });
    }
    if (!isNode(document.contents)) continue;
    const value = toJson(document);
    const line = lines.linePos(document.contents.range?.[0] ?? 0).line;
    if (typeof value === "object" && value !== null && !Array.isArray(value)) {
      manifests.push(value as Record<string, unknown>);
      roots.push(document.contents);
    } else if (!document.errors.length) {
      problems.push({ line, path: "", message: "not a manifest; write fields such as `kind: Deployment`" });
    }
  }
  return { manifests, problems, lineOf: (path) => lineOf(path, roots, lines) };
}

function toJson(document: { toJS: (options: { maxAliasCount: number }) => unknown }): unknown {
  try {
    return document.toJS({ maxAliasCount: 0 });
  } catch {
    return null;
  }
}

/** The steps of a path: `[1].args.a[0]` gives 1, "args", "a", 0. */
export function stepsOf(path: string): (string | number)[] {
  return [...path.matchAll(/\[(\d+)\]|([^.[\]]+)/g)].map(([, index, name]) =>
    index === undefined ? (name ?? "") : Number(index),
  );
}

function lineOf(path: string, roots: readonly Node[], lines: LineCounter): number {
  const steps = stepsOf(path);
  const first = typeof steps[0] === "number" ? (steps.shift() as number) : 0;
  let node: unknown = roots[first] ?? roots[0];
  let offset = isNode(node) ? (node.range?.[0] ?? 0) : 0;
  for (const step of steps) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isScalar(item.key) && item.key.value === step);
      if (!pair) break;
      if (isScalar(pair.key)) offset = pair.key.range?.[0] ?? offset;
      node = pair.value;
    } else if (isSeq(node) && typeof step === "number") {
      node = node.items[step];
      if (isNode(node)) offset = node.range?.[0] ?? offset;
    } else break;
  }
  return lines.linePos(offset).line;
}

/** The API's problems at their lines. */
export function atLines(problems: readonly FieldProblem[], parsed: ParsedText): LineProblem[] {
  return problems.map(({ path, message }) => ({
    line: parsed.lineOf(path),
    path: path.replace(/^\[\d+\]\.?/, ""),
    message,
  }));
}

/** Writes the first deployment of the text with these GPUs selected by hand; none: any fitting ones. */
export function withGpus(manifests: readonly Record<string, unknown>[], gpus: readonly string[]): string {
  let done = false;
  const changed = manifests.map((manifest) => {
    if (done || (manifest.kind !== undefined && manifest.kind !== "Deployment")) return manifest;
    done = true;
    const placement = without(manifest.placement, "gpus");
    const selected = gpus.length ? { ...placement, gpus: [...gpus] } : placement;
    const rest = without(manifest, "placement");
    return Object.keys(selected).length ? { ...rest, placement: selected } : rest;
  });
  return textOf(changed);
}

/** Manifests as YAML. */
export function textOf(manifests: readonly Record<string, unknown>[]): string {
  return manifests.map((manifest) => stringify(manifest, { lineWidth: 0 })).join("---\n");
}

function without(object: unknown, field: string): Record<string, unknown> {
  return Object.fromEntries(Object.entries((object ?? {}) as Record<string, unknown>).filter(([key]) => key !== field));
}
