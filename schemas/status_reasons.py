"""Every reason code but those of placement: in the status of objects, in events and in verdicts of policies.

`REASONS` holds all codes by group, those of placement included, for the reference page.
"""

from collections.abc import Mapping
from typing import Final

from schemas.placement_reasons import PLACEMENT, ReasonText
from schemas.xids import CONDEMNING

IMAGE_DIFFERS: Final = "image_differs"
NO_LEADER: Final = "no_leader"
_NONE: Final = "Nothing to do."
_RESET: Final = "Drain its worker, then reset the GPU or restart the host."
_SEE_LOGS: Final = "See the log: `gpuward logs NAME --previous`."

INSTANCES: Final[Mapping[str, ReasonText]] = {
    "analyzed": ReasonText("The need of the model is known.", _NONE),
    "scheduled": ReasonText("The instance was placed and holds its claims.", _NONE),
    "exit": ReasonText("The process of the engine exited with code 0, or its exit code is unknown.", _SEE_LOGS),
    "crash": ReasonText("The process of the engine ended with an error or by a signal.", _SEE_LOGS),
    "oom_killed": ReasonText(
        "The kernel killed the engine because memory of the host or its cgroup ran out.",
        "Raise `resources.host_memory`, or free memory on the host.",
    ),
    "gpu_oom": ReasonText(
        "The engine ran out of memory on a GPU, or found too little of it free.",
        "Raise `resources.gpu_memory`, or lower the context. Look for foreign processes: `gpuward get gpus`.",
    ),
    "port_taken": ReasonText(
        "Another process listens on the port of the engine.", "Nothing to do: the next start has another port."
    ),
    "model_not_found": ReasonText(
        "The engine did not find the model, or may not read it.",
        "Correct `model`, or store the token of the hub as `env: {HF_TOKEN: {secret: NAME}}`.",
    ),
    "engine_usage": ReasonText(
        "The engine refused its arguments. After the second time in a row it is not started again.",
        "Read the message, and correct `args` for the version of the engine on that host.",
    ),
    "completed": ReasonText("A task exited with code 0.", _NONE),
    "succeeded": ReasonText("A task exited with code 0.", _NONE),
    "failed": ReasonText("The instance failed and is not started again.", _SEE_LOGS),
    "backoff": ReasonText("The process failed; it is started again after a delay that grows.", _SEE_LOGS),
    "ended": ReasonText("The process ended through no fault of its own; it is started again at once.", _NONE),
    "stable": ReasonText("The instance runs again, and its earlier failures no longer count.", _NONE),
    "spawn_failed": ReasonText("The agent could not start the process.", "Read the message, then correct the command."),
    "fetching": ReasonText(
        "The agent fetches the model from the hub before the process starts.",
        "Wait; the message says how much is there.",
    ),
    "pulling": ReasonText(
        "The agent fetches the image of the container before the process starts.",
        "Wait; the message says how much is there.",
    ),
    "image_not_found": ReasonText(
        "The registry has no such image, or shows it only after a login.",
        "Correct `image`, or log Docker in on the host of the worker: `docker login`.",
    ),
    "image_pull_failed": ReasonText(
        "The agent could not fetch the image of the container.",
        "Read the message. Check the way from the host to the registry, and the disk of Docker.",
    ),
    "start_timeout": ReasonText(
        "The process made no progress within `start_timeout` and was killed.",
        "Raise `start_timeout`, or see the log: `gpuward logs NAME --previous`.",
    ),
    "liveness": ReasonText("The process stopped answering its health check and was killed.", _SEE_LOGS),
    "no_answer": ReasonText(
        "The process answers its health check, but generates nothing for its requests.",
        "It is restarted if that lasts. See the log: `gpuward logs NAME`. The manifest's `probe` sets the limits.",
    ),
    "probe_failed": ReasonText("The running process fails its health check.", "See the log: `gpuward logs NAME`."),
    "agent_stopped": ReasonText(
        "The agent was shut down and stopped its engines, or a worker is silent for that reason.",
        "Start the agent again.",
    ),
    "disconnected": ReasonText(
        "The agent lost the controller: the worker is silent, or it has stopped an instance as "
        "`stop_on_disconnect_after` says.",
        "Check the network between agent and controller.",
    ),
    "gone": ReasonText("The process ended unobserved, for example while its agent was down.", _NONE),
    "stopped": ReasonText("A user or a command stopped it.", "Run `gpuward start NAME` to start the deployment again."),
    "start_refused": ReasonText("The agent refused to start the process.", "Read the message of the event."),
    "refused": ReasonText("The agent refused to start the process without giving a code.", "See the log of the agent."),
    "old_term": ReasonText("The agent refused a command of an earlier leader.", _NONE),
    "old_epoch": ReasonText("The agent refused a command for an earlier start of the instance.", _NONE),
    "bad_command": ReasonText(
        "A command is invalid or could not be sent, for example because a secret is missing.",
        "Read the message; it names the field or the secret.",
    ),
    "shutting_down": ReasonText("The agent refused a start because it is shutting down.", "Start the agent again."),
    "claim_conflict": ReasonText(
        "The agent refused a start because another process on the worker still holds the GPU.",
        "Wait: the start is repeated.",
    ),
    "unknown_device": ReasonText(
        "The agent refused a start because it does not have the GPU, or the GPU is in MIG mode.",
        "Check the GPUs of the worker: `gpuward describe worker NAME`.",
    ),
    "order_not_sent": ReasonText(
        "A command could not be sent to the agent, for example because a secret is missing.",
        "Read the message, then store the secret: `gpuward secret set NAME`.",
    ),
    "stopping": ReasonText("The instance is being stopped.", _NONE),
    "running": ReasonText(
        "The instance answers. The event tells how long each phase of its start took (`durations`, in seconds).", _NONE
    ),
    "removed": ReasonText("The stopped instance is gone.", _NONE),
    "deleted": ReasonText("The deployment was deleted.", _NONE),
    "drained": ReasonText("The instance leaves because an operator drains its worker.", _NONE),
    "preempted": ReasonText(
        "The instance was preempted by one of higher priority and is pending again.", "Wait, or raise its priority."
    ),
    "new_revision": ReasonText("The instance is replaced because the spec changed.", _NONE),
    "scaled_down": ReasonText("The instance was removed because fewer replicas are wanted.", _NONE),
    "relocated": ReasonText("The instance was moved: its replacement runs elsewhere.", _NONE),
    "replaced": ReasonText("A replacement runs on another worker because its own worker is lost.", _NONE),
    "rank_ended": ReasonText("A process of the instance ended, so its other processes are stopped.", _SEE_LOGS),
    "rank_lost": ReasonText(
        "A worker of the instance is lost, so its processes on the other workers are stopped.",
        "Wait: the instance is placed again.",
    ),
    "worker_unreachable": ReasonText(
        "The worker of the instance is silent.", "Wait, or bring the worker back: `gpuward describe worker NAME`."
    ),
    "worker_lost": ReasonText(
        "The worker has been silent for so long that its instances are replaced.",
        "Bring it back, or if it is dead: `gpuward delete worker NAME --confirm-dead`.",
    ),
    "stray_process": ReasonText("A process ran without a claim; it is stopped.", _NONE),
}

