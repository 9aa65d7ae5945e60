"""Reason codes of instances: how they start, fail and end."""

from collections.abc import Mapping
from typing import Final

from schemas.placement_reasons import ReasonText

_NONE: Final = "Nothing to do."
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
        "The model does not exist, or its reader may not see it.",
        "Correct `model`, or store the token of the hub as `env: {HF_TOKEN: {secret: NAME}}`.",
    ),
    "model_gated": ReasonText(
        "The hub shows the model only to accounts that were granted access, and the token is of none of them.",
        "Request access on its page, and store the token as `env: {HF_TOKEN: {secret: NAME}}` and for the controller.",
    ),
    "no_disk_space": ReasonText(
        "The disk of the worker has too little space for the model or the engine, or its cache of models is limited.",
        "Free space on that disk, run `gpuward cache prune`, raise `--cache-limit`, or set `--cache-dir` of the agent.",
    ),
    "path_unreadable": ReasonText(
        "The engine's account may not enter a folder, or read a file, that the engine needs on its host.",
        "Do what the message says on that host; the next start goes on. [GPU hosts](hosts.md) describes the accounts.",
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
    "model_commit_gone": ReasonText(
        "The hub no longer has the commit of the model that the revision runs, and the host has not cached it.",
        "Run `gpuward restart NAME --pull`: a new revision takes what the hub has now.",
    ),
    "image_pull_failed": ReasonText(
        "The agent could not fetch the image of the container.",
        "Read the message. Check the way from the host to the registry, and the disk of Docker.",
    ),
    "start_timeout": ReasonText(
        "The process made no progress within `start_timeout`, or did not answer within 12 times that, and was killed.",
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
    "gone": ReasonText("The process ended unobserved, for example at a power loss of its host.", _NONE),
    "ended_repeatedly": ReasonText(
        "The process ended several times in a row through no fault of its own, so each restart waits longer.",
        "Read the message for the last end, and the agent's log on the worker. A stable run ends the delays.",
    ),
    "stopped": ReasonText("A user or a command stopped it.", "Run `gpuward start NAME` to start the deployment again."),
    "start_refused": ReasonText("The agent refused to start the process.", "Read the message of the event."),
    "refused": ReasonText("The agent refused to start the process without giving a code.", "See the log of the agent."),
    "old_term": ReasonText("The agent refused a command of an earlier leader.", _NONE),
    "old_epoch": ReasonText("The agent refused a command for an earlier start of the instance.", _NONE),
    "bad_command": ReasonText("A command is invalid or could not be sent.", "Read the message; it names the field."),
    "secret_missing": ReasonText(
        "A secret that the deployment names does not exist, so no start is sent.",
        "Set it: `gpuward secret set NAME`. The instance starts then.",
    ),
    "secret_forbidden": ReasonText(
        "A secret that the deployment names is not for this deployment, so no start is sent.",
        "Widen it: `gpuward secret scope NAME --for DEPLOYMENT`, or name another one.",
    ),
    "secret_unreadable": ReasonText(
        "No key of the controller opens a secret that the deployment names, so no start is sent.",
        "Give the controller its key (`GPUWARD_SECRETS_KEY_FILE`), or set the secret again: `gpuward secret set NAME`.",
    ),
    "start_overdue": ReasonText(
        "The instance has been starting for longer than `start_timeout`, and its engine still logs.",
        "See the log: `gpuward logs NAME`. After 12 times `start_timeout` the start ends.",
    ),
    "shutting_down": ReasonText(
        "The agent refused a start because it is shutting down.", "Nothing to do: it is placed again at once."
    ),
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
        "Read the message. It names the secret or the field.",
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
    "restarted": ReasonText("A user restarts the instance; another one takes its place.", _NONE),
    "relocated": ReasonText("The instance was moved: its replacement runs elsewhere.", _NONE),
    "replaced": ReasonText("A replacement runs on another worker because its own worker is lost.", _NONE),
    "rank_ended": ReasonText("A process of the instance ended, so its other processes are stopped.", _SEE_LOGS),
    "rank_lost": ReasonText(
        "A worker of the instance is lost, so its processes on the other workers are stopped.",
        "Wait: the instance is placed again.",
    ),
    "task_may_run": ReasonText(
        "The worker of a task is lost and may still run it, so it is not started elsewhere.",
        "Bring the worker back, or if it is dead for certain: `gpuward delete worker NAME --confirm-dead`.",
    ),
    "worker_unreachable": ReasonText(
        "The worker of the instance is silent.", "Wait, or bring the worker back: `gpuward describe worker NAME`."
    ),
    "worker_lost": ReasonText(
        "The worker has been silent for so long that its instances are replaced.",
        "Bring it back, or if it is dead: `gpuward delete worker NAME --confirm-dead`.",
    ),
    "adopted": ReasonText(
        "The process ran on while the database lost the instance, by a restore or a failover. It is taken back.", _NONE
    ),
    "not_adopted": ReasonText(
        "The process ran on while the database lost its instance. It is not wanted now, or others hold its GPUs, so it "
        "is stopped.",
        "Look at what the deployment asks for; apply it again if it is outdated.",
    ),
    "stray_process": ReasonText("A process ran without a claim; it is stopped.", _NONE),
}
