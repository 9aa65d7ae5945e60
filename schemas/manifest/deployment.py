"""The manifest of a `Deployment`: its fields, their defaults, and the rules between them."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from schemas.fields import Name, ScalarText, Seconds, Strict, Text, Whole
from schemas.manifest.docker import DockerOptions, Image
from schemas.manifest.policy import NO_POLICY, UtilizationPolicy
from schemas.manifest.probe import Probe
from schemas.manifest.resources import Parallel, Placement, ReplicaRange, Replicas, Resources, Scaling, bounds_of
from schemas.manifest.rollout import Rollout
from schemas.manifest.serving import ServingLimits

_ENV_NAME: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_KNOWN_PLACEHOLDERS: Final = ("port", "host", "model", "gpu_count")


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class SecretRef(Strict):
    """A reference to a stored secret. The value is read when a command is dispatched and never returned."""

    secret: Name = Field(description="Name of the stored secret, as given to `gpuward secret set`.")


SERVED_DRAIN_S: Final = 600.0
OTHER_DRAIN_S: Final = 30.0
# Args of the simulated engine that earlier versions knew. Stored specs may have them; they have no effect.
RETIRED_ARGS: Final = frozenset({
    "token_seconds", "wait_seconds", "die_after_tokens", "refuse", "silent", "usage", "slots", "kv_tokens",
    "hang_after", "without", "served_model_name", "heads", "kv_heads", "vocab", "vision_heads",
})  # fmt: skip
MODEL_PATTERN: Final = r"^(hf:[\w.-]+(/[\w.-]+)?(@[\w./-]+)?|path:/.*|gguf:/.*)$"


ArgValue = bool | int | float | str | list[Any] | dict[str, Any] | None


class DeploymentSpec(Strict):
    """The spec of a `Deployment`: every field of the manifest except kind and name."""

    # A new field, also one of a section, belongs in `NEWER_FIELDS` of `controller/store/deployments/specs.py`: else the
    # release before, which continues to run during an upgrade, cannot read the stored specs.

    model: Annotated[Text, Field(pattern=MODEL_PATTERN)] | None = Field(
        None,
        description="The model: `hf:org/name[@revision]` (Hugging Face), `path:/dir` or `gguf:/file` on the worker. "
        "Not needed for a custom command.",
    )
    engine: Literal["auto", "vllm", "sglang", "llama-cpp", "transformers", "custom", "simulated"] = Field(
        "auto",
        description="The server to run. `auto`: `custom` if a command is given, "
        "else the best engine that can load the model and that a worker offers.",
    )
    runtime: Literal["process", "docker"] = Field(
        "process",
        description="How the engine runs. `process`: as a process of the host. "
        "`docker`: in a container, on workers whose Docker engine agents may use.",
    )
    image: Image | None = Field(
        None,
        description="Container image, for `runtime: docker` only. Absent: the default image of the engine; "
        "a command needs one of its own.",
    )
    docker: DockerOptions = Field(
        DockerOptions(), description="The container of each instance, for `runtime: docker` only."
    )
    command: Annotated[tuple[Text, ...], Field(max_length=1024)] = Field(
        (),
        description="Program and arguments as a list, for `engine: custom`. No shell is used. "
        "`{port}`, `{host}` (the address to listen on), `{model}` and `{gpu_count}` are filled in at the start.",
    )
    args: Annotated[dict[Text, ArgValue], Field(max_length=256)] = Field(
        {},
        description="Flags of the engine without leading dashes, such as `{max-model-len: 8192}`. "
        "A list gives several values, a mapping its JSON text; `true` and `false` are switches; "
        "`null` leaves a flag out.",
    )
    env: Annotated[dict[str, ScalarText | SecretRef], Field(max_length=512)] = Field(
        {}, description="Environment variables of the engine: plain values, or `{secret: NAME}` for a stored secret."
    )
    replicas: Replicas = Field(
        1,
        description="Number of instances to run; 0 keeps the deployment and runs none. "
        "With `{min: 0, max: 4}` the number follows the requests.",
    )
    scaling: Scaling = Field(
        Scaling(), description="How the number of instances follows the requests, where `replicas` has min and max."
    )
    restart: Literal["always", "on_failure", "never"] = Field(
        "always",
        description="What to do after the process exits. `always`: start it again. `on_failure`: start it again "
        "unless it exits with code 0; give up after 6 failures in a row. "
        "`never`: do not start it again, which makes the deployment a task.",
    )
    start_timeout: Seconds = Field(
        600.0,
        description="Longest time without progress while an instance starts; after that it is killed and retried. "
        "A new line in its log counts as progress, for at most 12 times as long since its process began.",
    )
    drain_time: Seconds | Literal["auto"] = Field(
        "auto",
        description="Longest time that a stopping instance gets to finish its requests and exit; then it is killed. "
        "`auto`: 10m where requests reach it, else 30s.",
    )
    probe: Probe | None = Field(
        None, description="Health check that replaces the one of the engine. A custom command has none of its own."
    )
    stop_on_disconnect_after: Seconds | Literal["none"] = Field(
        "none",
        description="How long the agent may be without a controller before it stops the instance. "
        "`none`: the instance keeps running.",
    )
    priority: Annotated[Whole, Field(ge=0, le=1000)] = Field(
        100, description="Order of pending instances: higher values are placed first."
    )
    preempt: bool = Field(
        default=False,
        description="Allow preemption: if nothing is free, drain and requeue instances of lower priority.",
    )
    movable: bool = Field(
        default=True,
        description="Allow `gpuward defrag` to relocate running instances. "
        "Where `false`, they are preempted last among those of their priority.",
    )
    minimum_runtime: Seconds = Field(
        0.0,
        description="Time that an instance runs from its start before it may be preempted or relocated. "
        "Drains, stops and policies do not wait for it.",
    )
    update: Literal["recreate", "rolling"] = Field(
        "recreate",
        description="How a new revision replaces instances. `recreate`: stop each old instance before its "
        "replacement starts. `rolling`: start the replacement first, as `rollout` says.",
    )
    rollout: Rollout = Field(Rollout(), description="How `update: rolling` replaces instances.")
    labels: Annotated[dict[Text, ScalarText], Field(max_length=64)] = Field(
        {}, description="Labels of the deployment, for your own use. They do not affect placement."
    )
    resources: Resources = Field(Resources(), description="GPUs, memory and CPU cores that one instance claims.")
    parallel: Parallel = Field(Parallel(), description="How the model is split over the GPUs of one instance.")
    placement: Placement = Field(Placement(), description="Where instances may be placed.")
    serving: ServingLimits = Field(ServingLimits(), description="How requests to the model are served.")
    utilization_policy: UtilizationPolicy | Name | None = Field(
        None,
        description="The utilization policy: inline, or the name of one. Absent: the default policy, if there is one. "
        "`none`: no policy at all.",
    )

    @field_validator("args")
    @classmethod
    def _no_secrets(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, arg in value.items():
            if any(isinstance(part, dict) and part.keys() == {"secret"} for part in (arg, *_parts(arg))):
                raise ValueError(
                    f"{name}: arguments cannot refer to secrets, since every account of a host can read them; "
                    "write the secret into env"
                )
        return value

    @field_validator("env")
    @classmethod
    def _env_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not _ENV_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid variable name; use letters, digits and '_'")
            if name.startswith("GPUWARD_") or name == "CUDA_VISIBLE_DEVICES":
                raise ValueError(f"{name!r} is set by Gpuward; remove it")
        return value

    @field_validator("command")
    @classmethod
    def _placeholders(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for part in value:
            for placeholder in _PLACEHOLDER.findall(part):
                if placeholder not in _KNOWN_PLACEHOLDERS:
                    known = ", ".join(f"{{{name}}}" for name in _KNOWN_PLACEHOLDERS)
                    raise ValueError(f"unknown placeholder {{{placeholder}}}; known: {known}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "DeploymentSpec":
        if self.engine == "custom" and not self.command:
            raise ValueError("command: is required by engine custom; write it as a list, such as [python, serve.py]")
        if self.command and not self.command[0].strip():
            raise ValueError("command: the first item is empty; name the program to run, such as [python, serve.py]")
        if self.command and self.engine not in ("custom", "auto"):
            raise ValueError(f"command: engine {self.engine} does not take one; remove it or set engine: custom")
        if self.engine == "transformers" and self.model is None:
            raise ValueError("model: is required by engine transformers; write model: path:/dir or hf:org/name")
        if self.engine == "auto" and self.model is None and not self.command:
            raise ValueError("model: a model or a command is required; write one of them")
        if any("{model}" in part for part in self.command) and self.model is None:
            raise ValueError(
                "command: contains {model}, but the model is missing; write model: path:/dir or hf:org/name"
            )
        if self.utilization_policy not in (None, NO_POLICY) and self.resources.gpus == 0:
            raise ValueError("utilization_policy: requires a GPU, but resources.gpus is 0; remove one of them")
        if self.probe is not None and self.probe.generate and not self.takes_requests:
            raise ValueError(
                "probe.generate: needs a server, and the command has no {port}; use {port} in it, or remove the field"
            )
        self._check_container()
        self._check_range()
        self._check_rolling()
        world, gpus = self.parallel.world, self.resources.gpus
        if world is not None and gpus not in ("auto", world):
            raise ValueError(
                f"parallel: tp x pp x dp is {world}, but resources.gpus is {gpus} (count_mismatch); make them equal"
            )
        return self

    def _check_container(self) -> None:
        """Image and docker options require `runtime: docker`."""
        if self.runtime == "docker":
            if self.command and self.image is None:
                raise ValueError("image: is required by a command with runtime: docker; name one that has the program")
        elif self.image is not None:
            raise ValueError("image: requires runtime: docker; remove it or set the runtime")
        elif self.docker != DockerOptions():
            raise ValueError("docker: requires runtime: docker; remove the section or set the runtime")

    def _check_rolling(self) -> None:
        """A rolling update requires a deployment that serves."""
        if self.update != "rolling":
            return
        if self.restart != "always":
            raise ValueError(
                f"update: must be recreate with restart: {self.restart}, since a task is not replaced while it works; "
                "write update: recreate or restart: always"
            )
        if (self.rollout.canary or self.rollout.abort) and not self.takes_requests:
            raise ValueError(
                "rollout: canary and abort need requests, and none reaches a command without {port}; "
                "remove them or add {port} to the command"
            )

    def _check_range(self) -> None:
        """A range of replicas requires a deployment that takes requests."""
        if not isinstance(self.replicas, ReplicaRange):
            return
        if self.restart != "always":
            raise ValueError(
                f"replicas: must be a number with restart: {self.restart}, since a task takes no requests; "
                "write a number or restart: always"
            )
        if not self.takes_requests:
            raise ValueError(
                "replicas: must be a number for a command without {port}, which no request reaches; "
                "write a number or add {port} to the command"
            )

    @property
    def secrets(self) -> dict[str, str]:
        """Names of secrets by environment variable."""
        return {variable: value.secret for variable, value in self.env.items() if isinstance(value, SecretRef)}

    @property
    def replica_bounds(self) -> tuple[int, int]:
        return bounds_of(self.replicas)

    @property
    def takes_requests(self) -> bool:
        """Whether requests reach it: not a command without a port."""
        return not self.command or any("{port}" in part for part in self.command)

    @property
    def drain_s(self) -> float:
        """The longest time to finish requests and exit."""
        if self.drain_time != "auto":
            return self.drain_time
        return SERVED_DRAIN_S if self.takes_requests and self.restart == "always" else OTHER_DRAIN_S

    @property
    def gpus_stated(self) -> int | None:
        """The number of GPUs of one instance by `resources.gpus` or `parallel`; None if neither states it."""
        gpus = self.resources.gpus
        return self.parallel.world if gpus == "auto" else gpus

    @property
    def takes_all_named_gpus(self) -> bool:
        """Whether each instance takes all GPUs that `placement.gpus` names. Otherwise they are a pool."""
        named = len(self.placement.gpus)
        return named > 0 and (self.placement.all_of or self.gpus_stated == named)

    @property
    def retired_args(self) -> list[str]:
        """The names of args that have no effect any more."""
        return [name for name in self.args if name in RETIRED_ARGS] if self.engine == "simulated" else []

    def count_problem(self) -> str | None:
        """The field whose count contradicts others, and the fix; None if the counts agree.

        Not a validator: stored specs may have such counts.
        """
        resources, stated, named = self.resources, self.gpus_stated, len(self.placement.gpus)
        if resources.gpus == 0 and (resources.gpu_memory != "auto" or resources.exclusive):
            return "resources.gpus: is 0, but gpu_memory or exclusive asks for a GPU; remove one of them"
        if named and stated is not None and (stated > named or not stated):
            problem = f"names {named} GPUs, the spec needs {stated}: count_mismatch; name as many, or remove it"
            return f"placement.gpus: {problem}"
        return self._all_of_problem() if self.placement.all_of else None

    def _all_of_problem(self) -> str | None:
        placement, stated, named = self.placement, self.gpus_stated, len(self.placement.gpus)
        workers, most = len(set(placement.workers)), self.resources.max_workers
        if not named and not workers:
            return "placement.all_of: is true, but workers and gpus name nothing; name some, or remove it"
        if named and stated not in (None, named):
            return (
                f"placement.all_of: takes all {named} named GPUs, the spec needs {stated}: count_mismatch; "
                "make the numbers equal, or remove all_of"
            )
        if workers and workers != most:
            return (
                f"resources.max_workers: must be {workers} since placement.all_of takes all named workers, got {most}; "
                f"write {workers}, or remove all_of"
            )
        dp = self.parallel.dp
        if workers and dp != "auto" and dp > 1 and dp % workers:
            return (
                f"parallel.dp: {dp} copies cannot be divided evenly among the {workers} workers that placement.all_of "
                "takes: count_mismatch; write a multiple, or remove all_of"
            )
        if workers and not named and stated is not None and stated % workers:
            return (
                f"resources.gpus: {stated} GPUs cannot be divided evenly among the {workers} workers that "
                "placement.all_of takes: count_mismatch; write a multiple, or name the GPUs"
            )
        return None


# A change of these fields keeps running instances as they are. Any other change makes a revision.
IN_PLACE_FIELDS: Final = frozenset({
    "replicas", "scaling", "priority", "labels", "utilization_policy", "preempt", "movable", "minimum_runtime",
    "serving", "update", "rollout", "drain_time",
})  # fmt: skip


class DeploymentManifest(DeploymentSpec):
    """A `Deployment` as written in a file."""

    kind: Literal["Deployment"] = Field("Deployment", description="`Deployment`.")
    name: Name = Field(
        description="Name of the deployment, unique among deployments: a DNS label of at most 63 lower case letters, "
        "digits and `-`."
    )

    def spec(self) -> DeploymentSpec:
        """The spec without kind and name."""
        return self.part(DeploymentSpec)
