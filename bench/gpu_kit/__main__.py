"""Runs the check: `python -m gpu_kit --results FOLDER`. `check.sh` calls it with the environments that it has made."""

import argparse
import contextlib
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gpu_kit.kit import Kit
from gpu_kit.runner import Runner, Step
from gpu_kit.steps import burner, faults, host, idle, nvml, product, serving
from schemas.version import __version__

STEPS: Final = (
    Step("host", 90, host.host),
    Step("NVML fields", 45, nvml.fields),
    Step("CUDA program", 65, burner.build),
    Step("NVML cost", 45, nvml.cost),
    Step("utilization", 75, burner.truth),
    Step("start", 90, product.start),
    Step("serving", 180, serving.serve),
    Step("idle", 120, idle.idle),
    Step("kill -9", 120, faults.killed),
    Step("memory and claims", 60, faults.claims_go_last),
    Step("adoption", 90, faults.adoption),
    Step("foreign process", 110, faults.foreign),
    Step("out of memory", 90, faults.out_of_memory),
    Step("end", 70, product.end),
)
_SECONDS: Final = 435.0
_WORK: Final = Path("/var/tmp")  # noqa: S108 - on a disk, and other accounts can enter it
_MOST_LOG: Final = 2 * 2**20  # of a file; its end is kept
_MOST_ALL: Final = 40 * 2**20


def main() -> int:
    options = _options()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # results so far are written, and everything is ended
    options.results.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="gpu-kit-", dir=options.work))
    work.chmod(0o711)  # the account of the database passes through it
    kit = Kit(
        results=options.results.absolute(), work=work, engines=options.engines, engine_python=options.engine_python,
        false_library=options.false_nvml, small=options.small, stand_in=options.stand_in,
    )  # fmt: skip
    about = {
        "Gpuward": __version__,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "NVML": "false" if options.false_nvml else "real",
        "models": "tiny" if options.small else "0.1, 0.5 and 3 B",
    }
    runner = Runner(kit, about, began + options.seconds)
    steps = [step for step in STEPS if not options.steps or step.name in options.steps]
    try:
        kit.begin()
        _ = kit.models  # they are written while other steps run
        code = runner.run(steps)
    finally:
        _end(kit, runner, work)
    sys.stdout.write((kit.results / "summary.txt").read_text())
    return code


def _end(kit: Kit, runner: Runner, work: Path) -> None:
    """Ends all processes, packs the logs and removes the working folder. Each part runs also after a failed part."""
    with contextlib.suppress(Exception):
        kit.close()
    with contextlib.suppress(OSError):
        _gather(work, kit.logs)
    with contextlib.suppress(OSError):
        with tarfile.open(kit.results / "logs.tar.gz", "w:gz") as packed:
            packed.add(kit.logs, "logs")
        shutil.rmtree(kit.logs)
    with contextlib.suppress(OSError):
        runner.write()
    shutil.rmtree(work, ignore_errors=True)


def _gather(work: Path, logs: Path) -> None:
    left = _MOST_ALL
    for file in sorted((work / "gpuward").glob("agent/**/*.log")):
        if left <= 0:
            break
        text = file.read_bytes()[-_MOST_LOG:]
        left -= len(text)
        (logs / "-".join(file.relative_to(work / "gpuward" / "agent").parts)).write_bytes(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check Gpuward on a host with a GPU.")
    parser.add_argument("--results", type=Path, required=True, help="folder that is left")
    parser.add_argument("--work", type=Path, default=_WORK, help="where a folder for everything else is made")
    parser.add_argument("--engines", type=Path, help="folder with the program transformers")
    parser.add_argument("--engine-python", type=Path, help="interpreter that has PyTorch")
    parser.add_argument("--false-nvml", type=Path, metavar="FOLDER", help="folder of a false libnvidia-ml.so.1")
    parser.add_argument("--small", action="store_true", help="tiny models, for a host without CUDA")
    parser.add_argument("--stand-in", action="store_true", help="a stand-in for transformers serve")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="limit of the check")
    parser.add_argument("--steps", type=lambda text: text.split(","), default=[], help="only these, with commas")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
