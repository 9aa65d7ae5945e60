"""Every reason code that the code emits is described, in sentences."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from schemas.placement_reasons import Reason, ReasonText
from schemas.status_reasons import REASONS
from schemas.wire import ExitReason

ROOT = Path(__file__).parents[3]
CODE = re.compile(r"[a-z]+(_([a-z]+|[0-9]+))*")
# Where a call takes its reason code: the position, or the keyword.
EMITTERS = {
    "NewEvent": 0, "stop": 3, "Refuse": 0, "order_stop": 4, "Verdict": 1, "_GpuVerdict": 1, "_verdict": 1,
    "change_phase": 2, "requeue_for_placement": 2, "set_condition": 3, "StopPlan": 1, "change_spec": 3,
}  # fmt: skip
# Contract (DESIGN.md, section 9), besides the members of `Reason`.
DERIVED = {f"policy_{dry}{action}" for dry in ("", "would_") for action in ("stop", "scale_down", "notify")}


def texts() -> dict[str, ReasonText]:
    return {code: text for group in REASONS.values() for code, text in group.items()}


def emitted() -> Iterator[tuple[str, str, str]]:
    """The emitter, the code, and where."""
    for folder in ("controller", "agent"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call):
                    where = f"{file.relative_to(ROOT)}:{call.lineno}"
                    yield from ((name_of(call), code, where) for code in codes_of(call))


def name_of(call: ast.Call) -> str:
    return str(call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", ""))


def codes_of(call: ast.Call) -> Iterator[str]:
    name = name_of(call)
    if name not in EMITTERS:
        return
    given = [k.value for k in call.keywords if k.arg in ("reason", "stop_reason")]
    given += call.args[EMITTERS[name] : EMITTERS[name] + 1]
    for value in given:
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and CODE.fullmatch(value.value):
            yield value.value


def test_every_emitted_code_is_described() -> None:
    known = texts()
    found = list(emitted())
    assert {"gpu_missing", "backoff", "old_epoch"} <= {code for _, code, _ in found}, "the scan is blind"
    assert {emitter for emitter, _, _ in found} == EMITTERS.keys(), "an emitter has another name now"
    assert [(code, where) for _, code, where in found if code not in known] == []
    assert {*get_args(ExitReason), *DERIVED} - known.keys() == set()


def test_every_placement_reason_is_described() -> None:
    assert set(REASONS["Placement"]) == set(Reason)


def test_no_code_is_described_twice() -> None:
    codes = [code for group in REASONS.values() for code in group]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(("code", "text"), texts().items())
def test_texts_are_sentences(code: str, text: ReasonText) -> None:
    assert CODE.fullmatch(code)
    for sentence in (text.meaning, text.remedy):
        assert re.fullmatch(r"[A-Z`].*[^.]\.", sentence), sentence
        assert len(sentence.split()) <= 25, sentence
