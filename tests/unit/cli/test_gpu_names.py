"""GPUs are `gpu-a1:0` in tables and sentences, UUIDs for programs and in wide tables; verbs take both."""

import json
import time

import pytest
from aiohttp import web

from cli.objects.gpus import gpu_names, names_in_map
from cli.text.formatting import short_gpu
from cli.text.gpu_names import GpuNames
from cli.transport.client import connected
from cli.transport.connection import Connection
from support.builders.api_objects import deployment, gpu, instance, now_text, worker
from support.standins.api import KEY, ApiDouble, refusal

A, B, GONE = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abe")
SLICE = "MIG-cccccccc-0000-0000-0000-000000000000"
NAMES = GpuNames(lambda: {A: "gpu-a1:0", B: "gpu-a1:1"})


@pytest.fixture
def filled(api):
    chat = deployment("chat", message=f"{A} is hot")
    claims = [{"device": A, "worker": "gpu-a1", "memory_mib": 8192, "exclusive": False, "epoch": 1}]
    api.add(
        chat,
        instance(chat, 1, "unhealthy", worker="gpu-a1", gpus=[A], claims=claims, message=f"lost {A} and {GONE}"),
        worker("gpu-a1"),
        gpu(A, "gpu-a1", 0, claims=[{"instance": "chat-1", "deployment": "chat", **claims[0]}]),
        gpu(B, "gpu-a1", 1, health="unhealthy", health_reason=f"no link to {A}"),
        gpu(SLICE, "gpu-a1", 0, parent=B),
    )
    api.objects["events"]["1"] = {
        "id": 1, "at": now_text(), "reason": "gpu_unhealthy", "message": f"{B} is gone", "objects": [f"gpu:{B}"],
        "subjects": [{"kind": "gpu", "name": B, "uid": B}],
    }  # fmt: skip
    return api


