"""Faults of engines: kill -9, a restart of the agent, foreign processes, too little memory."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any, Final

from gpu_kit import judge
from gpu_kit.kit import Kit, SkippedError, until
from gpu_kit.product import Product
from gpu_kit.results import NO_CUDA, Finding, judged, skipped
from gpu_kit.steps.serving import manifest

_AGAIN_S: Final = 90.0
_GONE_S: Final = 40.0
_LISTED_S: Final = 5.0
_SEEN_S: Final = 45.0
_FOREIGN_MIB: Final = 8192
_GRAIN_MIB: Final = 64
_OOM_S: Final = 60.0
_LEFT_MIB: Final = 200


def _running(product: Product, name: str) -> dict[str, Any]:
    status = product.instance(name) or {}
    if status.get("phase") != "running":
        raise SkippedError(f"{name} does not run")
    return status


def killed(kit: Kit) -> Iterator[Finding]:
    """An engine is killed by kill -9. It runs again, but not before the driver has released the old process."""
    product, watch, name = kit.product, kit.watch, kit.shapes[0].name
    before, began = _running(product, name), time.monotonic() - 2.0
    old = watch.next_listed(product.engines(name), time.monotonic())
    if not old:
        raise SkippedError(f"NVML lists no process of {name}")
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    back = until(lambda: _is_back(product, name, before["epoch"]), _AGAIN_S)
    yield judged("it runs again", bool(back), seconds=round(time.monotonic() - killed_s, 1),
                 epochs=[before["epoch"], (product.instance(name) or {}).get("epoch")])  # fmt: skip
    new = set(product.engines(name)) - old
    first_s = until(lambda: watch.first_listed(new, killed_s), _LISTED_S)
    yield judge.memory_first("the new one opens the GPU after the old one", watch.last_listed(old, began), first_s)
    yield judged("it answers again", bool(until(lambda: product.answers(name), 30)))


def _is_back(product: Product, name: str, epoch: int) -> bool:
    status = product.instance(name) or {}
    return status.get("phase") == "running" and status.get("epoch", 0) > epoch


def claims_go_last(kit: Kit) -> Iterator[Finding]:
    """The largest model is deleted. Its claim is released once the driver no longer lists its processes."""
    product, watch, name = kit.product, kit.watch, kit.shapes[-1].name
    instance, began = _running(product, name)["name"], time.monotonic() - 2.0
    pids = set(product.engines(name))
    product.delete(name)
    held = until(lambda: _unclaimed(product, kit.uuid, instance), _GONE_S)
    gone_s = time.monotonic() if held else None
    watch.next_after(time.monotonic() + 1)
    yield judge.memory_first("memory is back before the claim goes", watch.last_listed(pids, began), gone_s)
    held_events = product.get("/events?reason=gpu_memory_held&limit=100")["items"]
    yield judged("no claim went by its deadline", not held_events, "; ".join(event["message"] for event in held_events))


def _unclaimed(product: Product, uuid: str, instance: str) -> bool:
    return instance not in {claim["instance"] for claim in product.gpu(uuid)["claims"]}


def adoption(kit: Kit) -> Iterator[Finding]:
    """The agent is replaced, once orderly and once by kill -9: its engine runs on, as the same process."""
    product, name = kit.product, kit.shapes[0].name
    for number, how in ((signal.SIGTERM, "after an orderly end"), (signal.SIGKILL, "after kill -9")):
        before, pids = _running(product, name), set(product.engines(name))
        product.end("agent", number)
        until(lambda: not product.connected, 15)
        ran_on = set(product.engines(name)) == pids
        seconds = product.start_agent()
        back = until(lambda: product.answers(name), 30)
        after = product.instance(name) or {}
        same = set(product.engines(name)) == pids and after.get("epoch") == before["epoch"]
        yield judged(f"adopted {how}", bool(back and ran_on and same), seconds=round(seconds, 1), answers=bool(back),
                     restarts=[before["restarts"], after.get("restarts")], pids=sorted(pids))  # fmt: skip


def foreign(kit: Kit) -> Iterator[Finding]:
    """A process that Gpuward did not start takes memory: it is named, and its memory is not free. Then it ends."""
    product = kit.product
    before = product.gpu(kit.uuid)["free_mib"]
    process = kit.burn(mib=_FOREIGN_MIB, duty=0, seconds=120)
    began = time.monotonic()
    try:
        noticed = until(lambda: product.gpu(kit.uuid)["free_mib"] <= before - _FOREIGN_MIB // 2, _SEEN_S)
        noticed_s = time.monotonic() - began
        gpu = product.gpu(kit.uuid)
        taken = gpu["memory_mib"] - gpu["free_mib"]
        # foreign memory counts beyond the claims, so unused memory of claims hides some of it
        yield judged(
            "its memory is not free", bool(noticed) and taken >= _FOREIGN_MIB, seconds=round(noticed_s, 1),
            held_mib=_FOREIGN_MIB, foreign_mib=gpu["foreign_mib"], free_mib=[before, gpu["free_mib"]],
            claimed_mib=gpu["claimed_mib"], hidden_by_claims_mib=max(0, _FOREIGN_MIB - gpu["foreign_mib"]),
        )  # fmt: skip
        named = until(lambda: process.pid in _named(product, kit.uuid), _SEEN_S)
        yield judged(
            "it is named", bool(named), pids=_named(product, kit.uuid), seconds=round(time.monotonic() - began, 1)
        )
    finally:
        kit.quench(process)
    back = until(lambda: product.gpu(kit.uuid)["free_mib"] >= before - _GRAIN_MIB, _SEEN_S)
    yield judged("after its end the memory is free", bool(back), free_mib=product.gpu(kit.uuid)["free_mib"])


def _named(product: Product, uuid: str) -> list[int]:
    details = product.gpu(uuid)["details"] or {}
    return [process["pid"] for process in details.get("foreign") or ()]


def out_of_memory(kit: Kit) -> Iterator[Finding]:
    """While an engine imports PyTorch, another process takes the memory: its end is named `gpu_oom`."""
    if not kit.cuda:
        yield skipped("out of memory on the GPU", NO_CUDA)
        return
    product, shape = kit.product, kit.shapes[1]
    product.apply("oom", **manifest(kit, shape))
    started = until(lambda: product.engines("oom"), 20)
    if not started:
        raise SkippedError("its engine did not start")
    process = kit.burn(all_but_mib=_LEFT_MIB, duty=0, seconds=120)
    try:
        reasons: list[str] = []
        ended = until(lambda: _reason(product, "oom", reasons) not in ("", "starting"), _OOM_S)
        status = product.instance("oom") or {}
        words, named = str(status.get("message", ""))[:300], bool(ended) and "gpu_oom" in reasons
        yield judged("out of memory is named", named, words, reasons=reasons, phase=status.get("phase"))
    finally:
        kit.quench(process)
        product.delete("oom")
    yield judged("it goes", bool(until(lambda: product.instance("oom") is None, _GONE_S)))


def _reason(product: Product, name: str, reasons: list[str]) -> str:
    status = product.instance(name) or {}
    reason = str(status.get("reason", "")) if status.get("phase") in ("backoff", "failed") else ""
    if reason and reason not in reasons:
        reasons.append(reason)
    return reason
