import { known, workers } from "../../live/cluster";
import { gpus, useMap } from "../../live/gpus";
import { LoadedMap } from "../../map/loaded";
import { Panel } from "../../parts/panel";
import { useTitle } from "../../parts/title";
import { LatestEvents } from "../events/latest";
import { Figures } from "./figures";
import { FirstSteps } from "./first-steps";
import { NeedsYou } from "./needs-you";

/** The whole cluster: figures, the map of all GPUs, what needs attention, and what happened. */
export function Cluster() {
  useTitle("Cluster");
  const map = useMap();
  // Without the map's data the figures are unknown, and not 0.
  const isKnown = map.loaded.value.state === "there";
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
      <Figures gpus={isKnown ? gpus.value : null} />
      <div class="columns">
        <Panel title="GPUs">
          <LoadedMap of={map} gpus={gpus.value} />
        </Panel>
        <NeedsYou />
      </div>
      <LatestEvents />
    </>
  );
}
