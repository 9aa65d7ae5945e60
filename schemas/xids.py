"""The error events of the driver (Xids) that condemn a GPU.

After NVIDIA's catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, whose column "immediate
action" is in `ACTIONS` for each code that requires more than a restart of the application. NVIDIA's NVSentinel has the
same table: https://github.com/NVIDIA/NVSentinel (`xiderrorsmapping.csv`). This project differs in:

- 94 requires only a restart of the application. The memory stays doubtful until a reset, so nothing is placed there.
- 109 can be caused by an application alone, by NVIDIA's device plugin for Kubernetes, which ignores 13, 31, 43, 45, 68
  and 109. A driver that needs a reset reports a recovery action.
- 144 to 150 (NVLink 5) are fatal by details that NVML does not report. These drivers report a recovery action.

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
