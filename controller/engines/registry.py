"""Selects the engine of a spec, and checks a spec at apply time.

`engine: auto` represents all engines that can run the model, best first. Placement takes the first that fits. GGUF
files are for llama.cpp, the only engine here that loads them. For other models the order is: vLLM, which runs most
models and accounts for its memory; SGLang, which runs most but takes all free memory; Transformers, which runs all, one
request at a time. A host offers only the engines that are installed on it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from controller.domain.placement import Compatibility, Need
from controller.engines.arguments.environment import reserved
from controller.engines.arguments.flags import args_of
from controller.engines.base import Analysis, Engine, EngineProcess, Launch, RefusedFlagError, SpecError
from controller.engines.containers import check_container, has_default_image
from controller.engines.custom import CustomEngine
from controller.engines.estimates.model_analysis import reference_problem
from controller.engines.estimates.stated_memory import too_small
from controller.engines.servers.llama_cpp import LlamaCppEngine
from controller.engines.servers.sglang import SglangEngine
from controller.engines.servers.transformers import TransformersEngine
from controller.engines.servers.vllm import VllmEngine
from controller.engines.simulated import SimulatedEngine
from schemas.manifest.deployment import DeploymentSpec


class AutoEngine(Engine):
    """All engines that can run a model."""

    name = "auto"

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = {engine.name: engine for engine in engines}

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises the error of the last engine that loads such a model, if no engine can run the spec."""
        problems: list[SpecError] = []
        distinctive, meant = self._distinctive_flags(spec), self._meant(spec)
        if not any(distinctive <= engine.own_flags for engine in meant):
            raise SpecError(f"args: {', '.join(sorted(distinctive))} are flags of different engines; set engine")
        for engine in meant:
            try:
                engine.validate(spec)
            except SpecError as error:
                problems.append(error)
        if len(problems) == len(meant):
            refused = [problem for problem in problems if isinstance(problem, RefusedFlagError)]
            own = [problem for problem in problems if not str(problem).startswith("model: engine")]
            raise (refused or own or problems)[-1]

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:
        """The best engine's. The ask of each engine has its own."""
        return self._able(spec)[0].compatibility(spec)

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        return self._able(spec)[0].gpu_counts(spec)

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        return next((work for engine in self._able(spec) if (work := engine.analysis(spec)) is not None), None)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """The need by each engine, best first. Engines that cannot run the model leave only their notes."""
        needs = [(engine.name, engine.need(spec, result)) for engine in self._able(spec)]
        loading = [(name, need) for name, need in needs if not need.refused]
        able = [(name, need) for name, need in loading if not too_small(spec, need)] or loading
        if not able:
            return needs[0][1]
        refusals = [note for _, need in needs if need.refused for note in need.notes]
        others = ", ".join(name for name, _ in able[1:])
        chosen = f"engine: {able[0][0]}" + (f", or {others} where that fits nowhere" if others else "")
        best = able[0][1]
        return replace(best, notes=(*best.notes, chosen, *refusals), by_engine=tuple(able))

    def assumed(self, spec: DeploymentSpec) -> Need | None:
        """The assumed need by each engine for which the spec is enough."""
        assumed = ((engine.name, engine.assumed(spec)) for engine in self._able(spec))
        able = tuple((name, need) for name, need in assumed if need is not None)
        return replace(able[0][1], by_engine=able) if able else None

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """The best engine's. `chosen` returns the engine that an instance runs."""
        return self._able(spec)[0].process(spec, launch)

    def chosen(self, name: str) -> Engine:
        """The engine of that name; the last if the name is empty, as in revisions stored without a name."""
        return self._engines[name or next(reversed(self._engines))]

    def _meant(self, spec: DeploymentSpec) -> list[Engine]:
        """The engines that have all of the spec's distinctive flags; else all engines."""
        distinctive = self._distinctive_flags(spec)
        engines = [e for e in self._engines.values() if spec.runtime != "docker" or has_default_image(e.name)]
        return [engine for engine in engines if distinctive <= engine.own_flags] or engines

    def _distinctive_flags(self, spec: DeploymentSpec) -> frozenset[str]:
        """The spec's flags that only some engines have."""
        own = frozenset().union(*(engine.own_flags for engine in self._engines.values()))
        return own & {arg.flag for arg in args_of(spec)}

    def _able(self, spec: DeploymentSpec) -> list[Engine]:
        """The engines that accept this spec; else those that refuse only flags that an earlier version stored."""
        able: list[Engine] = []
        lenient: list[Engine] = []
        for engine in self._meant(spec):
            try:
                engine.validate(spec)
            except RefusedFlagError:
                lenient.append(engine)
            except SpecError:
                continue
            else:
                able.append(engine)
        return able or lenient or [self.chosen("")]


_BEST_FIRST: Final = (LlamaCppEngine(), VllmEngine(), SglangEngine(), TransformersEngine())
_ALL: Final[tuple[Engine, ...]] = (CustomEngine(), SimulatedEngine(), *_BEST_FIRST)
_ENGINES: Final = {engine.name: engine for engine in _ALL}
_AUTO: Final = AutoEngine(_BEST_FIRST)


def engine_for(spec: DeploymentSpec) -> Engine:
    """The engine of a spec. `auto` is `custom` if there is a command."""
    if spec.engine == "auto":
        return _ENGINES["custom"] if spec.command else _AUTO
    return _ENGINES[spec.engine]


def validate(spec: DeploymentSpec) -> None:
    """Checks that this version can run the spec.

    Raises:
        SpecError: names the field and the fix.
    """
    engine = engine_for(spec)
    _check_model(spec)
    if (problem := spec.count_problem()) is not None:
        raise SpecError(problem)
    _check_env(spec)
    if spec.runtime == "docker":
        check_container(spec)
    if spec.serving.apps is not None and engine.name != CustomEngine.name:
        raise SpecError("serving.apps: is for engine custom alone; remove it, or run the server by a command")
    engine.validate(spec)


def _check_model(spec: DeploymentSpec) -> None:
    if spec.model is None:
        return
    if "{" in spec.model or "}" in spec.model:
        raise SpecError("model: braces are reserved for what the agent fills in; rename the folder")
    scheme, _, reference = spec.model.partition(":")
    if problem := reference_problem(reference, on_hub=scheme == "hf"):
        raise SpecError(f"model: {problem}")


def _check_env(spec: DeploymentSpec) -> None:
    for name in spec.env:
        if why := reserved(name):
            raise SpecError(f"env.{name}: {why}")
