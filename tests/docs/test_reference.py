import ast
import runpy
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry

from controller.domain.phases import (
    DEPLOYMENT_PHASES,
    INSTANCE_EDGES,
    WORKER_EDGES,
    DeploymentPhase,
    InstancePhase,
    WorkerPhase,
)
from controller.runtime.metrics import Metrics
from controller.runtime.outcome import Outcome
from schemas.manifest.deployment import DeploymentManifest
from support.pages import DOCS, ROOT

GENERATOR: dict[str, Any] = runpy.run_path(str(DOCS / "generate"))
STATES = GENERATOR["states_page"]
METRICS = GENERATOR["metrics_page"]
SETTINGS = GENERATOR["settings_page"]
MANIFEST = GENERATOR["manifest_page"]
CLI = GENERATOR["cli_page"]
REASONS = GENERATOR["reason_codes_page"]
REQUESTS = GENERATOR["requests_page"]


@pytest.mark.parametrize("name", sorted(GENERATOR["PAGES"]))
def test_a_page_is_up_to_date(name: str) -> None:
    made = GENERATOR["PAGES"][name]()
    assert (DOCS / name).read_text(encoding="utf-8") == made, "run `make reference`"


def edges_of(table: Any) -> dict[tuple[Any, Any], Any]:
    return {(old, new): edge for old, news in table.items() for new, edge in news.items()}


def test_every_edge_says_what_takes_it_and_on_what() -> None:
    edges = edges_of(INSTANCE_EDGES) | edges_of(WORKER_EDGES)
    assert [names for names, edge in edges.items() if not edge.by or not edge.on] == []


def test_every_phase_has_a_meaning() -> None:
    assert set(STATES.INSTANCES) == set(InstancePhase) == set(INSTANCE_EDGES)
    assert set(STATES.WORKERS) == set(WorkerPhase) == set(WORKER_EDGES)
    assert set(DEPLOYMENT_PHASES) == set(DeploymentPhase)


def test_the_diagrams_hold_every_edge_but_those_to_stopping() -> None:
    page = (DOCS / "states.md").read_text(encoding="utf-8")
    drawn = {tuple(line.split(" --> ")) for line in map(str.strip, page.splitlines()) if " --> " in line}
    wanted = {(str(a), str(b)) for a, b in (edges_of(INSTANCE_EDGES) | edges_of(WORKER_EDGES)) if b != "stopping"}
    ends = {edge for edge in drawn if "[*]" in edge}
    assert drawn - ends == wanted
    assert ends == {("[*]", "pending"), ("stopping", "[*]"), ("[*]", "joining")}


def test_every_metric_and_label_is_described() -> None:
    found = METRICS.metrics()
    assert len({metric.name for metric in found}) == len(found)
    assert all(metric.text for metric in found)
    assert {label for metric in found for label in metric.labels} == set(METRICS.LABELS)
    assert {metric.name for metric in found if "outcome" in metric.labels} == set(METRICS.OUTCOMES)


def test_the_outcomes_of_a_step_keep_their_labels() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for outcome in (*(one.__name__.lower() for one in get_args(Outcome)), "stale"):
        metrics.observed("kind", outcome, 0.0)
    samples = [sample for family in registry.collect() for sample in family.samples]
    name = "gpuward_reconcile_seconds"
    labels = {sample.labels["outcome"] for sample in samples if sample.name == f"{name}_count"}
    assert labels == set(METRICS.OUTCOMES[name])


def test_every_setting_is_described() -> None:
    for _, model in SETTINGS._SECTIONS:
        assert [name for name, text in SETTINGS.texts_of(model).items() if not text] == []
    for name, texts in SETTINGS.MEANINGS.items():
        fields = next(model.model_fields for _, model in SETTINGS._SECTIONS if model.__name__ == name)
        assert set(texts) <= set(fields)


@pytest.mark.parametrize("model", [model for _, model in MANIFEST.SECTIONS], ids=lambda model: model.__name__)
def test_every_field_of_a_manifest_is_described(model: Any) -> None:
    texts = GENERATOR["manifest_page"].described(model)
    assert [name for name, text in texts.items() if not text] == []


def test_every_model_inside_a_manifest_has_a_section() -> None:
    nested = set(DeploymentManifest.model_json_schema()["$defs"])
    assert nested <= {model.__name__ for _, model in MANIFEST.SECTIONS}


def test_every_verb_and_option_has_help() -> None:
    for name, command in CLI.verbs():
        assert command.help, name
        assert [one.name for one in command.params if not one.hidden and not one.help] == [], name


def test_every_group_of_reasons_has_an_introduction() -> None:
    assert set(REASONS.INTRO) == set(REASONS.REASONS)


def errors_of_the_gateway() -> Iterator[tuple[int, str]]:
    """Status and code of each error that the gateway makes of literals."""
    for file in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "GatewayError":
                match node.args:
                    case [ast.Constant(int(status)), ast.Constant(str(code)), *_]:
                        yield status, code


def test_every_error_of_the_gateway_has_a_meaning() -> None:
    found = set(errors_of_the_gateway())
    assert found
    assert found <= set(REQUESTS.ERRORS)


def test_every_error_on_the_page_is_in_the_source() -> None:
    texts = "".join(
        f.read_text(encoding="utf-8")
        for p in ("gateway", "controller", "http1", "schemas")
        for f in (ROOT / p).rglob("*.py")
    )
    codes = {code for _, code in REQUESTS.ERRORS} | set(REQUESTS.OF_API)
    assert [code for code in codes if f'"{code}"' not in texts] == []
