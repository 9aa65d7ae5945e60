"""NVML as the agent's own child reads it: each field, each process, and the time of a sample."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpu_kit import judge
from gpu_kit.kit import Kit, SkippedError, output_of
from gpu_kit.nvml_reader import NvmlReader, NvmlReaderError, sample_of
from gpu_kit.results import NO_CUDA, Finding, Status, judged, noted, skipped
from gpu_kit.scenario import scenario

_NEEDED: Final = ("memory", "utilization", "model", "compute_capability")
_SPECIAL: Final = ("recovery", "ecc_corrected", "ecc_uncorrected", "remapped_rows", "mig_mode", "compute_mode")
_LINKS: Final = ("numa_node", "peers", "nvlinks", "nvlink_peers")
_SAMPLES, _MANY, _HELD_MIB = 40, 8, 64
_EXTRA_LIMIT_S: Final = 20.0
_CONTEXT_MIB: Final = 1200  # a CUDA context of a large GPU takes 300 to 700 MiB
_DUTY: Final = 5  # percent of each, so that the driver reports their utilization
_SEEN_S: Final = 5.0
_BETWEEN_S: Final = 1.0


def fields(kit: Kit) -> Iterator[Finding]:
    """Each field of each GPU: a value, unsupported, or an error. The answer is stored, also as a fixture."""
    with NvmlReader(kit.env()) as reader:
        try:
            answer, first_s = _read_twice(reader)
        except NvmlReaderError as error:
            yield Finding("first reading", Status.FAILED, str(error))
            return
    _keep(kit, answer, "idle")
    gpus = [gpu for gpu in answer["gpus"] if gpu.get("uuid") and not gpu.get("parent")]
    yield judged("first reading", bool(gpus), seconds=round(first_s, 2), driver=answer["driver"], gpus=len(gpus))
    for gpu in answer["gpus"]:
        if gpu.get("uuid") is None:
            yield Finding(f"GPU {gpu['index']}", Status.FAILED, f"unreadable: {gpu['error']}")
            continue
        yield judge.fields_verdict(f"fields of {gpu['uuid'][:12]}", gpu["fields"], _NEEDED)
        yield from (noted(name, _words(gpu["fields"].get(name, {}))) for name in _SPECIAL)
        links = {name: _words(gpu["fields"].get(name, {})) for name in _LINKS}
        yield noted("topology", json.dumps(links))
    yield noted("Xids", "unsupported" if answer["xids_unsupported"] else f"watched, {len(answer['xids'])} so far")
    _choose(kit, gpus)
    yield from _beyond(kit)


def _read_twice(reader: NvmlReader) -> tuple[dict[str, Any], float]:
    """The first answer, which has all fields, with the processes of the second, which have their utilization.

    Also the seconds of the first answer, which opens the library.
    """
    began = time.monotonic()
    answer = reader.sample()
    first_s = time.monotonic() - began
    time.sleep(_BETWEEN_S)
    answer["work"] = reader.sample().get("work", {})
    return answer, first_s


def _keep(kit: Kit, answer: Mapping[str, Any], when: str) -> None:
    """Writes the answer, and its form as a file of the false library."""
    (kit.results / f"nvml-readings-{when}.json").write_text(json.dumps(answer, indent=1))
    (kit.results / f"false-nvml-{when}.txt").write_text(scenario(answer))


def _choose(kit: Kit, gpus: list[dict[str, Any]]) -> None:
    if gpus:  # the first is used
        values = {name: field.get("value") for name, field in gpus[0]["fields"].items()}
        kit.uuid, kit.compute_capability = gpus[0]["uuid"], values.get("compute_capability") or ""
        kit.total_mib = (values.get("memory") or [0, 0])[0]


def _words(reading: Mapping[str, Any]) -> str:
    if reading.get("error"):
        return f"error {reading['code']}: {reading['error']}"
    return "unsupported" if reading.get("unsupported") else json.dumps(reading.get("value"))


def _beyond(kit: Kit) -> Iterator[Finding]:
    """Readings that the agent does not take, by another process, since a driver may hang."""
    code, text = output_of([sys.executable, "-P", "-m", "gpu_kit.nvml_beyond"], _EXTRA_LIMIT_S, **kit.env())
    if code:
        yield Finding("beyond the agent's fields", Status.FAILED, f"exit code {code}", detail=text)
        return
    for name, readings in json.loads(text.splitlines()[-1]).items():
        yield noted(name, json.dumps(readings))


def cost(kit: Kit) -> Iterator[Finding]:
    """The time of a sample with one process on the GPU and with eight, and their figures in NVML."""
    if not kit.uuid:
        raise SkippedError("no GPU was read")
    with NvmlReader(kit.env()) as reader:
        for number in (1, _MANY):
            burners: list[subprocess.Popen[str]] = []
            try:
                burners += [kit.burn(mib=_HELD_MIB, duty=_DUTY, seconds=60) for _ in range(number)]
                yield from _with(kit, reader, burners)
                if number == _MANY:
                    with NvmlReader(kit.env()) as another:
                        _keep(kit, _read_twice(another)[0], "busy")
            finally:
                kit.quench(*burners)


def _with(kit: Kit, reader: NvmlReader, burners: list[subprocess.Popen[str]]) -> Iterator[Finding]:
    number, pids = len(burners), {burner.pid for burner in burners}
    name = f"with {number} process{'es' if number > 1 else ''}"
    seconds: list[float] = []
    listed: dict[int, float | None] = {}
    end = time.monotonic() + _SEEN_S
    while len(seconds) < _SAMPLES or (not pids <= listed.keys() and time.monotonic() < end):
        began = time.monotonic()
        sample = sample_of(reader.sample(), kit.uuid, began)
        seconds.append(time.monotonic() - began)
        listed = {pid: mib for pid, mib in sample.memory_mib.items() if pid in pids}
        time.sleep(0.02)
    yield judge.sample_cost(f"sample {name}", seconds)
    yield judged(f"listed {name}", len(listed) == number, listed=len(listed), held_mib=_HELD_MIB, sizes=listed)
    if number == 1 and kit.cuda:
        held = next(iter(listed.values()), None)
        yield judge.held_memory("memory of a process", _HELD_MIB, held, context_mib=_CONTEXT_MIB)
    elif number == 1:
        yield skipped("memory of a process", NO_CUDA)
