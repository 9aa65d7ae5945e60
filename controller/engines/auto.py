"""`engine: auto`: every engine that could run the model, best first, so that placement takes the first that fits.

The order: llama.cpp for GGUF files, which nothing else here loads. For everything else vLLM, which runs most models
and keeps its own accounts of memory; SGLang, which runs most of them too but takes what it finds free; Transformers,
which runs all of them, one request after another. A host offers what is installed on it, so where only one of them is,
it is taken there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from controller.domain.placement import Compatibility, Need
from controller.engines.base import Analysis, Engine, EngineProcess, Launch, SpecError
from controller.engines.flags import flag_of
from schemas.manifest.deployment import DeploymentSpec


class Choosable(Engine, Protocol):
    """An engine that may be chosen."""

    own_flags: frozenset[str]  # by which a user shows that he means this one


class AutoEngine:
    """Stands for several engines.

    Args:
        engines: best first; the last is the one that ran every model before there was a choice.
    """

    name = "auto"

    def __init__(self, engines: Sequence[Choosable]) -> None:
        self._engines = {engine.name: engine for engine in engines}

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises SpecError where none of the engines can run this spec: what the last says that loads such a model."""
        problems: list[SpecError] = []
        told, meant = self._told(spec), self._meant(spec)
        if not any(told <= engine.own_flags for engine in meant):
            raise SpecError(f"args: {', '.join(sorted(told))} are flags of different engines; state engine")
        for engine in meant:
            try:
                engine.validate(spec)
            except SpecError as error:
                problems.append(error)
        if len(problems) == len(meant):
            raise next((one for one in reversed(problems) if not str(one).startswith("model: engine")), problems[-1])

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:
        """That of the best; asks are made of each one's own."""
        return self._able(spec)[0].compatibility(spec)

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """Those of the best; asks are made of each one's own."""
        return self._able(spec)[0].gpu_counts(spec)

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """The model's facts, wherever one of the engines has to read them."""
        return next((work for engine in self._able(spec) if (work := engine.analysis(spec)) is not None), None)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """What each engine makes of the facts, best first; one that cannot run the model is left out, with its note."""
        needs = [(engine.name, engine.need(spec, result)) for engine in self._able(spec)]
        able = [(name, need) for name, need in needs if not need.refused]
        if not able:
            return needs[0][1]
        why = [note for _, need in needs if need.refused for note in need.notes]
        others = ", ".join(name for name, _ in able[1:])
        chosen = f"engine: {able[0][0]}" + (f", and where that fits nowhere {others}" if others else "")
        best = able[0][1]
        return replace(best, notes=(*best.notes, chosen, *why), by_engine=tuple(able))

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """That of the best; `chosen` says which one an instance runs."""
        return self._able(spec)[0].process(spec, launch)

    def chosen(self, name: str) -> Engine:
        """The engine of that name; empty, as on revisions from before there was a choice: the last."""
        return self._engines[name or next(reversed(self._engines))]

    def _meant(self, spec: DeploymentSpec) -> list[Choosable]:
        """Those that know all flags of the args that only some of the engines know."""
        told = self._told(spec)
        return [engine for engine in self._engines.values() if told <= engine.own_flags] or list(self._engines.values())

    def _told(self, spec: DeploymentSpec) -> frozenset[str]:
        """The flags that are given and that not every engine has."""
        own = frozenset().union(*(engine.own_flags for engine in self._engines.values()))
        return own & {flag_of(name) for name in spec.args}

    def _able(self, spec: DeploymentSpec) -> list[Engine]:
        """The engines that accept this spec."""
        able: list[Engine] = []
        for engine in self._meant(spec):
            try:
                engine.validate(spec)
            except SpecError:
                continue
            able.append(engine)
        return able or [self.chosen("")]
