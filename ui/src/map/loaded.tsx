import type { Resource } from "../api/load";
import { Failure, Skeleton } from "../parts/panel";
import { GpuMap } from "./map";
import type { MapAnswer, MapGpu } from "./model";

interface LoadedMapProps {
  of: Resource<MapAnswer>;
  gpus: readonly MapGpu[];
  marked?: ReadonlySet<string>;
}

/** The map once its data are there. Before that, and where they failed, no GPU is known: that is not none. */
export function LoadedMap({ of, gpus, marked }: LoadedMapProps) {
  const loaded = of.loaded.value;
  if (loaded.state === "loading") return <Skeleton rows={8} />;
  if (loaded.state === "failed") return <Failure error={loaded.error} again={of.reload} />;
  return <GpuMap gpus={gpus} {...(marked ? { marked } : {})} />;
}
