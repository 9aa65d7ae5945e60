"""Reason codes of deployments, policies, scaling, rollouts, access and controllers, and the table of all.

`REASONS` holds all codes by group, for the reference page.
"""

from collections.abc import Mapping
from typing import Final

from schemas.database_disk import DATABASE_DISK_LOW, DATABASE_FULL
from schemas.host_reasons import GPUS, WORKERS
from schemas.instance_reasons import INSTANCES
from schemas.placement_reasons import PLACEMENT, ReasonText

IMAGE_DIFFERS: Final = "image_differs"
MODEL_DIFFERS: Final = "model_differs"
NO_LEADER: Final = "no_leader"
_NONE: Final = "Nothing to do."

DEPLOYMENTS: Final[Mapping[str, ReasonText]] = {
    "applied": ReasonText("The deployment was created or changed.", _NONE),
    "scaled": ReasonText("The number of replicas was changed.", _NONE),
    "started": ReasonText("A user started the deployment again.", _NONE),
    "restart_requested": ReasonText("A user restarted the deployment, or one of its instances.", _NONE),
    "finished": ReasonText("The deleted deployment is gone, with all its instances.", _NONE),
    "no_instance_runs": ReasonText("No instance of the deployment is running.", "Run `gpuward ps NAME`."),
    "older_revision_runs": ReasonText("Some instances run an earlier revision of the spec.", "Wait for the update."),
    "grant_needed": ReasonText(
        "The deployment holds a flag or a variable that is not listed as harmless. It goes on as it is.",
        "Before its next change remove what the message names, or grant it by `GPUWARD_OPERATORS_MAY`.",
    ),
    MODEL_DIFFERS: ReasonText(
        "An instance runs another commit of its model than its revision keeps: its branch moved between two starts.",
        "Run `gpuward restart NAME --instance ID`: it starts with the commit that is kept.",
    ),
    IMAGE_DIFFERS: ReasonText(
        "Two replicas of a revision run different images, because a tag moved between their first starts.",
        "Stop and start the deployment: later starts all run the digest that the revision keeps.",
    ),
    "relocation_planned": ReasonText("`gpuward defrag` will move the instance.", _NONE),
    "relocating": ReasonText("The instance is being moved: its replacement starts first.", _NONE),
    "relocation_abandoned": ReasonText("The move was given up; the instance stays where it is.", "Read the message."),
    "reconcile_failing": ReasonText(
        "The controller fails repeatedly to process the object.", "Read the message and the log of the controller."
    ),
    "invariant_violated": ReasonText(
        "The ledger breaks an invariant.",
        "Run `gpuward audit` and report what it prints. `gpuward audit --repair` mends what can be mended for certain.",
    ),
    "ledger_repaired": ReasonText(
        "An administrator mended the ledger with `gpuward audit --repair`.",
        "Read the evidence. If violations are left, do what the repair says.",
    ),
}

POLICIES: Final[Mapping[str, ReasonText]] = {
    "idle": ReasonText("The instance is below the minimum of its policy for the whole window.", _NONE),
    "busy": ReasonText("A sample of the window reaches the minimum of the policy.", _NONE),
    "requests": ReasonText("The instance has requests in flight or waiting, so it is busy.", _NONE),
    "requests_unknown": ReasonText(
        "The number of requests is unknown, so the instance is kept.",
        "Set `ignore_requests: true` if requests shall not count.",
    ),
    "window_not_full": ReasonText("The instance has not run for the whole window yet.", "Wait."),
    "coverage": ReasonText(
        "Samples cover too little of the window.",
        "Check the agent, or lower `min_coverage` of the policy, to 0.5 at least.",
    ),
    "stale": ReasonText(
        "No fresh sample has arrived, so the present use of the GPU is unknown.",
        "Check the agent and its connection. After an outage, wait until its buffered samples have arrived.",
    ),
    "samples_dropped": ReasonText(
        "The controller could not take some sampling periods of the worker's agent. They are lost.",
        "Read the message, and run the same version of gpuward on agent and controller.",
    ),
    "no_process_utilization": ReasonText(
        "The GPU is shared and its driver does not report the use of single processes.",
        "Use `exclusive: true` if the policy shall judge the instance.",
    ),
    "no_telemetry": ReasonText("No sample of the GPU exists, or the instance claims no GPU.", "Check the agent."),
    "not_running": ReasonText("The instance is not running, so it is not judged.", _NONE),
    "policy_created": ReasonText("A utilization policy was created.", _NONE),
    "policy_changed": ReasonText("A utilization policy was changed, or another one applies to a deployment.", _NONE),
    "policy_deleted": ReasonText("A utilization policy was deleted.", _NONE),
    "policy_stop": ReasonText(
        "A policy stopped an idle deployment.", "Run `gpuward start NAME`, or change the policy."
    ),
    "policy_scale_down": ReasonText(
        "A policy removed idle replicas.", "Run `gpuward start NAME`, or change the policy."
    ),
    "policy_cap_lifted": ReasonText(
        "Demand has exceeded the cap of a policy's `scale_down` for the policy's whole window, so the cap ended.", _NONE
    ),
    "policy_notify": ReasonText("A policy found instances idle and reported it.", _NONE),
    "policy_would_stop": ReasonText("A policy in dry run would have stopped an idle deployment.", _NONE),
    "policy_would_scale_down": ReasonText("A policy in dry run would have removed idle replicas.", _NONE),
    "policy_would_notify": ReasonText("A policy in dry run would have reported idle instances.", _NONE),
    "webhook_failed": ReasonText(
        "A webhook could not be delivered and is given up.", "Check its URL and the stored signing secret."
    ),
}

