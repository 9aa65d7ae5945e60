"""What in a spec gives its process power over the host. Operators need it granted; administrators do not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from controller.domain.grants import Grant
from controller.engines.environment import power_of
from controller.engines.flags import args_of
from controller.engines.llama_cpp_options import LLAMA_CPP
from controller.engines.options import Options
from controller.engines.sglang_options import SGLANG
from controller.engines.transformers_options import TRANSFORMERS
from controller.engines.vllm_options import VLLM
from schemas.manifest.deployment import DeploymentSpec

OPTIONS: Final[Mapping[str, Options]] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "llama-cpp": LLAMA_CPP,
    "transformers": TRANSFORMERS,
}


@dataclass(frozen=True, slots=True)
class Power:
    """One field of a spec that needs a grant, and why."""

    path: str
    grant: Grant
    why: str


def powers(spec: DeploymentSpec) -> Iterator[Power]:
    """Everything in a spec that needs a grant. With `engine: auto`, what any of the engines would need."""
    if spec.command:
        yield Power("command", Grant.COMMAND, "runs a program on the host")
    if spec.image is not None:
        yield Power("image", Grant.CODE, "runs code that does not come with the engine")
    for source in spec.docker.volumes:
        yield Power(f"docker.volumes.{source}", Grant.HOST_FILES, "gives the container a folder of the host")
    tables = OPTIONS.values() if spec.engine == "auto" else [OPTIONS[spec.engine]] if spec.engine in OPTIONS else []
    for arg in args_of(spec):
        name, flag, value = arg.name, arg.flag, arg.value
        found = (table.privileged.get(table.destination(flag)) for table in tables)
        for privilege in found:
            if privilege is not None and privilege.concerns(value):
                yield Power(f"args.{name}", privilege.grant, privilege.why)
                break
    for name in spec.env:
        why = power_of(name)
        if why is not None:
            yield Power(f"env.{name}", Grant.ENVIRONMENT, why)
