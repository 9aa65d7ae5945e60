"""A server for models as data: its flags, its capabilities, and the flags that users may not set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.engines.arguments.flags import Writing, args_of, figure, flags, stated
from controller.engines.arguments.options import COMMON_FLAGS, Options
from controller.engines.base import RefusedFlagError, SpecError, adapter_places
from controller.engines.estimates.host_flags import HostFlags
from schemas.manifest.deployment import DeploymentSpec

# Flags that the estimate reads; the user may set them.
_READ: Final = ("dtype", "quantization", "kv-cache-dtype", "mm-encoder-tp-mode", "mm-enable-dp-encoder")


@dataclass(frozen=True, slots=True)
class ServerTable:
    """Flags are without dashes; of several spellings the server's own is first."""

    # least compute capability by quantisation method, `fp8-weights`, `fp8-cache` and `bfloat16`
    capabilities: Mapping[str, tuple[int, int]]
    unsupported: Mapping[str, str]  # architectures that it cannot run, with the reason
    options: Options
    context: tuple[str, ...]
    sequences: tuple[str, ...]
    batch_tokens: tuple[str, ...]
    batch_tokens_default: int
    batch_sequences_default: int
    adapters: tuple[str, ...]
    repeated: frozenset[str] = frozenset()  # flags repeated for each value; all others take several values
    switches: frozenset[str] = frozenset()  # with a `--no-` form
    lists: frozenset[str] = frozenset()  # flags whose list becomes JSON
    # without a `--no-` form, so `false` leaves them out; None: all other flags
    plain_switches: frozenset[str] | None = None
    windows: bool = True  # whether its cache is bounded by the window in layers with a sliding window
    no_windows: str = ""  # the switch that disables this
    host: HostFlags = field(default_factory=HostFlags)  # the flags that take memory of the host
    draft: Callable[[DeploymentSpec], str | None] = lambda _spec: None  # the place of the draft model
    draft_flags: tuple[str, ...] = ()  # that name it

    @property
    def figures(self) -> frozenset[str]:
        """The flags of the workload."""
        return frozenset({*self.context, *self.sequences, *self.batch_tokens})

    @property
    def own_flags(self) -> frozenset[str]:
        """The flags that identify this server, also those that users may not set."""
        return frozenset({*self.figures, *self.adapters, *self.options.names}) - COMMON_FLAGS

    def serves_at_once(self, spec: DeploymentSpec) -> int:
        """Sequences that an instance processes at once, over all parallel copies of the model."""
        copies = 1 if spec.parallel.dp == "auto" else spec.parallel.dp
        return copies * (figure(spec, *self.sequences) or self.batch_sequences_default)

    def adapter_flags(self, spec: DeploymentSpec) -> list[str]:
        places = adapter_places(spec)
        if not places:
            return []
        switch = [] if stated(spec, ("enable-lora",)) else ["--enable-lora"]
        return [*switch, f"--{self.adapters[0]}", *(f"{name}={place}" for name, place in places.items())]

    def refuse_adapter_args(self, spec: DeploymentSpec) -> None:
        """Raises SpecError for args that contradict the adapters of `serving`."""
        if not spec.serving.adapters:
            return
        if stated(spec, self.adapters) is not None:
            raise SpecError(f"args.{self.adapters[0]}: conflicts with serving.adapters; write all of them there")
        if stated(spec, ("enable-lora",)) is False:
            raise SpecError("args.enable-lora: is false, but serving.adapters has adapters; remove one of them")

    def flags(self, spec: DeploymentSpec) -> list[str]:
        """The spec's args as flags of this server. Raises SpecError."""
        how = Writing(self.figures, self.repeated, self.switches, self.lists, dotted=True)
        return flags(spec, how)

    def refuse_flags(self, spec: DeploymentSpec) -> None:
        """Raises RefusedFlagError for args that would outgrow the claim or have no effect."""
        self.options.check(spec, frozenset({*self.figures, *self.adapters, *_READ}))
        if self.plain_switches is None:
            return
        for arg in args_of(spec):
            known = {*self.switches, *self.plain_switches, *self.options.names}
            if arg.value is False and arg.flag not in known:
                raise RefusedFlagError(
                    f"args.{arg.name}: is not a switch that Gpuward knows; leave it out, or write no-{arg.flag}: true"
                )