SCALING: Final[Mapping[str, ReasonText]] = {
    "demand": ReasonText("The number of replicas follows the requests in flight and waiting.", _NONE),
    "steady": ReasonText("The present number of replicas is right for the demand.", _NONE),
    "woken": ReasonText("A request woke the sleeping deployment.", _NONE),
    "kept_awake": ReasonText(
        "An operator keeps the deployment awake.", "Run `gpuward wake NAME --for 0s` to let it sleep."
    ),
    "saturated": ReasonText(
        "All engines have a queue of their own or a full KV cache, so one more replica is wanted.",
        "If it happens often, lower `scaling.target`.",
    ),
    "down_window": ReasonText("Fewer replicas are enough now, but more were needed within `down_window`.", "Wait."),
    "demand_unknown": ReasonText(
        "A gateway is silent, so the demand is unknown and no replica is removed.",
        "Check that gateway: `gpuward gateway list`. If it is gone for good, run `gpuward gateway forget NAME`.",
    ),
    "gateway_forgotten": ReasonText(
        "An operator said that a silent gateway is gone for good.", "If it still runs, it takes part again by itself."
    ),
    "not_watched_yet": ReasonText(
        "A new leader keeps the number of replicas until it has watched for `down_window`.", "Wait."
    ),
    "not_idle_yet": ReasonText("The deployment sleeps once no request has come for `idle_after`.", "Wait."),
    "idle_after": ReasonText("No request came for `idle_after`, so the deployment sleeps.", "A request wakes it."),
    "asleep": ReasonText("The deployment sleeps: nothing runs.", "A request wakes it, or `gpuward wake NAME`."),
    "wake_withdrawn": ReasonText("All requests that waited are gone, and no replica has run yet, so it sleeps.", _NONE),
    "autoscaled": ReasonText("The number of replicas was changed for the demand.", _NONE),
    "autoscaler_would_scale": ReasonText("With `dry_run`, the number of replicas would have been changed.", _NONE),
}

ROLLOUTS: Final[Mapping[str, ReasonText]] = {
    "rolling_out": ReasonText("Instances of the newest revision take the place of older ones.", "Wait."),
    "canary": ReasonText("The newest revision gets a share of the requests for a time.", "Wait."),
    "rollout_blocked": ReasonText(
        "A new instance finds no place, and the old ones that hold the places must all stay available.",
        "Raise `rollout.unavailable` or set `update: recreate`, as the message says, or free a place for the surge.",
    ),
    "rollout_started": ReasonText("The rollout of a new revision has started, or is tried once more.", _NONE),
    "rollout_promoted": ReasonText("The canary is over, and the rollout goes on.", _NONE),
    "rollout_complete": ReasonText("All replicas run the newest revision.", _NONE),
    "rollout_failed": ReasonText(
        "The new revision did not become ready within three times `start_timeout`, or cannot. The old one goes on "
        "serving, and nothing is tried again.",
        "Read the message. Apply a corrected manifest, or run `gpuward rollout undo NAME`; "
        "`gpuward rollout resume NAME` tries it again.",
    ),
    "rollout_aborted": ReasonText(
        "Too many requests to the new revision ended with an error of its engine or with its death. "
        "The old one takes its place again.",
        "Apply a corrected manifest, or run `gpuward rollout undo NAME`.",
    ),
    "rollout_paused": ReasonText("A user has paused the rollout.", "Run `gpuward rollout resume NAME`."),
    "rollout_resumed": ReasonText("A user has resumed the rollout.", _NONE),
    "rollout_undone": ReasonText("A user went back to an older revision.", _NONE),
}

