"""Views as tables read them, and as verbs do that need models of manifests."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from cli.errors import CliError
from cli.objects.kind import Kind, table_of
from cli.objects.kinds import CACHED_MODELS, GATEWAYS, KINDS
from cli.objects.views import read_view
from schemas.api.access import KeyView, TokenView
from schemas.api.deployments import DeploymentView
from schemas.api.events import EventView
from schemas.api.gpus import GpuView
from schemas.api.instances import InstanceView
from schemas.api.model_cache import CachedModelView
from schemas.api.policies import PolicyView
from schemas.api.usage import GatewayView
from schemas.api.view import from_json, from_plain, to_json, to_plain
from schemas.api.workers import WorkerView
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import PolicySpec, UtilizationPolicy
from support.builders.api_objects import deployment, gpu, instance, worker
from support.standins.api import KEY, ApiDouble

VIEWS: dict[str, type[msgspec.Struct]] = {
    view.__name__: view
    for view in (
        CachedModelView, DeploymentView, EventView, GatewayView, GpuView, InstanceView, KeyView, PolicyView, TokenView,
        WorkerView,
    )
}  # fmt: skip
TABLES = (*KINDS, CACHED_MODELS, GATEWAYS)
NOW = datetime(2026, 11, 1, tzinfo=UTC)
MOMENTS = st.datetimes(min_value=datetime(2026, 1, 1), max_value=datetime(2027, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis adds the zone
TEXT = st.text("ab-:1", max_size=5)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(0, 2000),
    float: st.floats(0, 100).map(lambda value: round(value, 2)),
    bool: st.booleans(),
    datetime: MOMENTS.map(datetime.isoformat),
    Any: st.integers(0, 9),
}
SPECS: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
    "DeploymentSpec": lambda: st.sampled_from(
        [
            DeploymentSpec.model_validate({"model": "hf:a/b", **more}).model_dump(mode="json")
            for more in ({}, {"replicas": 3}, {"replicas": {"min": 0, "max": 4}})
        ]
    ),
    "PolicySpec": lambda: st.sampled_from([policy(PolicySpec), policy(PolicySpec, dry_run=True, gpus="any")]),
    "UtilizationPolicy": lambda: st.just(policy(UtilizationPolicy)),
    "GpuDetails": lambda: st.just({"power_w": 300.0}),
}


def policy(model: type[BaseModel], **more: Any) -> Any:
    return model.model_validate({"min_gpu_utilization": 10, "time_window": "90s", **more}).model_dump(mode="json")


def raws(annotation: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one return a form
    """JSON of the annotation, with defaults left out at times."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        words = (getattr(arguments[1], "extra_json_schema", None) or {}).get("enum")
        return st.sampled_from(words) if words else raws(arguments[0])
    if origin in (Union, UnionType):
        return st.one_of([st.none() if one is NoneType else raws(one) for one in arguments])
    if origin in (list, tuple):
        return st.lists(raws(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(raws(arguments[0]).map(str), raws(arguments[1]), max_size=2)
    if getattr(annotation, "__name__", "") in SPECS:
        return SPECS[annotation.__name__]()
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return objects(annotation)
    return SCALARS[annotation]


def objects(view: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(view, include_extras=True)
    fields = {one.name: raws(hints[one.name]) for one in msgspec.structs.fields(view)}
    needed = {one.name: fields[one.name] for one in msgspec.structs.fields(view) if one.required}
    return st.fixed_dictionaries(needed, optional={name: value for name, value in fields.items() if name not in needed})


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.plural)
@given(data=st.data())
def test_a_table_is_the_same_with_specs_as_models(kind: Kind, data: st.DataObject) -> None:
    raw = data.draw(objects(VIEWS[kind.view]))
    typed = from_plain(VIEWS[kind.view], raw)
    assert table_of(kind, [read_view(kind.view, raw)], NOW, wide=True) == table_of(kind, [typed], NOW, wide=True)


@pytest.mark.parametrize("name", VIEWS)
@given(data=st.data())
def test_a_view_is_the_same_when_it_is_written_and_read(name: str, data: st.DataObject) -> None:
    view = from_plain(VIEWS[name], data.draw(objects(VIEWS[name])))
    assert from_json(VIEWS[name], to_json(view)) == from_plain(VIEWS[name], to_plain(view)) == view


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"status": None}, "status"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"created_at": "2026-01-01T00:00:00"}, "created_at"),
        ({"created_at": 5}, "created_at"),
        ({"name": 5}, "name"),
        ({"status": {"phase": "ready", "state": "ready", "gpus": True}}, "status.gpus"),
        ({"status": {"phase": "ready", "state": "ready", "labels": []}}, "status.labels"),
        ({"status": {"phase": "ready", "state": "ready", "labels": {"zone": 1}}}, "status.labels[...]"),
        ({"status": {"phase": "ready", "state": "ready", "conditions": {}}}, "status.conditions"),
        ({"status": {"phase": "ready", "state": "ready", "runtimes": [{}]}}, "status.runtimes[0]"),
    ],
)
def test_another_versions_object_is_told_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CliError, match="cannot read the WorkerView of the server") as refused:
        read_view("WorkerView", {**worker("w"), **changes})
    assert f"$.{field}`)" in str(refused.value)
    assert "use the gpuward version of the server" in str(refused.value)


def test_a_newer_servers_words_and_fields_are_no_error() -> None:
    raw = {**worker("w"), "more": 1}
    raw["status"] = {**raw["status"], "phase": "hibernating", "more": {}}
    assert read_view("WorkerView", raw).status.phase == "hibernating"


TABLES_PRINTED = """
import sys
from cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print([name for name in ("aiohttp", "asyncio", "pydantic", "rich", "yaml") if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["ps"], ["get", "deployments"], ["get", "workers"], ["get", "gpus"]])
def test_a_table_needs_no_slow_import(words: list[str], api: ApiDouble) -> None:
    chat = deployment("chat")
    api.add(chat, instance(chat), worker("w"), gpu("GPU-1", "w"))
    done = subprocess.run(
        [sys.executable, "-c", TABLES_PRINTED, "--url", api.url, "--api-key", KEY, *words],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
