"""Reason codes of workers and of their GPUs."""

from collections.abc import Mapping
from typing import Final

from schemas.placement_reasons import ReasonText
from schemas.xids import CONDEMNING

_NONE: Final = "Nothing to do."
_RESET: Final = "Drain its worker, then reset the GPU or restart the host."

WORKERS: Final[Mapping[str, ReasonText]] = {
    "joined": ReasonText("The worker joined with a join token.", _NONE),
    "worker_joining": ReasonText("The worker joined and has not reported its GPUs yet.", _NONE),
    "worker_ready": ReasonText("The worker is ready.", _NONE),
    "disk_freed": ReasonText("The disk of the worker has space again, so instances are placed on it.", _NONE),
    "worker_rebooted": ReasonText("The worker was rebooted; everything that ran there has ended.", _NONE),
    "worker_deleted": ReasonText("An operator deleted the worker.", _NONE),
    "silent": ReasonText("The worker is connected but sends no heartbeats.", "Check the load of the host."),
    "confirmed_dead": ReasonText("An operator declared the worker dead.", _NONE),
    "term_ahead": ReasonText(
        "The agent names a later leader than it can prove to have heard of.",
        "Delete the worker and let it join again with an empty data folder.",
    ),
    "history_lost": ReasonText(
        "The database lost commits that an agent has seen, after a restore or a failover. The leader goes above them.",
        "Look at what runs: changes since the backup, or in the last moments before the failover, are lost.",
    ),
    "database_promoted": ReasonText(
        "The database went to another timeline, as after a failover. All agents report again what runs.",
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
    "drain_waits": ReasonText(
        "The drain waits until replacements run elsewhere, or until tasks end.",
        "Nothing to do, or run `gpuward drain WORKER --now`.",
    ),
    "tasks_run_on": ReasonText(
        "The drain's time is over, and tasks with `restart: never` still run on the worker. They run until they end.",
        "Wait, or run `gpuward drain WORKER --restart-tasks`: they start elsewhere from their beginning.",
    ),
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
    "advertise_refused": ReasonText(
        "The agent advertises an address that is not believed to be its host's, so it is refused. Its engines run on.",
        "Read the message: it names the command that allows the address. Else correct the agent's `--advertise`.",
    ),
    "worker_stated": ReasonText(
        "An administrator stated trusted labels of a worker, or networks for the address of its proxy.", "Nothing."
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
    "unsteady": ReasonText(
        "The GPU is back, but was lost again and again. It is used again at the time that the message names.",
        "Check the host: `dmesg`. If the GPU is well: `gpuward uncordon WORKER --gpu UUID`.",
    ),
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
    "nvml_library_missing": ReasonText(
        "The agent was installed without what it reads GPUs with.", "Run `pip install 'gpuward[agent]'` on that host."
    ),
    "nvml_starting": ReasonText("The first reading of the GPUs is not done yet.", "Wait."),
    "gpu_memory_unclaimed": ReasonText(
        "Memory of the GPU is in use that no claim explains; it is not given to instances.",
        "Stop the process that uses it.",
    ),
    "gpu_memory_explained": ReasonText("No unexplained memory is in use on the GPU any more.", _NONE),
}
