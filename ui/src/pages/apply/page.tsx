import { useSignal } from "@preact/signals";
import { useLocation } from "preact-iso";
import { useEffect, useMemo } from "preact/hooks";
import { asApiError } from "../../api/load";
import { ApiError, request } from "../../api/request";
import type { Plan } from "../../api/types";
import { gpus, useMap } from "../../live/gpus";
import { LoadedMap } from "../../map/loaded";
import { draftAside, forgetAside, keepDraft, keptDraft } from "../../manifest/manifest";
import { Act } from "../../parts/act";
import { Empty, Panel } from "../../parts/panel";
import { useTitle } from "../../parts/title";
import { may } from "../../session/session";
import { applyAll } from "./apply";
import { atLines, type LineProblem, parseText, withGpus } from "./document";
import { candidatesOf } from "./candidates";
import { Editor } from "./editor";
import { blockedChoice, Picker, selectedGpus } from "./picker";
import { PlanShown } from "./plan";

const SETTLE_MS = 500;
const REPLAN_MS = 5000;
const EXAMPLE = `kind: Deployment
name: hello
engine: simulated
replicas: 1
resources:
  gpus: 1
  gpu_memory: 8GiB
`;

type Planned =
  | { state: "none" }
  | { state: "planning"; text: string }
  | { state: "refused"; text: string; problems: LineProblem[]; message: string }
  | { state: "planned"; text: string; plan: Plan };

/** A manifest, what applying it would do, and where its instances would go. */
export function Apply() {
  useTitle("Apply");
  const map = useMap();
  const { route } = useLocation();
  const text = useSignal(keptDraft() || EXAMPLE);
  const aside = useSignal(draftAside());
  const planned = useSignal<Planned>({ state: "none" });
  const round = useSignal(0);
  const parsed = useMemo(() => parseText(text.value), [text.value]);
  const wanted = round.value;

  useEffect(() => {
    if (text.value !== EXAMPLE) keepDraft(text.value);
    if (parsed.problems.length || !parsed.manifests.length) {
      planned.value = { state: "refused", text: text.value, problems: parsed.problems, message: "" };
      return;
    }
    const ended = new AbortController();
    const timer = setTimeout(() => {
      if (planned.peek().state !== "planned" || text.peek() !== (planned.peek() as { text: string }).text) {
        planned.value = { state: "planning", text: text.value };
      }
      void plan(text.value, ended.signal).then((answer) => {
        if (!ended.signal.aborted) planned.value = answer;
      });
    }, SETTLE_MS);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [text.value, wanted]);
  // What is planned goes stale: workers come and go, and others apply.
  useEffect(() => {
    const timer = setInterval(() => void round.value++, REPLAN_MS);
    return () => clearInterval(timer);
  }, []);

  const state = planned.value;
  const current = state.state === "planned" && state.text === text.value ? state.plan : null;
  const problems = state.state === "refused" ? state.problems : [];
  const blocked = blockedChoice(parsed.manifests, gpus.value);
  const first = parsed.manifests.find((one) => one.kind === undefined || one.kind === "Deployment");
  const name = typeof first?.name === "string" ? first.name : "";
  const candidates = current && name ? candidatesOf(current, name) : [];
  const targets = new Set((current?.items ?? []).flatMap((item) => item.gpus ?? []));
  return (
    <>
      <div class="page-head">
        <h1>Apply</h1>
      </div>
      <div class="halves">
        <Panel
          title="Manifest"
          actions={
            aside.value && (
              <button
                type="button"
                onClick={() => {
                  text.value = aside.value;
                  aside.value = "";
                  forgetAside();
                }}
              >
                Back to your draft
              </button>
            )
          }
        >
          <Editor text={text.value} problems={problems} onInput={(value) => (text.value = value)} />
        </Panel>
        <Panel title="Plan" part="plan">
          {state.state === "refused" && state.message && <p class="refused">{state.message}</p>}
          {state.state === "refused" && !state.message && <Empty>Correct the manifest to see what it would do.</Empty>}
          {state.state === "planning" && (
            <p class="muted" role="status">
              Planning
            </p>
          )}
          {current && <PlanShown plan={current} />}
          {blocked && (
            <p class="alert" role="alert">
              {blocked}
            </p>
          )}
          <Act
            right="operate"
            tone="primary"
            disabled={current === null || blocked !== ""}
            onAct={async () => {
              if (!current) return;
              const page = await applyAll(parsed.manifests, current);
              keepDraft("");
              route(page);
            }}
          >
            Apply
          </Act>
          {!may("operate") && <p class="muted">Your role may plan, and not apply.</p>}
        </Panel>
      </div>
      {current && name && candidates.length > 0 && (
        <Picker
          deployment={name}
          candidates={candidates}
          onChoose={(uuids) => (text.value = withGpus(parsed.manifests, uuids))}
          selected={selectedGpus(parsed.manifests)}
        />
      )}
      <Panel title="Where it goes">
        <LoadedMap of={map} gpus={gpus.value} marked={targets} />
      </Panel>
    </>
  );
}

async function plan(text: string, signal: AbortSignal): Promise<Planned> {
  const parsed = parseText(text);
  try {
    const body = { manifests: parsed.manifests, candidates: true };
    return { state: "planned", text, plan: await request<Plan>("plan", { method: "POST", body, signal }) };
  } catch (error) {
    const known: ApiError = asApiError(error);
    return {
      state: "refused",
      text,
      problems: atLines(known.problems, parsed),
      message: known.problems.length ? "" : known.message,
    };
  }
}
