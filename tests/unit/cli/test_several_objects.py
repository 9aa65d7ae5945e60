"""Several objects in one call, the labels that pick them, and outputs for scripts."""

import json

import pytest

from support.builders.api_objects import deployment, instance, policy, worker
from support.standins.api import refusal


@pytest.fixture
def objects(api):
    chat = deployment("chat", spec={"labels": {"app": "chat", "tier": "gold"}})
    code = deployment("code", "pending", spec={"labels": {"app": "code"}})
    plain = deployment("plain")
    api.add(chat, code, plain, instance(chat), instance(code, 1, "pending"), instance(plain))
    api.add(worker("w1", labels={"zone": "a"}), worker("w2"))


pytestmark = pytest.mark.usefixtures("objects")


def test_get_prints_those_that_there_are_and_tells_the_others(gpuward):
    done = gpuward("get", "deployments", "code", "missing", "chat", "code")
    assert done.exit_code == 3
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NAME", "code", "chat"]
    assert done.stderr == ("gpuward: deployment 'missing' does not exist; list them: gpuward get deployments\n")


def test_several_are_a_list_and_one_is_itself(gpuward):
    several = json.loads(gpuward("get", "deployments", "chat", "code", "-o", "json").stdout)
    assert [raw["name"] for raw in several["items"]] == ["chat", "code"]
    partly = gpuward("get", "deployments", "chat", "missing", "-o", "json")
    assert (partly.exit_code, [raw["name"] for raw in json.loads(partly.stdout)["items"]]) == (3, ["chat"])
    assert json.loads(gpuward("get", "deployment", "chat", "-o", "json").stdout)["name"] == "chat"


def test_a_name_and_its_beginning_are_one_object(gpuward):
    assert gpuward("get", "deployments", "chat", "cha", "-o", "name").stdout == "deployment/chat\n"


@pytest.mark.parametrize(
    "words", [("deployment/chat", "deployment/code"), ("deployments", "deployment/chat", "deployments/code")]
)
def test_names_may_have_their_kind_before_them(gpuward, words):
    assert gpuward("get", *words, "-o", "name").stdout == "deployment/chat\ndeployment/code\n"


def test_what_name_prints_is_taken_by_verbs(gpuward, api):
    names = gpuward("get", "deployments", "-l", "app", "-o", "name").stdout.split()
    assert gpuward("stop", *names).stdout == "deployment/chat stopped\ndeployment/code stopped\n"
    workers = gpuward("get", "workers", "-o", "name").stdout.split()
    assert gpuward("cordon", *workers).stdout == "worker/w1 cordoned\nworker/w2 cordoned\n"
    assert [path for method, path, _, _ in api.asked if method == "POST"][-1] == "/api/v1/workers/w2/cordon"


def test_a_name_of_another_kind_is_a_usage_error(gpuward, api):
    for verb in (("get", "deployment/chat"), ("stop",), ("start",), ("wait",)):
        refused = gpuward(*verb, "worker/w1")
        assert refused.exit_code == 2
        assert "write NAME or deployment/NAME" in refused.stderr
    assert not [one for one in api.asked if one[0] == "POST"]


def test_a_key_may_have_a_slash_in_its_name(gpuward, api):
    api.objects["keys"]["1"] = {"id": "k-1", "name": "team/alice", "role": "user"}
    assert gpuward("get", "keys", "team/alice", "-o", "name").stdout == "key/k-1\n"
    assert gpuward("get", "key/k-1", "-o", "jsonpath={.name}").stdout == "team/alice\n"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("get", "deployments", "-l", "app"), "deployment/chat\ndeployment/code\n"),
        (("get", "deployments", "-l", "app in (chat,x),tier=gold"), "deployment/chat\n"),
        (("get", "deployments", "-l", "app!=chat"), "deployment/code\ndeployment/plain\n"),
        (("get", "instances", "-l", "app=code"), "instance/code-1\n"),
        (("get", "instances", "-l", "!app"), "instance/plain-1\n"),
        (("get", "workers", "-l", "zone=a"), "worker/w1\n"),
        (("get", "workers", "-l", "zone=b"), ""),
        (("ps", "-l", "app"), "instance/chat-1\ninstance/code-1\n"),
        (("ps", "chat", "-l", "app=code"), ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_labels_pick(gpuward, words, names):
    done = gpuward(*words, "-o", "name")
    assert (done.exit_code, done.stdout, done.stderr) == (0, names, "")


def test_ps_tells_of_sleeping_deployments_with_the_labels_only(gpuward, api):
    api.add(deployment("nap", "asleep", spec={"labels": {"app": "nap"}}), deployment("doze", "asleep"))
    both = gpuward("ps").stdout
    assert "nap" in both
    assert "doze" in both
    picked = gpuward("ps", "-l", "app=nap").stdout
    assert "nap" in picked
    assert "doze" not in picked


def test_an_invalid_selector_and_one_for_what_has_no_labels_are_usage_errors(gpuward):
    for words in (("deployments", "-l", "a b"), ("policies", "-l", "a=b"), ("deployments", "chat", "-l", "app")):
        assert gpuward("get", *words).exit_code == 2
    assert "deployments, instances and workers have" in gpuward("get", "policies", "-l", "a=b").stderr
    assert "key notin (a,b)" in gpuward("get", "deployments", "-l", "a b").stderr.replace("\n", " ")


def test_a_template_is_of_what_json_prints(gpuward):
    template = 'jsonpath={range .items[*]}{.name} {.status.phase}{"\\n"}{end}'
    assert gpuward("get", "deployments", "-o", template).stdout == "chat running\ncode pending\nplain running\n"
    assert gpuward("get", "deployment", "code", "-o", "jsonpath={.status.phase}").stdout == "pending\n"


def test_a_template_that_nothing_matches_is_told(gpuward):
    done = gpuward("get", "deployments", "-o", "jsonpath={.items[*].nme}")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "gpuward: nothing matches {.items[*].nme}; -o json shows the fields that there are\n"
    assert gpuward("get", "policies", "-o", "jsonpath={.items[*].nme}").stderr == ""  # there are none at all


@pytest.mark.parametrize(
    ("output", "said"),
    [("names", "table, wide, json, yaml, name"), ("jsonpath", "write a template"), ("jsonpath={.a", "not closed")],
)
def test_an_invalid_output_is_a_usage_error(gpuward, output, said):
    refused = gpuward("get", "deployments", "-o", output)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.split())


