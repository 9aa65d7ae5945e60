/** Subscriptions of components: they end with the component. */

import { useEffect } from "preact/hooks";
import { socket } from "./cluster";
import type { LiveMessage, Topic } from "./socket";

/** Follows a topic while the component is shown. A new `key` begins anew; null follows nothing. */
export function useLive(
  topic: Topic,
  key: string | null,
  params: () => Record<string, unknown>,
  take: (message: LiveMessage) => void,
): void {
  const live = socket.value;
  useEffect(() => {
    if (live === null || key === null) return;
    return live.open(topic, params, take);
  }, [live, topic, key]);
}
