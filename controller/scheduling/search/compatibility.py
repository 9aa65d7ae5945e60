"""Whether an engine runs on a platform: one table and one function for automatic and manual selection and plan."""

import re
from typing import Final

from controller.domain.placement import Compatibility
from controller.scheduling.inventory.tables import Platform
from schemas.placement_reasons import Reason

# Names that operating systems give the same architecture.
_ARCH_ALIASES: Final = {"arm64": "aarch64", "amd64": "x86_64"}


def canonical_arch(arch: str) -> str:
    """One name per processor architecture, in lower case."""
    name = arch.lower()
    return _ARCH_ALIASES.get(name, name)


def driver_version(driver: str | None) -> tuple[int, ...]:
    """`580.95.05` as (580, 95, 5). Unknown is empty, which is older than any version."""
    match = re.match(r"\d+(\.\d+)*", driver or "")
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _runs_containers(platform: Platform, *, needs_gpu: bool) -> bool:
    return platform.container_gpus if needs_gpu else platform.containers


def platform_reason(compatibility: Compatibility, platform: Platform, *, needs_gpu: bool) -> Reason | None:
    """Why the engine cannot run there; None if it can. The driver matters only if a GPU is needed."""
    arches = {canonical_arch(arch) for arch in compatibility.arch}
    other_os = compatibility.os and platform.os.lower() not in compatibility.os
    if other_os or (arches and canonical_arch(platform.arch) not in arches):
        return Reason.OS_ARCH
    if compatibility.runtime == "docker" and not _runs_containers(platform, needs_gpu=needs_gpu):
        return Reason.RUNTIME_UNSUPPORTED
    installed = platform.engines is None or not compatibility.engine or compatibility.engine in platform.engines
    on_cpu = compatibility.without_gpu and compatibility.without_gpu in (platform.engines or ())
    real = compatibility.simulated_only and not platform.simulated
    if not installed:
        return Reason.ENGINE_MISSING
    if needs_gpu and (on_cpu or real):
        return Reason.ENGINE_UNSUPPORTED
    if needs_gpu and driver_version(platform.driver) < compatibility.min_driver:
        return Reason.DRIVER_TOO_OLD
    return None
