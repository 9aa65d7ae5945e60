import { useResource } from "../../api/load";
import type { CatalogModel, CatalogView } from "../../api/types";
import { count, gib, plural } from "../../format/numbers";
import { fullTime } from "../../format/times";
import { proposeDraft } from "../../manifest/manifest";
import { Content, Panel } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";
import { may } from "../../session/session";
import { manifestFor } from "./entries";

const REREAD_MS = 15_000;

/** Well-known models: what each needs by an estimate, and where the scheduler would place it now. */
export function WellKnown() {
  const read = useResource<CatalogView>("catalog", REREAD_MS);
  return (
    <Panel title="Well-known models" part="well-known">
      <Content of={read} rows={8}>
        {(found) => (
          <>
            <Table label="Well-known models" columns={COLUMNS} rows={found.items} id={(one) => one.model} />
            <p class="muted">
              Needs are estimated from published configs, with nothing else stated: for{" "}
              {contextText(found.items.find((one) => one.context))}. A plan reads the model's own files. Where each fits
              was judged by the scheduler at {fullTime(found.at)}, each model by itself; nothing is reserved.
            </p>
          </>
        )}
      </Content>
    </Panel>
  );
}

const COLUMNS: readonly Column<CatalogModel>[] = [
  {
    key: "model",
    title: "Model",
    cell: (one) => (
      <a href={one.source} rel="noreferrer" target="_blank">
        <code>{one.model}</code>
      </a>
    ),
    value: (one) => one.model,
  },
  {
    key: "parameters",
    title: "Parameters",
    cell: (one) => billions(one.parameters),
    value: (one) => one.parameters,
    numeric: true,
    rank: 3,
  },
  {
    key: "weights",
    title: "Weights",
    cell: weightsText,
    value: (one) => one.weight_bytes,
    numeric: true,
    rank: 2,
  },
  {
    key: "needs",
    title: "Needs (estimated)",
    cell: (one) => <span class="one-line">{needText(one)}</span>,
    value: (one) => one.layouts[0]?.memory_mib_per_gpu ?? null,
    wide: true,
  },
  {
    key: "fits",
    title: "Fits now",
    cell: (one) =>
      one.fits ? (
        <>
          on{" "}
          {one.fits.workers.map((name, index) => (
            <span key={name}>
              {index > 0 && ", "}
              <a href={`/ui/workers/${name}`}>{name}</a>
            </span>
          ))}
          , {plural(one.fits.layout.gpus, "GPU")} of {gib(one.fits.memory_mib_per_gpu)}, {one.fits.engine}
        </>
      ) : (
        <>no: {one.message}</>
      ),
    value: (one) => (one.fits ? 0 : 1),
    wide: true,
  },
  {
    key: "plan",
    title: "Plan",
    cell: (one) =>
      may("operate") && (
        <a
          class="button"
          href="/ui/apply"
          aria-label={`Plan ${one.model}`}
          onClick={() => proposeDraft(manifestFor(one.model))}
        >
          Plan
        </a>
      ),
  },
];

/** "17 GiB on 1 GPU", or with the most GPUs that it can be split over. */
function needText(one: CatalogModel): string {
  const [first, last] = [one.layouts[0], one.layouts.at(-1)];
  if (!first || !last) return "–";
  const text = `${gib(first.memory_mib_per_gpu)} on ${plural(first.gpus, "GPU")}`;
  return first === last ? text : `${text} to ${gib(last.memory_mib_per_gpu)} on each of ${last.gpus}`;
}

function contextText(one: CatalogModel | undefined): string {
  if (!one?.context || !one.sequences) return "the default context and concurrency";
  return `${count(one.sequences)} sequences of ${count(one.context)} tokens, or less where the model's own context is shorter`;
}

function billions(parameters: number | null): string {
  return parameters === null ? "–" : `${(parameters / 1e9).toFixed(1)} B`;
}

/** "15.3 GiB", of quantized ones with how: "awq 4 bit, 5.2 GiB". */
function weightsText({ weight_bytes, quantization, bits }: CatalogModel): string {
  const size = gib(weight_bytes / 2 ** 20);
  return quantization ? `${quantization}${bits == null ? "" : ` ${bits} bit`}, ${size}` : size;
}
