"""Which of the driver's error events (Xids) condemn a GPU.

After NVIDIA's catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, whose column "immediate
action" `ACTIONS` repeats for each code that asks for more than a restart of the application. NVIDIA's NVSentinel holds
the same table: https://github.com/NVIDIA/NVSentinel (`xiderrorsmapping.csv`). Where this project decides otherwise:

- 94 asks to restart the application alone. The memory stays doubtful until a reset, so nothing new is placed there.
- 109 is what an application can cause by itself, as NVIDIA's device plugin for Kubernetes says, which ignores 13, 31,
  43, 45, 68 and 109. A driver that wants a reset says so by its recovery action.
- 144 to 150 (NVLink 5) are grave or not by details that NVML does not pass on. These drivers name a recovery action.

All other codes are counted and shown.
"""

from collections.abc import Mapping
from typing import Final

FALLEN_OFF: Final = 79
ACTIONS: Final[Mapping[str, tuple[int, ...]]] = {
    "RESET_GPU": (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "RESTART_BM": (79, 160),
    "RESTART_VM": (151,),
    "WORKFLOW": (48, 74, 144, 145, 146, 147, 148, 149, 150),
}
SPARED: Final = frozenset({109, 144, 145, 146, 147, 148, 149, 150})
ADDED: Final = frozenset({94})
CONDEMNING: Final[Mapping[int, str]] = {
    46: "the GPU stopped processing",
    48: "a double-bit ECC error",
    62: "its microcontroller halted",
    64: "a row could not be remapped",
    74: "an NVLink failed",
    FALLEN_OFF: "it has fallen off the bus",
    94: "an uncorrectable memory error, contained to one application",
    95: "an uncorrectable memory error that was not contained",
    110: "a security fault",
    119: "its system processor (GSP) does not answer",
    120: "its system processor (GSP) failed",
    136: "the training of an NVLink failed",
    140: "an uncorrectable ECC error",
    143: "its initialization failed",
    151: "the rotation of a key of confidential computing failed",
    155: "the software of an NVLink reported a grave error",
    156: "a part of it was retired",
    158: "a fatal timeout",
    160: "a channel of its memory was retired",
}
