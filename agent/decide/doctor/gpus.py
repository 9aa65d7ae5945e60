"""Findings about GPUs: the driver, its library, each GPU, and GPUs in containers. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from agent.decide.containers import NO_TOOLKIT
from agent.decide.doctor.finding import Finding, fails, ok, warning
from schemas.status_reasons import REASONS
from schemas.wire import RUNTIME_DOCKER, ReportedGpu, ReportedRuntime

_SIMULATE: Final = "On a host without GPUs, an agent runs with --simulate FILE."
_RELOAD: Final = "Restart the host, or unload and load the driver's kernel modules while nothing uses the GPUs."
_TOOLKIT: Final = (
    "Install the package nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker`, and restart"
    " Docker."
)


@dataclass(frozen=True, slots=True)
class DriverProbe:
    """NVIDIA's driver, as the kernel shows it."""

    module: str | None = None  # version of the loaded kernel module; None: not loaded, or hidden by a container
    on_bus: int | None = None  # NVIDIA GPUs on the PCI bus; None: unreadable
    nodes: int = 0  # GPUs with a file in /dev
    denied: tuple[str, ...] = ()  # files in /dev that this user may not open
    user: str = ""  # this user


@dataclass(frozen=True, slots=True)
class NvmlProbe:
    """A reading by NVML: the driver's version and the GPUs, or an error (a code, a colon and a text)."""

    driver: str | None = None
    gpus: tuple[ReportedGpu, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class DockerProbe:
    """The Docker engine of the host."""

    # `absent`: no socket; `denied`: this user may not use it; `silent`: no response
    state: Literal["absent", "denied", "silent", "running"] = "absent"
    version: str = ""
    runtimes: tuple[str, ...] = ()  # container runtimes
    cdi: tuple[str, ...] = ()  # devices of CDI files, such as nvidia.com/gpu=0
    toolkit: str | None = None  # version of NVIDIA's container toolkit
    error: str = ""

    @property
    def gives_gpus(self) -> bool:
        return self.toolkit is not None or "nvidia" in self.runtimes or any("nvidia" in name for name in self.cdi)


def judge_driver(driver: DriverProbe, nvml: NvmlProbe) -> Finding:
    if not nvml.error and nvml.driver is not None:
        if driver.module is not None and driver.module != nvml.driver:
            text = f"the kernel has driver {driver.module}, but its library is of {nvml.driver}"
            return fails("driver", text, _RELOAD)
        return ok("driver", f"NVIDIA driver {nvml.driver}")
    if driver.module is None:
        return _without_driver(driver)
    if driver.denied:
        text = f"driver {driver.module} is loaded, but {driver.user} may not open {', '.join(driver.denied[:3])}"
        return fails("driver", text, "Run the agent as root, or give this user the right to read and write the files.")
    if driver.nodes == 0:
        text = f"driver {driver.module} is loaded, but there are no files /dev/nvidia0 and so on"
        return fails("driver", text, "Run `nvidia-modprobe -u -c=0`, or `nvidia-smi` as root. Read `dmesg` for errors.")
    return ok("driver", f"NVIDIA driver {driver.module}")


def _without_driver(driver: DriverProbe) -> Finding:
    if driver.on_bus:
        text = f"{_number(driver.on_bus, 'NVIDIA GPU')} on the PCI bus, but no driver is loaded"
        remedy = "Install NVIDIA's driver; if it is installed, load it: `modprobe nvidia`, and read `dmesg`."
        return fails("driver", text, remedy)
    text = "no NVIDIA GPU was found" if driver.on_bus == 0 else "no NVIDIA driver was found"
    return fails("driver", text, f"Put in a GPU and install NVIDIA's driver. {_SIMULATE}")


def judge_nvml(driver: DriverProbe, nvml: NvmlProbe) -> Finding:
    if nvml.error:
        code = nvml.error.partition(":")[0]
        remedy = {
            "driver_mismatch": _RELOAD,
            "nvml_library_missing": "Run `pip install 'gpuward[agent]'` in the environment of the agent.",
            "nvml_hang": "Read `dmesg` for Xids. If `nvidia-smi` hangs too, restart the host.",
            "nvml_crashed": "See whether `nvidia-smi` works; else install the driver again.",
        }.get(code, "Install the library libnvidia-ml of the loaded driver; `nvidia-smi` must list the GPUs.")
        if driver.module is None and not driver.on_bus and code != "nvml_library_missing":
            remedy = f"Install NVIDIA's driver. {_SIMULATE}"
        return fails("nvml", nvml.error, remedy)
    if not nvml.gpus:
        return fails("nvml", "NVML works, but lists no GPU", "Read `dmesg`: the driver says there why it took none.")
    full = sum(gpu.parent is None for gpu in nvml.gpus)
    slices = len(nvml.gpus) - full
    text = f"NVML lists {_number(full, 'GPU')}" + (f" and {_number(slices, 'MIG slice')}" if slices else "")
    if driver.on_bus is not None and full < driver.on_bus:
        text += f", but {driver.on_bus} are on the PCI bus"
        return warning("nvml", text, "Read `dmesg`: the driver says there why it did not take the others.")
    return ok("nvml", text)


def judge_gpus(nvml: NvmlProbe) -> Iterator[Finding]:
    """A finding for each GPU that is not well, and one for all others."""
    sliced = {gpu.parent for gpu in nvml.gpus if gpu.parent is not None}
    well = 0
    for gpu in nvml.gpus:
        name = f"GPU {gpu.index} ({gpu.uuid}, {gpu.model})"
        if gpu.health == "ok" and not (gpu.mig_mode and gpu.uuid not in sliced):
            well += 1
        elif gpu.health == "ok":
            remedy = "Create slices: `nvidia-smi mig -cgi PROFILE -C`, or end MIG mode: `nvidia-smi -mig 0`."
            yield warning("gpu", f"{name} is in MIG mode and has no slices, so nothing can use it", remedy)
        elif gpu.health == "unknown":
            yield warning("gpu", f"{name}: {gpu.health_reason}", _remedy(gpu.health_reason))
        else:
            yield fails("gpu", f"{name}: {gpu.health_reason}", _remedy(gpu.health_reason))
    if well:
        yield ok("gpu", f"{_number(well, 'GPU')} well: {', '.join(dict.fromkeys(gpu.model for gpu in nvml.gpus))}")
    lazy = [str(gpu.index) for gpu in nvml.gpus if gpu.details is not None and gpu.details.persistence is False]
    if lazy:
        text = f"persistence mode is off (GPU {', '.join(lazy)}): the driver starts again for each first process"
        yield warning("gpu", text, "Run the service nvidia-persistenced, or `nvidia-smi -pm 1` at each start.")


def judge_condemned(condemned: Mapping[str, str]) -> Iterator[Finding]:
    """GPUs that an Xid has condemned, with the reason by UUID: NVML does not report earlier Xids."""
    for uuid, reason in sorted(condemned.items()):
        remedy = "Reset the GPU or restart the host; or dismiss it: `gpuward uncordon WORKER --gpu UUID`."
        yield fails("gpu", f"{uuid}: {reason}", remedy)


def judge_containers(docker: DockerProbe, nvml: NvmlProbe) -> Finding:
    """Whether Docker can give GPUs to containers. Engines that run as processes need no Docker."""
    match docker.state:
        case "absent":
            return ok("docker", "no Docker engine here; only `runtime: docker` needs one")
        case "denied":
            remedy = "Add the agent's user to the group docker, or run the agent as root, if containers are wanted."
            return warning("docker", "there is a Docker engine, but this user may not use it", remedy)
        case "silent":
            return warning("docker", f"the Docker engine does not answer: {docker.error}", "Restart Docker.")
        case "running" if docker.gives_gpus:
            toolkit = f", NVIDIA container toolkit {docker.toolkit}" if docker.toolkit else ", with NVIDIA's runtime"
            return ok("docker", f"Docker {docker.version}{toolkit}")
        case _ if nvml.gpus:
            text = f"Docker {docker.version} has no NVIDIA container toolkit, so containers get no GPUs"
            return warning("docker", text, _TOOLKIT)
        case _:
            return ok("docker", f"Docker {docker.version}")


def docker_runtime(docker: DockerProbe) -> ReportedRuntime:
    """The report of the Docker engine to the controller."""
    reason = {
        "absent": "no Docker engine on this host; install one, or run the agent where its socket is",
        "denied": "the agent's user may not use the Docker engine; add it to the group docker",
        "silent": f"the Docker engine does not answer ({docker.error}); restart Docker",
        "running": "" if docker.gives_gpus else NO_TOOLKIT,
    }[docker.state]
    usable = docker.state == "running"
    gpus = usable and docker.gives_gpus
    return ReportedRuntime(name=RUNTIME_DOCKER, usable=usable, gpus=gpus, reason=reason, version=docker.version)


def _remedy(reason: str) -> str:
    code = reason.partition(":")[0]
    return next((texts[code].remedy for texts in REASONS.values() if code in texts), "Check the host: `nvidia-smi`.")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
