import { gib, percent } from "../format/numbers";
import { type Column, Table } from "../parts/table";
import { type MapGpu, ownerOf, STATES, stateWord } from "./model";

const COLUMNS: readonly Column<MapGpu>[] = [
  {
    key: "gpu",
    title: "GPU",
    cell: (gpu) => (
      <a href={`/ui/gpus/${gpu.uuid}`}>
        {gpu.worker} GPU {gpu.index}
      </a>
    ),
    value: (gpu) => `${gpu.worker} ${gpu.index}`,
  },
  { key: "state", title: "State", cell: (gpu) => stateWord(gpu.state), value: (gpu) => STATES.indexOf(gpu.state) },
  { key: "holder", title: "Claimed by", cell: (gpu) => ownerOf(gpu), value: (gpu) => ownerOf(gpu) },
  {
    key: "claimed",
    title: "Claimed",
    cell: (gpu) => gib(gpu.claimedMib),
    value: (gpu) => gpu.claimedMib,
    numeric: true,
  },
  {
    key: "total",
    title: "Memory",
    cell: (gpu) => gib(gpu.totalMib),
    value: (gpu) => gpu.totalMib,
    numeric: true,
    rank: 2,
  },
  {
    key: "utilization",
    title: "Utilization",
    cell: (gpu) => percent(gpu.utilization),
    value: (gpu) => gpu.utilization,
    numeric: true,
  },
  { key: "model", title: "Model", cell: (gpu) => gpu.model, value: (gpu) => gpu.model, rank: 3 },
];

/** The map as a table. */
export function MapTable({ gpus }: { gpus: readonly MapGpu[] }) {
  return <Table label="GPUs" columns={COLUMNS} rows={gpus} id={(gpu) => gpu.uuid} limit={200} />;
}