WORKERS: Final[Mapping[str, ReasonText]] = {
    "joined": ReasonText("The worker joined with a join token.", _NONE),
    "worker_joining": ReasonText("The worker joined and has not reported its GPUs yet.", _NONE),
    "worker_ready": ReasonText("The worker is ready.", _NONE),
    "worker_rebooted": ReasonText("The worker was rebooted; everything that ran there has ended.", _NONE),
    "worker_deleted": ReasonText("An operator deleted the worker.", _NONE),
    "silent": ReasonText("The worker is connected but sends no heartbeats.", "Check the load of the host."),
    "confirmed_dead": ReasonText("An operator declared the worker dead.", _NONE),
    "term_ahead": ReasonText(
        "The agent names a later leader than there can have been, or has done so again within 10 minutes.",
        "Wait for 10 minutes, or delete the worker and let it join again with an empty data folder.",
    ),
    "history_lost": ReasonText(
        "The database lost commits that an agent has seen, after a restore or a failover. The leader goes above them.",
        "Look at what runs: changes since the backup, or in the last moments before the failover, are lost.",
    ),
    "database_promoted": ReasonText(
        "The database went to another timeline, as after a failover. All agents tell anew what runs.",
        "Look at what runs: changes of the last moments before the failover may be lost.",
    ),
    "breaker_open": ReasonText(
        "So many workers are silent at once that none of them is given up.",
        "Repair the network, or delete dead workers with `--confirm-dead`.",
    ),
    "breaker_opened": ReasonText(
        "Many workers fell silent at once, so no instance is replaced.",
        "Repair the network, or delete dead workers with `--confirm-dead`.",
    ),
    "breaker_closed": ReasonText("Few workers are silent; lost ones are replaced again.", _NONE),
    "gpu_uncordoned": ReasonText(
        "An operator ended the cordon of the GPU, and dismissed what its driver had reported until then.", _NONE
    ),
    "uncordoned": ReasonText("An operator ended the cordon or drain of the worker.", _NONE),
    "draining": ReasonText("An operator drains the worker: its instances move elsewhere.", _NONE),
    "processes_gone": ReasonText("The agent no longer knows processes that ran on the worker.", _NONE),
    "worker_quarantined": ReasonText(
        "The connections of the worker contradict each other: nothing is placed or stopped there.",
        "Read the message. It ends by itself a minute after the last contradiction.",
    ),
    "two_identities": ReasonText(
        "Two agents connect with the credential of one worker, as after copying a data folder or cloning a host.",
        "Stop one of them, empty its data folder, and let it join with a token and a name of its own.",
    ),
    "reconnects_too_often": ReasonText(
        "The agent reconnected more than five times within a minute, so the worker is not used.",
        "Read the agent's log, and check the network between agent and controller.",
    ),
    "no_common_protocol": ReasonText(
        "The agent is refused: it and the controller speak no common protocol. Its engines run on.",
        "Install a newer version of the older side; the message names what each speaks.",
    ),
    "agent_message_malformed": ReasonText(
        "The agent sent a message that is not valid; it was disconnected.",
        "Use the same version of agent and controller.",
    ),
}

