"""A model whose engine no worker has: the reason, and what to install."""

from dataclasses import replace

import pytest

from controller.domain.placement import Placed, Unplaced
from controller.scheduling.explain.unplaced import headline
from controller.scheduling.search.place import place
from schemas.engine_builds import INSTALL, version_mark
from schemas.placement_reasons import NEVER_FREED, Reason
from support.builders.engine_specs import QUANTISED, asks
from support.builders.fleet import GIB, Fleet


def fleet(*engines: str) -> Fleet:
    made = Fleet().add("w", [80 * GIB])
    made.workers["w"] = replace(made.workers["w"], engines=frozenset(engines))
    return made


@pytest.mark.parametrize("fields", [{}, {"placement": {"workers": ["w"]}}, {"placement": {"gpus": ["w/0"]}}])
@pytest.mark.parametrize("engine", ["llama-cpp", "auto"])
def test_a_missing_engine_has_a_code_and_the_command_that_installs_it(
    engine: str, fields: dict[str, dict[str, list[str]]]
) -> None:
    (wanted,) = asks(engine, QUANTISED, model="gguf:/m.gguf", **fields)
    decision = place(fleet().inventory(), [wanted])[0]
    assert isinstance(decision, Unplaced)
    assert decision.explain.rejected == {"engine_missing": 1}
    assert headline(decision.explain) is Reason.ENGINE_MISSING
    assert Reason.ENGINE_MISSING in NEVER_FREED
    assert INSTALL["llama-cpp"] in decision.explain.message


def test_a_version_among_the_engines_changes_nothing() -> None:
    (wanted,) = asks("llama-cpp", QUANTISED)
    assert isinstance(place(fleet("llama-cpp", version_mark("llama-cpp", "6500")).inventory(), [wanted])[0], Placed)
