"""What users write: the specs of the contract's manifests, validated, with defaults filled in."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from schemas.base import Wire
from schemas.policy import NO_POLICY, UtilizationPolicy
from schemas.quantities import Seconds, SizeMibOrAuto, SizeMibOrAutoOrAll

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
MAX_REPLICAS: Final = 100_000
MAX_GPUS: Final = 4096
_ENV_NAME: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_KNOWN_PLACEHOLDERS: Final = frozenset({"port", "model", "gpu_count"})


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("holds a NUL character; remove it")
    return text


Text = Annotated[str, AfterValidator(_no_nul), Field(max_length=4096)]
Name = Annotated[str, Field(pattern=NAME_PATTERN, description="a DNS label: lower case letters, digits, '-'")]


def _scalar_text(value: object) -> object:
    """Env values and labels are text; YAML's numbers and booleans are taken as they were written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


ScalarText = Annotated[Text, BeforeValidator(_scalar_text)]


def _no_flag(value: object) -> object:
    """Python takes `true` for 1; who writes it means something else."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


Whole = Annotated[int, BeforeValidator(_no_flag)]


class SecretRef(Wire):
    """A reference to a stored secret; resolved when the command is delivered, never returned."""

    secret: Name


class Probe(Wire):
    """How the agent asks a model server whether it is well: HTTP GET, 2xx is well."""

    path: Annotated[str, Field(pattern=r"^/[^\s]*$", max_length=1024)] = "/health"
    period: Seconds = 5.0
    timeout: Seconds = 3.0
    failures: Annotated[Whole, Field(ge=1, le=1000)] = 3

    @field_validator("period", "timeout")
    @classmethod
    def _positive(cls, value: float) -> float:
        if value < 0.05:  # noqa: PLR2004 - faster than 20/s the probe is the load
            raise ValueError("must be at least 50ms")
        return value


class Resources(Wire):
    """What one instance asks. `gpu_memory` is per GPU; `exclusive` asks whole GPUs."""

    gpus: Annotated[Whole, Field(ge=0, le=MAX_GPUS)] | Literal["auto"] = "auto"
    gpu_memory: SizeMibOrAutoOrAll = "auto"
    exclusive: bool = False
    max_workers: Annotated[Whole, Field(ge=1, le=1024)] = 1
    host_memory: SizeMibOrAuto = "auto"
    cpus: Annotated[float, BeforeValidator(_no_flag), Field(ge=0, le=65536)] | Literal["auto"] = "auto"

    @field_validator("gpu_memory")
    @classmethod
    def _some_memory(cls, value: int | str) -> int | str:
        if value == 0:
            raise ValueError("is nothing; write a size such as 20GiB, or leave it out")
        return value


Degree = Annotated[Whole, Field(ge=1, le=MAX_GPUS)] | Literal["auto"]


class Parallel(Wire):
    """Degrees of tensor, pipeline and data parallelism."""

    tp: Degree = "auto"
    pp: Degree = "auto"
    dp: Degree = "auto"

    @property
    def world(self) -> int | None:
        """GPUs that the stated degrees need together; None where none is stated."""
        stated = [d for d in (self.tp, self.pp, self.dp) if d != "auto"]
        if not stated:
            return None
        world = 1
        for degree in stated:
            world *= degree
        return world


class Placement(Wire):
    """Where an instance may go. `workers` and `gpus` are manual selection, as strict as automatic."""

    strategy: Literal["pack", "spread", "least_fragmentation"] = "pack"
    labels: Annotated[dict[Text, ScalarText], Field(max_length=64)] = {}
    workers: Annotated[tuple[Text, ...], Field(max_length=1024)] = ()
    gpus: Annotated[tuple[Text, ...], Field(max_length=MAX_GPUS)] = ()

    @field_validator("gpus")
    @classmethod
    def _distinct_gpus(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("names the same GPU twice; name each once")
        return value


ArgValue = bool | int | float | str | list[Any] | None


class DeploymentSpec(Wire):
    """The spec of a `Deployment`: everything of the manifest but kind and name."""

    model: Annotated[Text, Field(pattern=r"^(hf:[\w.-]+(/[\w.-]+)?(@[\w./-]+)?|path:/.*|gguf:/.*)$")] | None = None
    engine: Literal["auto", "vllm", "sglang", "llama-cpp", "transformers", "custom", "simulated"] = "auto"
    runtime: Literal["process", "docker"] = "process"
    image: Text | None = None
    command: Annotated[tuple[Text, ...], Field(max_length=1024)] = ()
    args: Annotated[dict[Text, ArgValue], Field(max_length=256)] = {}
    env: Annotated[dict[str, ScalarText | SecretRef], Field(max_length=512)] = {}
    replicas: Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)] = 1
    restart: Literal["always", "on_failure", "never"] = "always"
    start_timeout: Seconds = 600.0
    drain_time: Seconds = 30.0
    probe: Probe | None = None
    stop_on_disconnect_after: Seconds | Literal["none"] = "none"
    priority: Annotated[Whole, Field(ge=0, le=1000)] = 100
    preempt: bool = False
    movable: bool = True
    update: Literal["recreate", "rolling"] = "recreate"
    labels: Annotated[dict[Text, ScalarText], Field(max_length=64)] = {}
    resources: Resources = Resources()
    parallel: Parallel = Parallel()
    placement: Placement = Placement()
    utilization_policy: UtilizationPolicy | Name | None = None  # inline, a policy's name, or `none`

    @field_validator("env")
    @classmethod
    def _env_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not _ENV_NAME.match(name):
                raise ValueError(f"{name!r} is not a variable's name; use letters, digits and '_'")
            if name.startswith("GPUWARD_") or name == "CUDA_VISIBLE_DEVICES":
                raise ValueError(f"{name!r} is set by Gpuward; remove it")
        return value

    @field_validator("command")
    @classmethod
    def _placeholders(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for part in value:
            for found in _PLACEHOLDER.findall(part):
                if found not in _KNOWN_PLACEHOLDERS:
                    raise ValueError(f"unknown placeholder {{{found}}}; known: {{port}}, {{model}}, {{gpu_count}}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "DeploymentSpec":
        if self.engine == "custom" and not self.command:
            raise ValueError("command: engine custom needs a command; write it as a list, such as [python, serve.py]")
        if self.command and not self.command[0].strip():
            raise ValueError("command: begins with an empty text; name the program to run, such as [python, serve.py]")
        if self.command and self.engine not in ("custom", "auto"):
            raise ValueError(f"command: engine {self.engine} runs no command; remove it or set engine: custom")
        if self.engine == "transformers" and self.model is None:
            raise ValueError("model: engine transformers needs a model; write model: path:/dir or hf:org/name")
        if self.engine == "auto" and self.model is None and not self.command:
            raise ValueError("model: neither a model nor a command is given; write one of them")
        if any("{model}" in part for part in self.command) and self.model is None:
            raise ValueError("command: uses {model}, but no model is given; write model: path:/dir or hf:org/name")
        if self.utilization_policy not in (None, NO_POLICY) and self.resources.gpus == 0:
            raise ValueError("utilization_policy: the deployment asks no GPU whose use could be judged; remove it")
        if self.image is not None and self.runtime != "docker":
            raise ValueError("image: goes with runtime: docker only; remove it or set the runtime")
        world, gpus = self.parallel.world, self.resources.gpus
        if world is not None and gpus not in ("auto", world):
            raise ValueError(
                f"parallel: tp x pp x dp is {world}, resources.gpus {gpus}: count_mismatch; make them equal"
            )
        return self


# Changing these keeps running instances as they are; any other change makes a revision.
IN_PLACE_FIELDS: Final = frozenset({"replicas", "priority", "labels", "utilization_policy", "preempt", "movable"})


class DeploymentManifest(DeploymentSpec):
    """A `Deployment` as written in a file."""

    kind: Literal["Deployment"] = "Deployment"
    name: Name

    def spec(self) -> DeploymentSpec:
        """The spec without kind and name."""
        return DeploymentSpec.model_construct(**{f: getattr(self, f) for f in DeploymentSpec.model_fields})
