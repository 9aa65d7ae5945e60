"""A policy on a GPU: an idle instance stops in time, and a busy one stays. Also measures the cost of the agent."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import psutil

from gpu_kit import judge
from gpu_kit.kit import Kit, SkippedError, until
from gpu_kit.product import SAMPLE_S, Product
from gpu_kit.results import Finding, judged, noted

WINDOW_S: Final = 30.0
_SLACK_S: Final = 2 * SAMPLE_S + 4.0  # the window is counted in sampling periods
_POLICY: Final = "idle"
_BUSY: Final = "neighbour"
_HELD_MIB: Final = 2048
_RUNS_S: Final = 30.0
_COST_S: Final = 15.0
_GONE_S: Final = 20.0
_MIB: Final = 2**20


def idle(kit: Kit) -> Iterator[Finding]:
    """`m05` gets a single request, while a neighbour keeps the GPU busy without requests."""
    product, quiet = kit.product, kit.shapes[1].name
    if not (product.instance(quiet) or {}).get("phase") == "running":
        raise SkippedError(f"{quiet} does not run")
    policy = {"min_gpu_utilization": 20, "time_window": int(WINDOW_S), "action": "stop"}
    product.call("PUT", f"/policies/{_POLICY}", policy)
    product.apply(
        _BUSY, engine="custom", command=kit.burner_argv(mib=_HELD_MIB, duty=90, seconds=3600),
        resources={"gpus": 1, "gpu_memory": f"{_HELD_MIB + 1024}MiB"}, utilization_policy=_POLICY, drain_time="2s",
        env={} if kit.cuda else {"PYTHONPATH": kit.env()["PYTHONPATH"]},
    )  # fmt: skip
    running = until(lambda: (product.instance(_BUSY) or {}).get("phase") == "running", _RUNS_S)
    yield judged("the neighbour runs", bool(running))
    neighbour = product.instance(_BUSY) or {}
    spec = product.get(f"/deployments/{quiet}")["spec"]
    product.apply(quiet, **{name: spec[name] for name in ("model", "engine", "drain_time") if name in spec},
                  utilization_policy=_POLICY)  # fmt: skip
    product.answers(quiet)
    since_s = time.monotonic()
    yield from _cost(product)
    stopped = until(lambda: _stops(product, quiet), WINDOW_S + 30.0)
    stopped_s = time.monotonic() if stopped else None
    verdict = (product.instance(_BUSY) or {}).get("utilization") or {}
    yield judge.idle_stop("the idle one stops", judge.Stop(since_s, stopped_s, WINDOW_S, _SLACK_S))
    still = product.instance(_BUSY) or {}
    stays = still.get("phase") == "running" and still.get("epoch") == neighbour.get("epoch")
    yield judged("the busy neighbour stays", stays, verdict.get("message", ""), verdict=verdict.get("verdict"))
    yield noted("percent of the GPU in the window", "", **_window(kit, since_s))
    for name in (_BUSY, quiet):
        product.delete(name)
    gone = until(lambda: not (product.instance(_BUSY) or product.instance(quiet)), _GONE_S)
    yield judged("both go", bool(gone))
    product.call("DELETE", f"/policies/{_POLICY}")


def _stops(product: Product, name: str) -> bool:
    return (product.instance(name) or {"phase": "gone"})["phase"] in ("stopping", "gone")


def _window(kit: Kit, since_s: float) -> dict[str, object]:
    percents = [sample.percent for sample in kit.watch.since(since_s) if sample.percent is not None]
    if not percents:
        return {"samples": 0}
    return {"samples": len(percents), "mean": round(sum(percents) / len(percents), 1), "least": min(percents)}


def _cost(product: Product) -> Iterator[Finding]:
    """The agent and its child over a quarter of a minute without requests."""
    agent = product.process("agent")
    children = [child for child in agent.children() if "agent.gpus.nvml" in child.cmdline()]
    if not children:
        yield judged("the agent's cost", False, "its child that reads NVML does not run")
        return
    watched = {"agent": agent, "child": children[0]}
    before, began = {who: _used_s(process) for who, process in watched.items()}, time.monotonic()
    time.sleep(_COST_S)
    elapsed_s = time.monotonic() - began
    percents = {who: 100 * (_used_s(process) - before[who]) / elapsed_s for who, process in watched.items()}
    sizes = {who: process.memory_info().rss / _MIB for who, process in watched.items()}
    yield judge.agent_cost("the agent's cost", sizes["agent"], sizes["child"], percents)


def _used_s(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0
