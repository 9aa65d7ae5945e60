import { known, workers } from "../../live/cluster";
import { gpus, useMap } from "../../live/gpus";
import { GpuMap } from "../../map/map";
import { Failure, Panel, Skeleton } from "../../parts/panel";
import { useTitle } from "../../parts/title";
import { LatestEvents } from "../events/latest";
import { Figures } from "./figures";
import { FirstSteps } from "./first-steps";
import { NeedsYou } from "./needs-you";

/** The whole cluster: figures, the map of all GPUs, what needs attention, and what happened. */
export function Cluster() {
  useTitle("Cluster");
  const map = useMap();
  const loaded = map.loaded.value;
  if (known.value && !workers.all.length)
    return (
      <>
        <h1 class="sr">Cluster</h1>
        <FirstSteps />
      </>
    );
  return (
    <>
      <h1 class="sr">Cluster</h1>
      <Figures gpus={gpus.value} />
      <div class="columns">
        <Panel title="GPUs">
          {loaded.state === "loading" && <Skeleton rows={8} />}
          {loaded.state === "failed" && <Failure error={loaded.error} again={map.reload} />}
          {loaded.state === "there" && <GpuMap gpus={gpus.value} />}
        </Panel>
        <NeedsYou />
      </div>
      <LatestEvents />
    </>
  );
}