def test_delete_tries_each_and_tells_the_refusals(gpuward, api):
    done = gpuward("delete", "chat", "missing", "code", "chat")
    assert done.exit_code == 3
    assert done.stdout == "deployment/chat is being deleted\ndeployment/code is being deleted\n"
    assert done.stderr == "gpuward: /api/v1/deployments/missing does not exist\n"
    asked = [path for method, path, _, _ in api.asked if method == "DELETE"]
    assert asked == [f"/api/v1/deployments/{name}" for name in ("chat", "missing", "code")]


def test_delete_takes_kinds_before_names(gpuward, api):
    api.add(policy("p"))
    done = gpuward("delete", "deployment/chat", "deployments/code", "policy/p", "worker/w1")
    lines = ["deployment/chat is being deleted", "deployment/code is being deleted", "policy/p deleted"]
    assert (done.exit_code, done.stdout.splitlines()) == (0, [*lines, "worker/w1 is being deleted"])
    assert gpuward("delete", "workers", "w2", "worker/w1").exit_code == 3
    assert list(api.objects["workers"]) == []


@pytest.mark.parametrize(
    "words", [("polcy", "chat"), ("gpus", "chat"), ("worker", "chat", "deployment/code"), ("gpu/x", "chat")]
)
def test_a_wrong_kind_deletes_nothing(gpuward, api, words):
    assert gpuward("delete", *words).exit_code == 2
    assert not [one for one in api.asked if one[0] == "DELETE"]


def test_a_deployment_may_be_called_nearly_as_a_kind(gpuward, api):
    api.add(deployment("workers-1"))
    assert gpuward("delete", "workers-1", "chat").exit_code == 0


def test_delete_waits_for_all_that_were_deleted(gpuward, api):
    reads = {"chat": 0, "code": 0}

    def script(kind: str, name: str) -> None:
        found = api.objects[kind].get(name)
        if found is not None and found["deleted_at"] is not None:
            reads[name] += 1
            if reads[name] == 2:
                del api.objects[kind][name]

    api.script = script
    done = gpuward("delete", "chat", "missing", "code", "--wait")
    assert (done.exit_code, done.stdout) == (3, "deployment/chat deleted\ndeployment/code deleted\n")
    assert "missing" in done.stderr
    assert reads == {"chat": 2, "code": 2}


def test_a_wait_that_times_out_tells_each_and_exits_with_4(gpuward, api):
    done = gpuward("delete", "chat", "code", "--wait", "--timeout", "100ms")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "still there: chat" in done.stderr
    assert "still there: code" in done.stderr
    assert all(api.objects["deployments"][name]["deleted_at"] for name in ("chat", "code"))


def test_what_befell_all_is_told_once(gpuward, api):
    async def refuse(_request):
        return refusal(403, "forbidden", "the key may only read")

    api.refuse = refuse
    done = gpuward("delete", "chat", "code")
    assert (done.exit_code, done.stderr) == (1, "gpuward: the key may only read\n")


def test_where_no_controller_answers_it_ends_at_once(gpuward):
    done = gpuward("delete", "chat", "code", GPUWARD_URL="http://127.0.0.1:1")
    assert done.exit_code == 1
    assert done.stderr.count("no controller answers") == 1
