"""Names as tables print them and as people shorten them."""

import pytest

from cli.errors import CliError, NotFoundError
from cli.objects.kinds import GPUS, INSTANCES
from cli.objects.names import matching, only_one
from support.builders.api_objects import deployment, gpu, instance, policy, worker

A, B, SLICE = (f"GPU-{one}-0000-0000-0000-000000000000" for one in ("bd020789", "bd02ffff", "cafecafe"))
OF_GPUS = [gpu(A, "w1", 0), gpu(B, "w1", 1), gpu(SLICE, "w2", 0, parent=A)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (A, [A]),
        ("bd020789", [A]),
        ("w1:1", [B]),
        ("w2:0", []),  # a slice
        ("w1:2", []),
        ("bd02", [A, B]),
        ("bd02f", [B]),
        ("GPU-bd02f", [B]),
        ("bd0", []),  # too short
        ("GPU", []),
        ("", []),
    ],
)
def test_a_gpu_has_its_printed_names(text: str, found: list[str]) -> None:
    assert matching(GPUS, text, OF_GPUS) == found


def test_a_whole_name_goes_before_longer_ones() -> None:
    raws = [{"name": "chat"}, {"name": "chat-2"}]
    assert matching(INSTANCES, "chat", raws) == ["chat"]
    assert matching(INSTANCES, "cha", raws) == ["chat", "chat-2"]


def test_several_are_named_and_none_is_told() -> None:
    with pytest.raises(CliError, match=r"begins a0, a1, a2, a3, a4 and 2 more; write more of it"):
        only_one(INSTANCES, "a", [f"a{n}" for n in range(7)])
    with pytest.raises(NotFoundError, match="gpuward get instances"):
        only_one(INSTANCES, "a", [])


@pytest.fixture
def cluster(api):
    chat = deployment("chat")
    api.add(chat, deployment("train"), instance(chat, 1), instance(chat, 2), worker("w1"), policy("chat"), *OF_GPUS)
    return api


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["describe", "gpu", "w1:1"], B),
        (["describe", "gpu", "bd020789"], A),
        (["describe", "w1:1"], B),
        (["describe", "w1"], "w1"),
        (["describe", "tra"], "train"),
        (["describe", "chat-1"], "chat-1"),
        (["describe", "deployment", "cha"], "chat"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_describe_takes_names_as_they_are_printed(gpuward, words, first):
    done = gpuward(*words)
    assert done.exit_code == 0, done.stderr
    assert first in " ".join(done.stdout.splitlines()[:2])  # a GPU has its name, then its UUID


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["describe", "chat"], 1, "'chat' is not unique: deployment chat, policy chat; write gpuward describe KIND"),
        (["describe", "chat-"], 1, "instance chat-1, instance chat-2"),
        (["describe", "instance", "chat"], 1, "begins chat-1, chat-2; write more of it"),
        (["describe", "nothing"], 3, "nothing has the name 'nothing'"),
        (["describe", "gpu"], 2, "NAME is missing: gpuward describe gpu NAME"),
        (["get", "worker", "x"], 3, "worker 'x' does not exist; list them: gpuward get workers"),
        (["logs", "chat-"], 1, "instance 'chat-' is not unique"),
        (["logs", "x"], 3, "neither a deployment nor an instance 'x' exists"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_what_is_not_one_object_is_refused(gpuward, words, code, message):
    done = gpuward(*words)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr


def test_logs_take_the_beginning_of_an_id(gpuward, cluster):
    cluster.logs = {"chat-1": b"one\n"}
    cluster.objects["instances"].pop("chat-2")
    assert gpuward("logs", "chat-").stdout == "one\n"


def test_what_changes_something_takes_whole_names_only(gpuward, cluster):
    for verb in ("stop", "delete"):
        assert gpuward(verb, "trai").exit_code == 3
    assert "train" in cluster.objects["deployments"]
