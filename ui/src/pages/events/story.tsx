import type { Event } from "../../api/types";
import { Panel } from "../../parts/panel";
import { FollowedEvents } from "./followed";

const PAGE = 100;

interface StoryProps {
  /** The object whose events are told: `deployment/chat`, `worker/w1`, `gpu:UUID`. */
  of: string;
  /** The deployment to which it belongs, where it does: its new events are followed alone. */
  deployment?: string;
  empty?: string;
}

/** All that happened to an object, newest first, with what comes. */
export function Story({ of, deployment, empty = "Nothing has happened yet." }: StoryProps) {
  return (
    <Panel title="Story" part="story">
      <FollowedEvents
        path={`events?object=${encodeURIComponent(of)}&limit=${PAGE}`}
        {...(deployment === undefined ? {} : { deployment })}
        // The controller knows which events belong to a deployment, also to one of an older uid.
        {...(of === `deployment/${deployment ?? ""}` ? {} : { belongs: (event: Event) => isAbout(event, of) })}
        told
        empty={() => empty}
      />
    </Panel>
  );
}

/** Whether an event names the object as one of its subjects. */
export function isAbout(event: Event, of: string): boolean {
  const [, kind, name] = /^([a-z]+)[/:](.*)$/.exec(of) ?? [];
  return event.subjects.some((one) => one.kind.toLowerCase() === kind && (one.name === name || one.uid === name));
}
