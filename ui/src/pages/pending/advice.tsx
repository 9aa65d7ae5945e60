import { useSignal } from "@preact/signals";
import { useLocation } from "preact-iso";
import { asApiError } from "../../api/load";
import { deployments } from "../../live/cluster";
import { advised, linked } from "../../manifest/advice";
import { manifestOf, proposeDraft } from "../../manifest/manifest";
import { may } from "../../session/session";

/** What would make an instance fit, as the scheduler has tried it. A changed spec opens as a plan; nothing is applied. */
export function Advice({ lines, deployment }: { lines: readonly string[]; deployment: string }) {
  if (!lines.length) return null;
  return (
    <ul class="plain-list advice" data-part="advice">
      {lines.map((line) => (
        <li key={line}>
          <Line line={line} deployment={deployment} />
        </li>
      ))}
    </ul>
  );
}

function Line({ line, deployment }: { line: string; deployment: string }) {
  const { route } = useLocation();
  const failed = useSignal("");
  const found = deployments.named(deployment);
  const what = found && advised(line, found.spec);
  if (!found || !what) return <>{line}</>;
  if ("places" in what)
    return (
      <>
        {linked(line, what.places).map((part) =>
          typeof part === "string" ? (
            part
          ) : (
            <a key={part.href} href={part.href}>
              {part.text}
            </a>
          ),
        )}
      </>
    );
  if (!may("operate")) return <>{line}</>;
  const open = async (): Promise<void> => {
    try {
      proposeDraft(await manifestOf({ ...found, spec: what.spec }));
      route("/ui/apply");
    } catch (error) {
      failed.value = asApiError(error).message;
    }
  };
  return (
    <>
      <a
        href="/ui/apply"
        onClick={(event) => {
          // The router follows links by itself: this one waits for its manifest.
          event.preventDefault();
          event.stopPropagation();
          void open();
        }}
      >
        {line}
      </a>
      {failed.value && (
        <span role="alert" class="refused">
          {" "}
          {failed.value}
        </span>
      )}
    </>
  );
}
