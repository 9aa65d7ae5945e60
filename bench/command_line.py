"""CPU of single calls of the command line, compared with Python's own start in the same run.

Calls alternate; a figure is the least of the rounds, since other work only adds. The bench exits with 1 if an aim is
missed. The aims are seconds of CPU on a core of about 2020; the ratio to Python's start compares machines.

    make bench-cli      (or: PYTHONPATH=tests python bench/command_line.py --rounds 9 [--against PROGRAM])
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from support.builders.api_objects import deployment, instance
from support.standins.api import KEY, ApiDouble, serving

_OWN: Final = str(Path(sys.executable).with_name("gpuward"))
_COMPLETING: Final = {"_GPUWARD_COMPLETE": "complete_bash", "COMP_WORDS": "gpuward de", "COMP_CWORD": "1"}
_INSTANCES: Final = 20


class Call(NamedTuple):
    """A call, with the variables that it needs and the seconds of CPU that it may take."""

    name: str
    words: Sequence[str]
    variables: Mapping[str, str]
    aim_s: float


_CALLS: Final = (
    Call("--help", ["--help"], {}, 0.2),
    Call("completion", [], _COMPLETING, 0.15),
    Call("completion of names", [], {**_COMPLETING, "COMP_WORDS": "gpuward describe", "COMP_CWORD": "2"}, 0.15),
    Call("ps", ["ps"], {}, 0.15),
    Call("get workers", ["get", "workers"], {}, 0.2),
)


def cpu_s(command: Sequence[str], variables: Mapping[str, str]) -> float:
    """Seconds of CPU that a command takes, its children included."""
    process = subprocess.Popen(
        command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", metavar="PROGRAM", help="another gpuward, such as that of an earlier version")
    options = parser.parse_args()
    programs = [_OWN, *([options.against] if options.against else [])]
    double = ApiDouble()
    chat = deployment("chat", "running")
    double.add(chat)
    for number in range(_INSTANCES):
        double.add(instance(chat, number))
    with serving(double):
        api = {"GPUWARD_URL": double.url, "GPUWARD_API_KEY": KEY}
        calls: dict[tuple[str, str], tuple[Sequence[str], Mapping[str, str]]] = {}
        for call, program in product(_CALLS, programs):
            calls[call.name, program] = [program, *call.words], {**api, **call.variables}
        calls["python", ""] = ([sys.executable, "-c", "pass"], {})
        best: dict[tuple[str, str], float] = {}
        for _ in range(options.rounds):
            for key, (command, variables) in calls.items():
                best[key] = min(best.get(key, float("inf")), cpu_s(command, variables))
    start = best["python", ""]
    print(f"$ bench/command_line.py --rounds {options.rounds}   (Python {platform.python_version()})")
    print(f"      Python's own start: {start:.3f} s of CPU")
    missed = False
    for call in _CALLS:
        took = best[call.name, _OWN]
        missed |= took > call.aim_s
        other = f"; {best[call.name, options.against]:.3f} s with {options.against}" if options.against else ""
        verdict = "pass" if took <= call.aim_s else "FAIL"
        figures = f"{took:.3f} s of CPU, {took / start:.1f} x Python's start, aim {call.aim_s} s"
        print(f"{verdict}  {call.name}: {figures}{other}")
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
