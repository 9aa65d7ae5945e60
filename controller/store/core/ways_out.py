"""What an operator does about a broken invariant that cannot be mended without guessing."""

from collections.abc import Mapping
from typing import Final

_RESTART: Final = (
    "stop its deployment with `gpuward stop NAME` and start it again: claims go on proof, and others are made"
)
_REPORT: Final = "report it with the output of `gpuward audit -o json`; nothing needs to stop meanwhile"
WAYS_OUT: Final[Mapping[str, str]] = {
    "counters_match_claims": "its claims exceed the device: scale down or stop a deployment on it, then repair again",
    "memory_not_overclaimed": "scale down or stop a deployment on the device: their claims exceed it",
    "exclusive_is_alone": "scale down or stop a deployment on the device: one of them has it to itself",
    "exclusive_is_whole": _RESTART,
    "no_claims_without_phase": "a process may still run there: wait for its worker, or confirm that the host is dead "
    "with `gpuward delete worker NAME --confirm-dead`, then repair again",
    "placed_holds_claims": _RESTART,
    "rank_on_one_worker": _RESTART,
    "worker_has_one_rank": _RESTART,
    "old_epochs_are_fenced": "a process of the older start may still run: wait for its worker, or confirm that the "
    "host is dead with `gpuward delete worker NAME --confirm-dead`, then repair again",
    "no_claims_on_deleted_worker": "the leader releases them once it works: see the log of that controller",
    "live_process_holds_claims": "the process runs on GPUs that others may get: stop its deployment, or cordon "
    "the worker until it has ended",
    "exclusive_gpu_runs_one": "two processes are on a GPU that one has to itself: stop one of their deployments",
    "no_start_without_claims": _REPORT,
    "instances_have_a_deployment": "nothing ends the instance: drain its workers, then restore a backup or report it",
    "revisions_exist": "apply the deployment's manifest again: that writes a new revision",
    "tombstones_go": "the leader removes it once it works: see the log of that controller",
    "no_silent_waiting": "the leader decides about it once it works: see the log of that controller",
    "phases_are_known": "a newer version may have written it: run that version, or restore a backup",
    "one_lease": "stop all controllers, then restore a backup: the term must exceed each that an agent has seen",
    "no_orphans": "a claim or a live process is left of what is gone: drain the worker, delete it and join it again",
    "intents_have_one_number": "set the number with `gpuward scale NAME N`, or apply the manifest again",
    "relocations_end_once": _REPORT,
    "relocations_move_what_exists": _REPORT,
    "relocations_stay_in_their_deployment": "stop the deployment and start it again: that ends its relocations",
    "only_limits_stay_open": _REPORT,
    "actions_end_with_their_deployment": _REPORT,
    "webhooks_end_once": _REPORT,
    "webhooks_have_an_action": _REPORT,
    "webhooks_are_due": _REPORT,
}