@pytest.mark.parametrize(
    "words",
    [["ps"], ["get", "gpus"], ["get", "instances"], ["get", "gpu", A], ["describe", "instance", "chat-1"],
     ["describe", "worker", "gpu-a1"], ["events"], ["top", "--once"], ["cordon", "gpu-a1", "--gpu", B]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.usefixtures("filled")
def test_people_read_names(gpuward, words):
    text = gpuward(*words).stdout
    assert A not in text
    assert B not in text
    assert "gpu-a1:0" in text or "gpu-a1:1" in text


@pytest.mark.parametrize(
    "words", [["ps"], ["get", "gpus"], ["describe", "instance", "chat-1"], ["events"]], ids=" ".join
)
@pytest.mark.usefixtures("filled")
def test_wide_has_uuids(gpuward, words):
    text = gpuward(*words, "-o", "wide").stdout
    assert A in text or B in text


@pytest.mark.usefixtures("filled")
def test_describe_of_a_gpu_has_both(gpuward):
    lines = gpuward("describe", "gpu", "gpu-a1:0").stdout.splitlines()
    assert lines[0].split() == ["GPU:", "gpu-a1:0"]
    assert lines[1].split() == ["UUID:", A]


def test_programs_get_what_the_api_sends(gpuward, filled):
    raws = list(filled.objects["gpus"].values())
    assert json.loads(gpuward("get", "gpus", "-o", "json").stdout) == {"items": raws}
    assert gpuward("get", "gpus", "-o", "name").stdout.splitlines() == [f"gpu/{raw['name']}" for raw in raws]
    shown = gpuward("get", "gpus", "-o", "jsonpath={.items[0].name} {.items[0].status.worker}").stdout
    assert shown == f"{A} gpu-a1\n"
    assert not [path for _, path, _, _ in filled.asked if path.endswith("/map")], "programs need no names"


@pytest.mark.parametrize("text", [A, "gpu-a1:0", "aaaaaaaa"])
def test_both_forms_are_arguments(gpuward, filled, text):
    assert json.loads(gpuward("describe", "gpu", text, "-o", "json").stdout)["name"] == A
    assert json.loads(gpuward("get", "gpu", text, "-o", "json").stdout)["name"] == A
    assert json.loads(gpuward("get", f"gpu/{text}", "-o", "json").stdout)["name"] == A
    assert gpuward("uncordon", "gpu-a1", "--gpu", text).exit_code == 0
    assert filled.asked[-1][:2] == ("POST", f"/api/v1/gpus/{A}/uncordon")
    assert gpuward("events", "--for", f"gpu/{text}").exit_code == 0
    about = [query["object"] for _, path, query, _ in filled.asked if path.endswith("/events")]
    assert about == [f"gpu/{A}"]


def test_what_tables_print_is_an_argument(gpuward, filled):
    names = [line.split()[0] for line in gpuward("get", "gpus").stdout.splitlines()[1:]]
    assert names == ["gpu-a1:0", "gpu-a1:1", short_gpu(SLICE)]
    for name, raw in zip(names, filled.objects["gpus"].values(), strict=True):
        assert json.loads(gpuward("describe", "gpu", name, "-o", "json").stdout) == raw


def test_no_map_is_read_where_no_gpu_is_shown(gpuward, api):
    quiet = deployment("quiet")
    api.add(quiet, instance(quiet))
    assert gpuward("ps").exit_code == 0
    assert not [path for _, path, _, _ in api.asked if path.endswith("/map")]


def test_an_unreadable_map_leaves_short_ids(gpuward, filled):
    async def forbid(_request):
        return refusal(403, "forbidden", "the key may not read the map")

    filled.refuse_map = forbid
    line = gpuward("ps").stdout.splitlines()[1]
    assert " aaaaaaaa " in line
    assert A in line, "a sentence keeps a UUID that nothing names"


def test_unknown_gpus_stay_recognizable():
    assert NAMES.in_cell(f"{A},{GONE}") == "gpu-a1:0,eeeeeeee"
    assert NAMES.in_text(f"{A} left, {GONE} too") == f"gpu-a1:0 left, {GONE} too"
    assert NAMES.in_text(f"gpu/{B}: x{A}") == f"gpu/gpu-a1:1: x{A}"
    assert NAMES.in_cell(SLICE) == "MIG-cccccccc"


def test_slices_and_absent_gpus_have_no_index_of_their_own():
    raw = {
        "workers": {"name": ["gpu-a1"]},
        "gpus": {"uuid": [A, GONE, SLICE], "worker": [0, 0, 0], "index": [0, 0, 0], "state": ["ok", "absent", "ok"]},
    }
    assert names_in_map(raw) == {A: "gpu-a1:0", GONE: "eeeeeeee", SLICE: "MIG-cccccccc"}


def test_a_replaced_gpu_and_its_successor_have_names_of_their_own(gpuward, api):
    api.add(worker("gpu-a1"), gpu(GONE, "gpu-a1", 0, present=False), gpu(A, "gpu-a1", 0))
    rows = gpuward("top", "--once").stdout
    assert "gpu-a1:0" in rows
    assert "eeeeeeee" in rows
    assert rows.count("gpu-a1:0") == 1
    assert json.loads(gpuward("describe", "gpu", "gpu-a1:0", "-o", "json").stdout)["name"] == A
    assert gpuward("cordon", "gpu-a1", "--gpu", "0").exit_code == 0
    assert api.asked[-1][:2] == ("POST", f"/api/v1/gpus/{A}/cordon")


def maps_read(api: ApiDouble) -> int:
    return sum(path.endswith("/map") for _, path, _, _ in api.asked)


def test_the_map_is_read_once_for_all_sentences(gpuward, filled):
    for n in range(9):
        name = f"d{n}"
        filled.add({**deployment(name, "asleep", message=f"{A} is hot"), "warnings": [f"{A} and {GONE} are hot"]})
    manifests = "---\n".join(f"kind: Deployment\nname: d{n}\nengine: simulated\n" for n in range(9))
    done = gpuward("apply", "-f", "-", stdin=manifests)
    assert done.exit_code == 0, done.output
    assert "gpu-a1:0" in done.output
    assert maps_read(filled) == 1


@pytest.mark.parametrize(
    "found",
    [
        {"gpus": [], "workers": {"name": []}},
        {"gpus": {"uuid": [A], "worker": [0], "index": [0], "state": []}, "workers": {"name": ["gpu-a1"]}},
        {"gpus": {"uuid": [A], "worker": [3], "index": [0], "state": ["ok"]}, "workers": {"name": ["gpu-a1"]}},
        {"gpus": {"uuid": [1], "worker": ["x"], "index": [0], "state": ["ok"]}, "workers": {"name": ["gpu-a1"]}},
        {"gpus": None},
        {},
    ],
)
def test_a_map_of_another_shape_names_no_gpus(gpuward, filled, found):
    async def answer(_request):
        return web.json_response(found)

    filled.refuse_map = answer
    done = gpuward("ps")
    assert done.exit_code == 0, done.output
    assert " aaaaaaaa " in done.stdout


def test_names_are_read_again_for_a_new_gpu_and_not_for_each(api, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with connected(Connection(api.url, KEY)) as client:
        names = gpu_names(client)
        assert names.in_cell(A) == "aaaaaaaa"
        api.add(gpu(A, "gpu-a1", 0), gpu(B, "gpu-a1", 1))
        for _ in range(50):
            assert names.in_cell(A) == "aaaaaaaa"
        assert maps_read(api) == 1
        now[0] += 11
        assert names.in_cell(A) == "gpu-a1:0"
        assert names.in_text(B) == "gpu-a1:1"

        async def forbid(_request):
            return refusal(503, "database_unavailable", "try again in a moment")

        api.refuse_map = forbid
        now[0] += 11
        assert names.in_text(f"{A} {GONE}") == f"gpu-a1:0 {GONE}", "what was read once is kept"
