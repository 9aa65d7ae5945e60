import type { Instance } from "../api/types";
import { fullTime, minuteOfDay } from "../format/times";

/** What a policy does about an instance, and when: "would stop at 14:05 (dry run)". Nothing where no time is known. */
export function Acts({ status }: { status: Instance["status"] }) {
  const found = status.utilization;
  const idle = found?.verdict === "idle";
  const at = idle ? found.since : found?.due_at;
  if (!found?.acts || !at) return null;
  return (
    <strong>
      {found.acts} {idle ? "since" : "at"}{" "}
      <time class="tip" dateTime={at} data-tip={fullTime(at)} tabIndex={0}>
        {minuteOfDay(at)}
      </time>
      {found.dry_run && " (dry run)"}
    </strong>
  );
}
