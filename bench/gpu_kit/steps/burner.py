"""The CUDA program that holds memory and burns a known share: built here, then compared with NVML."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpu_kit import judge
from gpu_kit.kit import Kit, SkippedError, output_of
from gpu_kit.results import NO_CUDA, Finding, Status, judged, noted, skipped

_SOURCE: Final = Path(__file__).parents[1] / "burner.cu"
_BUILD_LIMIT_S: Final = 60.0
_HELD_MIB: Final = 1024
# Share of the time, share of the multiprocessors, in percent. NVML counts time in which anything runs.
_CASES: Final = ((0, 100), (10, 100), (50, 100), (100, 100), (100, 10), (50, 25))
_SETTLE_S, _SEEN_S = 1.5, 4.0


def build(kit: Kit) -> Iterator[Finding]:
    compiler = shutil.which("nvcc") or next(iter(map(str, Path("/usr/local/cuda/bin").glob("nvcc"))), None)
    if compiler is None:
        yield (
            skipped("compile", "nvcc is not on the search path")
            if not kit.cuda
            else judged("compile", False, "no nvcc")
        )
        return
    target = f"-arch=sm_{kit.compute_capability.replace('.', '')}" if kit.compute_capability else "-arch=sm_90"
    program, began = kit.work / "burner", time.monotonic()
    code, text = output_of([compiler, "-O1", target, "-o", str(program), str(_SOURCE)], _BUILD_LIMIT_S)
    if code:
        yield Finding("compile", Status.FAILED, f"exit code {code}", detail=text)
        return
    kit.burner = program
    yield judged("compile", True, f"for {target}", seconds=round(time.monotonic() - began, 1))


def truth(kit: Kit) -> Iterator[Finding]:
    """The utilization by NVML for known shares. Without CUDA the false GPU shows them, which only tests this step."""
    watch = kit.watch
    if kit.cuda and kit.burner is None:
        raise SkippedError("the CUDA program was not built")
    for duty, sms in _CASES:
        name = f"busy {duty} % of the time on {sms} % of the SMs"
        if not kit.cuda and sms != 100:
            yield skipped(name, NO_CUDA)
            continue
        process = kit.burn(mib=_HELD_MIB, duty=duty, sms=sms, seconds=60)
        try:
            time.sleep(_SETTLE_S)
            began = time.monotonic()
            time.sleep(_SEEN_S)
            samples = watch.since(began)
        finally:
            kit.quench(process)
        percents = [sample.percent for sample in samples if sample.percent is not None]
        own = [sample.percents[process.pid] for sample in samples if process.pid in sample.percents]
        yield judge.utilization(name, duty, percents, own)
    ends = watch.next_after(time.monotonic() + 1)
    yield noted("afterwards", used_mib=ends.used_mib if ends else None, percent=ends.percent if ends else None)