GPUS: Final[Mapping[str, ReasonText]] = {
    "missing": ReasonText("The worker no longer reports the GPU.", "Check the host: `nvidia-smi`."),
    "gpu_missing": ReasonText("The worker no longer reports the GPU.", "Check the host: `nvidia-smi`."),
    "unreadable": ReasonText("The agent cannot read the GPUs of its host.", "Check the driver: `nvidia-smi`."),
    "gpu_lost": ReasonText(
        "The driver has lost the GPU. Its instances are replaced elsewhere.", "Reset the GPU or restart the host."
    ),
    "reset_required": ReasonText("The driver wants the GPU to be reset before it is used again.", _RESET),
    "gpu_unreadable": ReasonText(
        "The driver answers for the other GPUs of the host, but not for this one.",
        "Check it: `nvidia-smi -i INDEX`. It is tried again by itself.",
    ),
    "unified_memory": ReasonText(
        "The GPU has no memory of its own but shares that of the host, which claims would count twice.",
        "Use another GPU. The size that is shown is the host's.",
    ),
    "memory_unreadable": ReasonText(
        "The driver reports no possible size of the memory of the GPU.", "Check it: `nvidia-smi -i INDEX -q -d MEMORY`."
    ),
    "row_remap_failed": ReasonText(
        "A broken row of the memory could not be remapped.", "Reset the GPU; if that does not help, have it replaced."
    ),
    "recovery_wanted": ReasonText(
        "The driver asks for a recovery, such as a reset of the GPU.", "Do what the message names; then it is well."
    ),
    **{
        f"xid_{code}": ReasonText(f"Its driver reported Xid {code}: {text}.", _RESET)
        for code, text in CONDEMNING.items()
    },
    "memory_shrunk": ReasonText(
        "The GPU reports less memory than is claimed on it.", "Check the GPU; its instances keep running."
    ),
    "gpu_held_elsewhere": ReasonText(
        "Two workers report the same GPU; only the first one uses it.",
        "Delete the first worker if it is gone: `gpuward delete worker NAME`.",
    ),
    "gpu_memory_held": ReasonText(
        "An engine has ended, but the driver still lists it on its GPU after 20 s.",
        "Look for what is left of it on its host: `nvidia-smi`. Reset the GPU if nothing is.",
    ),
    "gpu_recovered": ReasonText("A GPU that was unhealthy or missing is well again.", _NONE),
    "gpus_unreadable": ReasonText(
        "The GPUs of a worker cannot be read. Nothing is placed or stopped there, and what runs goes on.",
        "Read the message, and check the driver: `nvidia-smi`.",
    ),
    "gpus_readable": ReasonText("The GPUs of a worker can be read again.", _NONE),
    "nvml_hang": ReasonText(
        "A call to the driver does not return. The process that reads the GPUs is killed and started again.",
        "Check the driver: `nvidia-smi`, `dmesg`. If it hangs too, restart the host.",
    ),
    "nvml_crashed": ReasonText(
        "The process that reads the GPUs ended or answered nonsense. It is started again.", "See the log of the agent."
    ),
    "driver_mismatch": ReasonText(
        "The driver was upgraded but its old kernel module is still loaded.", "Reload the module or restart the host."
    ),
    "nvml_failed": ReasonText("The driver's library fails as a whole.", "Check the driver: `nvidia-smi`."),
    "nvml_starting": ReasonText("The first reading of the GPUs is not done yet.", "Wait."),
    "gpu_memory_unclaimed": ReasonText(
        "Memory of the GPU is in use that no claim explains; it is not given to instances.",
        "Stop the process that uses it.",
    ),
    "gpu_memory_explained": ReasonText("No unexplained memory is in use on the GPU any more.", _NONE),
}

