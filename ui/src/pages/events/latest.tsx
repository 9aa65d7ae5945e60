import { Panel } from "../../parts/panel";
import { FollowedEvents } from "./followed";

const SHOWN = 12;

/** The newest events of the cluster, as they come. */
export function LatestEvents() {
  return (
    <Panel
      title="What happened"
      actions={
        <a class="button" href="/ui/events">
          All events
        </a>
      }
    >
      <FollowedEvents path={`events?limit=${SHOWN * 2}`} newest={SHOWN} empty={() => "Nothing has happened yet."} />
    </Panel>
  );
}
