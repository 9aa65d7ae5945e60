"""What one layer of an exchange leaves to the ones above is abstract: it cannot be forgotten."""

import ast
import inspect
from pathlib import Path

import pytest

import gateway
from gateway.admission.model_list import Listing
from gateway.requests.admitting import Admitting
from gateway.requests.answering import Answering
from gateway.requests.form_request import FormExchange
from gateway.requests.holding import Holding
from gateway.requests.receiving import Receiving
from gateway.requests.request import Exchange
from gateway.requests.waiting import Waiting
from http1.protocol.reader import MessageReader, RequestReader, ResponseReader

ROOT = Path(gateway.__file__).parents[1]


@pytest.mark.parametrize(
    ("layer", "left"),
    [
        (Holding, {"overdue"}),
        (Admitting, {"overdue", "_admission"}),
        (Receiving, {"overdue", "_route"}),
        (Answering, {"overdue", "_route", "_next_replica", "_ask"}),
        (Waiting, {"overdue", "_route", "_next_replica", "_ask"}),
        (MessageReader, {"_feed_known", "_hand_on", "_new_parser"}),
    ],
)
def test_a_layer_names_what_it_leaves_to_others(layer: type, left: set[str]) -> None:
    assert layer.__abstractmethods__ == left


@pytest.mark.parametrize("whole", [Exchange, FormExchange, Listing, RequestReader, ResponseReader])
def test_what_is_made_leaves_nothing(whole: type) -> None:
    assert not inspect.isabstract(whole)


def test_no_method_fails_only_when_it_is_called() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for package in ("agent", "cli", "controller", "gateway", "http1", "schemas")
        for file in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id == "NotImplementedError"
    ]
    assert found == []
