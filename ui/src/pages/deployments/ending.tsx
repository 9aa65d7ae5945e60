import { useResource } from "../../api/load";
import type { Deployment, DeploymentLoad, Instance } from "../../api/types";
import { count, plural } from "../../format/numbers";
import { span } from "../../format/times";

const HOLDS_PROCESS = new Set<string>(["starting", "running", "unhealthy", "unreachable"]);
const REREAD_MS = 2000;
const MOST_NAMED = 8;

interface EndingProps {
  deployment: Deployment;
  /** Its instances that have not ended. */
  live: readonly Instance[];
  /** How many of them leave. Which ones, the controller chooses. */
  fewer?: number;
}

/** What ends when instances leave, with the requests that are in flight, in sentences. */
export function Ending({ deployment, live, fewer = live.length }: EndingProps) {
  const processes = live.filter((one) => HOLDS_PROCESS.has(one.status.phase));
  const unstarted = Math.min(live.length - processes.length, fewer);
  const ending = Math.max(0, fewer - (live.length - processes.length));
  return (
    <>
      {ending > 0 && (
        <>
          <p>
            {plural(ending, "running instance")} {ending === 1 ? "stops" : "stop"}
            {namesOf(processes, ending)}; <InFlight name={deployment.name} />
          </p>
          <p>
            {ending === 1 ? "It gets" : "They get"} up to {drainText(deployment)} to finish requests in flight.
          </p>
        </>
      )}
      {unstarted > 0 && (
        <p>
          {plural(unstarted, "instance")} that {unstarted === 1 ? "does" : "do"} not run{" "}
          {unstarted === 1 ? "ends" : "end"}.
        </p>
      )}
      {!ending && !unstarted && <p>No instance runs.</p>}
    </>
  );
}

/** The requests that are in flight now. A gateway that is silent may have more. */
function InFlight({ name }: { name: string }) {
  const load = useResource<DeploymentLoad>(`deployments/${name}/load`, REREAD_MS).loaded.value;
  if (load.state === "loading") return <>requests in flight are being counted.</>;
  if (load.state === "failed") return <>how many requests are in flight is unknown.</>;
  const { in_flight, waiting, silent } = load.value;
  return (
    <>
      {in_flight === 1 ? "1 request is" : `${in_flight ? count(in_flight) : "no"} requests are`} in flight
      {waiting > 0 && `, ${count(waiting)} ${waiting === 1 ? "waits" : "wait"}`}.
      {silent.length > 0 && ` What ${plural(silent.length, "silent gateway")} may have is unknown.`}
    </>
  );
}

const SERVED_DRAIN_S = 600;
const OTHER_DRAIN_S = 30;

/** The longest time to finish and exit; `auto` is longer where requests reach the deployment. */
function drainText({ spec }: Deployment): string {
  if (typeof spec.drain_time === "number") return span(spec.drain_time);
  if (spec.drain_time !== "auto") return spec.drain_time;
  const served =
    spec.restart === "always" && (!spec.command.length || spec.command.some((one) => one.includes("{port}")));
  return span(served ? SERVED_DRAIN_S : OTHER_DRAIN_S);
}

function namesOf(processes: readonly Instance[], ending: number): string {
  if (ending !== processes.length || ending > MOST_NAMED) return "";
  return `: ${processes.map((one) => one.name).join(", ")}`;
}