DEPLOYMENTS: Final[Mapping[str, ReasonText]] = {
    "applied": ReasonText("The deployment was created or changed.", _NONE),
    "scaled": ReasonText("The number of replicas was changed.", _NONE),
    "started": ReasonText("A user started the deployment again.", _NONE),
    "finished": ReasonText("The deleted deployment is gone, with all its instances.", _NONE),
    "no_instance_runs": ReasonText("No instance of the deployment is running.", "Run `gpuward ps NAME`."),
    "older_revision_runs": ReasonText("Some instances run an earlier revision of the spec.", "Wait for the update."),
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
        "Samples cover too little of the window.", "Check the agent, or lower `min_coverage` of the policy."
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
    "rollout_started": ReasonText("The rollout of a new revision has begun, or is tried once more.", _NONE),
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
    "secret_set": ReasonText("A secret was set. Its value is told nowhere.", _NONE),
    "secret_deleted": ReasonText("A secret was deleted. Running processes keep its value.", _NONE),
    "secrets_unreadable": ReasonText(
        "This controller does not have the key of stored secrets, so starts that need them are refused.",
        "Add their key to `GPUWARD_SECRETS_KEY_FILE`, or set them again; `gpuward secret list` names them.",
    ),
    "key_expires": ReasonText(
        "An API key expires within days.", "Rotate it: `gpuward key rotate ID`; `gpuward key list` shows all keys."
    ),
    "key_rotated": ReasonText("An API key got a successor, and expires after the overlap.", _NONE),
}

CONTROLLERS: Final[Mapping[str, ReasonText]] = {
    NO_LEADER: ReasonText(
        "No controller holds the lease, so nothing is placed, moved or stopped.",
        "Start a controller, or read the log of the one that runs.",
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
