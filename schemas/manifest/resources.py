"""The parts of a `Deployment` that placement reads: its resources, its degrees of parallelism, and where it may go."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from schemas.fields import ScalarText, SizeMibOrAuto, SizeMibOrAutoOrAll, SizeMibOrNone, Strict, Text, Whole, no_flag
from schemas.manifest.gpu_requirements import compute_capability_text, gpu_model_text

MAX_GPUS: Final = 4096


class Resources(Strict):
    """The resources that one instance claims."""

    gpus: Annotated[Whole, Field(ge=0, le=MAX_GPUS)] | Literal["auto"] = Field(
        "auto",
        description="GPUs of one instance, over all its workers. `auto`: as many as the model needs. "
        "For a custom command `auto` is 1 if `gpu_memory` or `exclusive` asks for a GPU, else 0.",
    )
    gpu_memory: SizeMibOrAutoOrAll = Field(
        "auto",
        description="Memory to claim on each GPU, such as `20GiB`. `auto`: the estimate for the model, "
        "or whole GPUs if there is no estimate. `all`: whole GPUs.",
    )
    exclusive: bool = Field(
        default=False, description="Claim whole GPUs that no other instance shares. `gpu_memory: all` does the same."
    )
    max_workers: Annotated[Whole, Field(ge=1, le=1024)] = Field(
        1,
        description="Most workers over which one instance may be spread. "
        "Values above 1 need an engine that can span hosts.",
    )
    host_memory: SizeMibOrAuto = Field(
        "auto",
        description="Main memory to claim on each worker of the instance, such as `16GiB`. "
        "`auto`: the estimate of the engine; none for a custom command.",
    )
    cpus: Annotated[float, BeforeValidator(no_flag), Field(ge=0, le=65536)] | Literal["auto"] = Field(
        "auto", description="CPU cores to claim on each worker of the instance; fractions are allowed. `auto`: none."
    )

    gpu_models: Annotated[tuple[Annotated[Text, AfterValidator(gpu_model_text)], ...], Field(max_length=64)] = Field(
        (),
        description="GPU models to use, each a part of the name that the driver reports, such as `[H100, A100-SXM4]`. "
        "Letters may be upper or lower case; blanks and dashes are alike. Empty: any model.",
    )
    min_gpu_memory: SizeMibOrNone = Field(
        "none", description="Least memory that each GPU has in all, claimed or not, such as `40GiB`. `none`: any size."
    )
    compute_capability: Annotated[Text, AfterValidator(compute_capability_text)] = Field(
        "none",
        description='CUDA compute capability that each GPU must have, such as `">=8.0"` or `">=8.0,<9.0"`. '
        "`none`: what the engine and the model need.",
    )

    @field_validator("gpu_memory")
    @classmethod
    def _some_memory(cls, value: int | str) -> int | str:
        if value == 0:
            raise ValueError("must be more than 0; write a size such as 20GiB, or remove it")
        return value

    @model_validator(mode="after")
    def _some_gpu(self) -> "Resources":
        if self.gpus == 0 and self.asks_for_a_gpu_kind:
            raise ValueError(
                "gpus is 0, but gpu_models, min_gpu_memory or compute_capability asks for a GPU; remove one of them"
            )
        return self

    @property
    def asks_for_a_gpu_kind(self) -> bool:
        """Whether any field says what kind of GPU is needed."""
        return bool(self.gpu_models) or self.min_gpu_memory != "none" or self.compute_capability != "none"

    @property
    def asks_for_a_gpu(self) -> bool:
        """Whether any field but `gpus` asks for a GPU."""
        return self.gpu_memory != "auto" or self.exclusive or self.asks_for_a_gpu_kind


Degree = Annotated[Whole, Field(ge=1, le=MAX_GPUS)] | Literal["auto"]


class Parallel(Strict):
    """Degrees of parallelism. If one is stated, the others default to 1 and their product is the number of GPUs."""

    tp: Degree = Field(
        "auto",
        description="Tensor parallelism: GPUs that split each layer. "
        "`auto`: chosen with the placement, or 1 if another degree is stated.",
    )
    pp: Degree = Field(
        "auto",
        description="Pipeline parallelism: GPUs that hold different layers. "
        "`auto`: chosen with the placement, or 1 if another degree is stated.",
    )
    dp: Degree = Field("auto", description="Data parallelism: copies of the model inside one instance. `auto`: 1.")

    @property
    def world(self) -> int | None:
        """The number of GPUs that the stated degrees need together; None if none is stated."""
        stated = [d for d in (self.tp, self.pp, self.dp) if d != "auto"]
        if not stated:
            return None
        world = 1
        for degree in stated:
            world *= degree
        return world


class Placement(Strict):
    """Where an instance may be placed. Manual selection passes the same checks as automatic selection."""

    strategy: Literal["auto", "pack", "spread", "least_fragmentation"] = Field(
        "auto",
        description="How to choose among the places that fit. `auto` fills used GPUs and workers first, and puts two "
        "replicas on one GPU only where nothing else fits. `pack` does so wherever it fills the GPU. "
        "`spread` puts replicas on different workers. "
        "`least_fragmentation` keeps free GPUs usable for the usual demand.",
    )
    labels: Annotated[dict[Text, ScalarText], Field(max_length=64)] = Field(
        {}, description="Labels that the worker must have, such as `{zone: a}`. Empty: any worker."
    )
    workers: Annotated[tuple[Text, ...], Field(max_length=1024)] = Field(
        (),
        description="Names of the only workers to use. Those that are not ready are left out. Empty: any worker.",
    )
    gpus: Annotated[tuple[Text, ...], Field(max_length=MAX_GPUS)] = Field(
        (),
        description="The only GPUs to use, each as its UUID or as `worker:index`. Each instance takes all of them if "
        "`resources.gpus` or `parallel` states that many, else what it needs of them. Empty: any GPU.",
    )
    all_of: bool = Field(
        default=False,
        description="Each instance takes all of the named workers and all of the named GPUs. "
        "`resources.max_workers` must then be the number of the named workers.",
    )

    @field_validator("gpus")
    @classmethod
    def _distinct_gpus(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("lists the same GPU twice; remove one")
        return value
