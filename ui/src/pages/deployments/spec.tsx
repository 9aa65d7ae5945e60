import { useSignal } from "@preact/signals";
import { useLocation } from "preact-iso";
import { useEffect } from "preact/hooks";
import { asApiError } from "../../api/load";
import type { ApiError } from "../../api/request";
import type { Deployment } from "../../api/types";
import { manifestOf, proposeDraft } from "../../manifest/manifest";
import { Copy } from "../../parts/copy";
import { Failure, Panel, Skeleton } from "../../parts/panel";
import { may } from "../../session/session";

/** The manifest as applied, without defaults. */
export function Spec({ deployment }: { deployment: Deployment }) {
  const text = useSignal<string | null>(null);
  const failed = useSignal<ApiError | null>(null);
  const { route } = useLocation();
  useEffect(() => {
    let over = false;
    manifestOf(deployment).then(
      (found) => {
        if (!over) [text.value, failed.value] = [found, null];
      },
      (error: unknown) => {
        if (!over) failed.value = asApiError(error);
      },
    );
    return () => void (over = true);
  }, [deployment.uid, deployment.generation]);
  const duplicate = async (): Promise<void> => {
    proposeDraft(await manifestOf(deployment, `${deployment.name.slice(0, 58)}-copy`));
    route("/ui/apply");
  };
  return (
    <Panel
      title="Manifest"
      actions={
        <>
          <Copy text={() => manifestOf(deployment)} label="Copy as manifest" />
          {may("operate") && (
            <button type="button" onClick={() => void duplicate()}>
              Duplicate
            </button>
          )}
        </>
      }
    >
      {failed.value ? (
        <Failure error={failed.value} />
      ) : text.value === null ? (
        <Skeleton rows={6} />
      ) : (
        <pre class="manifest" tabIndex={0} aria-label="Manifest">
          {text.value}
        </pre>
      )}
    </Panel>
  );
}