ACCESS: Final[Mapping[str, ReasonText]] = {
    "key_created": ReasonText("An API key was created.", _NONE),
    "key_changed": ReasonText("Limits, expiry or name of an API key were changed.", _NONE),
    "key_revoked": ReasonText("An API key was revoked.", _NONE),
    "session_opened": ReasonText("A browser logged in with an API key.", _NONE),
    "session_closed": ReasonText("A browser logged out.", _NONE),
    "token_created": ReasonText("A join token was created.", _NONE),
    "token_revoked": ReasonText("A join token was revoked.", _NONE),
    "secret_set": ReasonText("A secret was set. Its value is shown nowhere.", _NONE),
    "secret_deleted": ReasonText("A secret was deleted. Running processes keep its value.", _NONE),
    "secrets_unreadable": ReasonText(
        "This controller does not have the key of stored secrets, so starts that need them are refused.",
        "Add their key to `GPUWARD_SECRETS_KEY_FILE`, or set them again; `gpuward secret list` names them.",
    ),
    "secrets_plain": ReasonText(
        "Secrets are stored unencrypted: a reader of the database or of a backup has them.",
        "Run `gpuward secret rotate-key`. A controller without a key first needs one: name its file in "
        "`GPUWARD_SECRETS_KEY_FILE`. The page on access describes how.",
    ),
    "keys_plain": ReasonText(
        "Without a key, the secrets of agents' proxies and the key of receipts are stored unencrypted. A reader of a "
        "backup can use engines.",
        "Make a key and name its file in `GPUWARD_SECRETS_KEY_FILE`. The page on access describes how.",
    ),
    "gateway_without_key": ReasonText(
        "A gateway is of an older version or lacks the present key: the secrets of agents' proxies stay as they are.",
        "Upgrade it, or give it the key that `gpuward secret proxy-key` prints as `GPUWARD_PROXY_KEY_FILE`. If it is "
        "gone for good: `gpuward gateway forget NAME`.",
    ),
    "gateway_locked_out": ReasonText(
        "The secrets of agents' proxies are sealed, and a gateway lacks their key: it cannot reach engines.",
        "Give it the key as `GPUWARD_PROXY_KEY_FILE`: `gpuward secret proxy-key` prints it. If it is gone for good: "
        "`gpuward gateway forget NAME`.",
    ),
    "receipts_unreadable": ReasonText(
        "The key of receipts cannot be opened: new engines get none, and after a loss of commits unknown engines run "
        "without being taken back.",
        "Append the key that sealed it to the file in `GPUWARD_SECRETS_KEY_FILE`, or to `secrets.key` in the data "
        "folder, and restart the controllers.",
    ),
    "key_expires": ReasonText(
        "An API key expires within days.", "Rotate it: `gpuward key rotate ID`; `gpuward key list` shows all keys."
    ),
    "certificate_ends": ReasonText(
        "The certificate of the controller that answers ends within 14 days.",
        "Replace its files, which are read again without a restart; see [TLS](tls.md).",
    ),
    "certificate_expired": ReasonText(
        "The certificate of the controller that answers has expired: agents and clients refuse it.",
        "Replace its files, which are read again without a restart; see [TLS](tls.md).",
    ),
    "certificate_not_replaced": ReasonText(
        "The files of a new certificate cannot be used, so an earlier one is shown until it ends.",
        "Mend the files; they are looked at every five seconds.",
    ),
    "authority_ends": ReasonText(
        "The certificate authority that agents and clients know ends within 90 days.",
        "Give them another one before; see [TLS](tls.md#another-authority).",
    ),
    "authority_expired": ReasonText(
        "The certificate authority that agents and clients know has expired, so they refuse the controller.",
        "Give them another one; see [TLS](tls.md#another-authority).",
    ),
    "key_rotated": ReasonText("An API key got a successor, and expires after the overlap.", _NONE),
}

CONTROLLERS: Final[Mapping[str, ReasonText]] = {
    NO_LEADER: ReasonText(
        "No controller holds the lease, so nothing is placed, moved or stopped.",
        "Start a controller, or read the log of the one that runs.",
    ),
    DATABASE_FULL: ReasonText(
        "The disk of the database is full, so nothing is written: what runs goes on, and nothing is placed or changed.",
        "Free space on that disk, or enlarge it; see [A full disk](operations.md#a-full-disk-of-the-database).",
    ),
    DATABASE_DISK_LOW: ReasonText(
        "The disk of the embedded database has little free space left.",
        "Free space on the disk of the controller's data folder, or keep samples for a shorter time.",
    ),
    "restored": ReasonText(
        "A backup was restored. What changed since it was taken is lost.",
        "Look at what runs, and let workers that joined since then join again.",
    ),
}

REASONS: Final[Mapping[str, Mapping[str, ReasonText]]] = {
    "Placement": PLACEMENT,
    "Instances": INSTANCES,
    "Workers": WORKERS,
    "GPUs": GPUS,
    "Deployments": DEPLOYMENTS,
    "Access": ACCESS,
    "Policies": POLICIES,
    "Scaling": SCALING,
    "Rollouts": ROLLOUTS,
    "Controllers": CONTROLLERS,
}
