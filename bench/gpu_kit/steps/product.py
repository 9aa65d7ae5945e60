"""The product starts on this host, and ends."""

import signal
import sys
from collections.abc import Iterator
from typing import Final

from gpu_kit.kit import Kit, output_of, until
from gpu_kit.product import WORKER, Product
from gpu_kit.results import Finding, Status, judged, noted

_DOCTOR_LIMIT_S: Final = 30.0
_SAME_MIB: Final = 2
_GONE_S: Final = 30.0


def start(kit: Kit) -> Iterator[Finding]:
    """Controller, database and agent; then the GPU as the API shows it."""
    folder = kit.work / "gpuward"
    folder.mkdir()
    product = Product(folder, kit.logs, kit.env(), kit.engines)
    kit.has(product)
    yield judged("the controller leads", True, seconds=round(product.start_controller(), 1))
    yield judged("the worker is ready", True, seconds=round(product.start_agent(), 1))
    if kit.uuid:
        gpu = until(lambda: product.gpu(kit.uuid), 10) or {}
        same = abs(gpu.get("memory_mib", 0) - kit.total_mib) <= _SAME_MIB
        yield judged("the GPU as the API shows it", same and gpu["health"] == "ok", gpu.get("health_reason", ""),
                     model=gpu.get("model"), memory_mib=gpu.get("memory_mib"), free_mib=gpu.get("free_mib"),
                     health=gpu.get("health"))  # fmt: skip
    worker = product.get(f"/workers/{WORKER}")
    false = [condition for condition in worker["status"]["conditions"] if condition["status"] == "False"]
    wrong = [f"{condition['type']}: {condition.get('message', '')}" for condition in false]
    yield noted("conditions of the worker that do not hold", "; ".join(wrong) or "none")
    code, text = output_of([sys.executable, "-P", "-m", "cli", "doctor"], _DOCTOR_LIMIT_S, **kit.env())
    (kit.logs / "doctor.txt").write_text(text)
    fails = [line.strip() for line in text.splitlines() if "fails" in line]
    yield noted("gpuward doctor", "; ".join(fails) or "nothing fails", exit_code=code)


def end(kit: Kit) -> Iterator[Finding]:
    """All deployments are deleted; then no claim and no engine is left, and the ledger is in order."""
    product = kit.product
    for deployment in product.get("/deployments?limit=1000")["items"]:
        product.delete(deployment["name"])
    gone = until(lambda: not product.get("/instances?limit=1000")["items"], _GONE_S)
    yield judged("all instances are gone", bool(gone), left=[
        (view["name"], view["status"]["phase"]) for view in product.get("/instances?limit=1000")["items"]])  # fmt: skip
    left = [f"{engine.pid} {' '.join(engine.cmdline())[:80]}" for engine in product.engines().values()]
    yield judged("no engine is left", not left, "; ".join(left))
    if kit.uuid:
        gpu = product.gpu(kit.uuid)
        yield judged("no claim is left", gpu["claimed_mib"] == 0 and not gpu["claims"], claimed_mib=gpu["claimed_mib"])
    audit = product.get("/audit")
    yield judged("the ledger is in order", audit["ok"], str(audit.get("violations", ""))[:200])
    for name in ("agent", "controller"):
        yield judged(f"the {name} ends", True, seconds=round(product.end(name, signal.SIGTERM), 1))
    bad = {name: lines for name in ("agent", "controller") if (lines := _tracebacks(kit, name))}
    yield Finding("logs without a traceback", Status.FAILED if bad else Status.PASSED, "; ".join(map(str, bad)),
                  detail=str(bad) if bad else "")  # fmt: skip


def _tracebacks(kit: Kit, name: str) -> list[str]:
    lines = (kit.logs / f"{name}.log").read_text(errors="replace").splitlines()
    return [line[:200] for line in lines if "Traceback (most recent call last)" in line][:5]
