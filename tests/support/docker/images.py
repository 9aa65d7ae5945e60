"""An image of empty folders: Python and the packages come from this host, mounted read-only."""

import asyncio
import io
import random
import site
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import aiodocker
from msgspec.structs import replace

from schemas.wire import ContainerOrder, StartOrder
from support.standins.controller import simulated_order, start_order

IMAGE = "gpuward-test/empty:1"
PROJECT = Path(__file__).parents[3]
_FOLDERS = ("usr", "lib", "lib64", "bin", "tmp", "dev", "proc", "sys", "etc")


def empty_layer(*, filler: int = 0) -> bytes:
    """A layer of empty folders, and of a file that does not compress."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755 if name != "tmp" else 0o1777
            tar.addfile(entry)
        if filler:
            data = random.Random(1).randbytes(filler)  # noqa: S311 - a file that does not compress
            entry = tarfile.TarInfo("filler")
            entry.size = filler
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


async def load_empty(address: str) -> None:
    """Gives the image to an engine."""
    name, _, tag = IMAGE.partition(":")
    async with (
        asyncio.timeout(30),
        aiodocker.Docker(address) as docker,
        docker.session.post(
            f"{docker.docker_host}/images/create", params={"fromSrc": "-", "repo": name, "tag": tag}, data=empty_layer()
        ) as answer,
    ):
        assert answer.status == 200, await answer.text()
        await answer.read()


def _host_folders() -> dict[str, str]:
    """What Python needs of this host."""
    wanted = {"/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(PROJECT)}
    found = sorted(path for path in wanted if Path(path).exists())
    kept = [path for path in found if not any(path != other and path.startswith(f"{other}/") for other in found)]
    return {path: f"{path}:ro" for path in kept}


def _env() -> dict[str, str]:
    packages = [str(PROJECT), sysconfig.get_path("purelib"), *site.getsitepackages()]
    return {"PYTHONPATH": ":".join(dict.fromkeys(packages)), "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin"}


def contained_spec(image: str, **fields: Any) -> dict[str, Any]:
    """A manifest's spec of the simulated engine in a container of the image."""
    container = {"volumes": _host_folders(), **fields.pop("docker", {})}
    return {"engine": "simulated", "runtime": "docker", "image": image, "docker": container, "env": _env(), **fields}


def contained(order: StartOrder, *, image: str = IMAGE, **fields: Any) -> StartOrder:
    """The order, in a container of the image."""
    volumes = {**_host_folders(), **fields.pop("volumes", {})}
    container = ContainerOrder(image=image, volumes=volumes, **fields)
    return replace(order, container=container, env={**_env(), **order.env})


def contained_engine(*extra: str, gpus: tuple[str, ...] = (), image: str = IMAGE, **fields: Any) -> StartOrder:
    """The simulated engine in a container."""
    return contained(simulated_order(*extra, gpus=gpus), image=image, **fields)


def contained_script(script: str, *, image: str = IMAGE, **fields: Any) -> StartOrder:
    """A Python program in a container."""
    return contained(start_order("{python}", "-c", script), image=image, **fields)
