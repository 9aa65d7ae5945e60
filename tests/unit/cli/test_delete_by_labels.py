"""`delete -l`, and names of GPUs as they are printed in verbs that change something."""

import pytest

from cli.terminal import confirm
from support.builders.api_objects import deployment, gpu, now_text, worker

A, B, SLICE = (f"GPU-{one}-0000-0000-0000-000000000000" for one in ("bd020789", "bd02ffff", "cafecafe"))


@pytest.fixture
def labelled(api):
    of_x = {"labels": {"app": "x"}}
    leaving = {**deployment("leaving", spec=of_x), "deleted_at": now_text()}
    api.add(deployment("a", spec=of_x), deployment("b", spec=of_x), deployment("c"), leaving, worker("w1"))
    return api


def deleted(api) -> list[str]:
    return [path for method, path, _, _ in api.asked if method == "DELETE"]


def test_with_yes_those_with_the_labels_are_shown_and_deleted(gpuward, labelled):
    done = gpuward("delete", "-l", "app=x", "--yes")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == "will be deleted: deployment/a\nwill be deleted: deployment/b\n"
    assert deleted(labelled) == ["/api/v1/deployments/a", "/api/v1/deployments/b"]


def test_without_a_terminal_yes_is_needed(gpuward, labelled):
    done = gpuward("delete", "-l", "app=x")
    assert (done.exit_code, "add --yes" in done.stderr) == (2, True)
    assert deleted(labelled) == []


@pytest.mark.parametrize(("answer", "code", "count"), [("y\n", 0, 2), ("n\n", 1, 0), ("\n", 1, 0)])
def test_a_terminal_is_asked(gpuward, labelled, monkeypatch, answer, code, count):
    monkeypatch.setattr(confirm, "_has_terminal", lambda: True)
    assert gpuward("delete", "deployment", "-l", "app=x", stdin=answer).exit_code == code
    assert len(deleted(labelled)) == count


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "write the names of what to delete, or its labels"),
        (("a", "-l", "app=x", "--yes"), 2, "exclude each other"),
        (("deployment", "a", "-l", "app=x", "--yes"), 2, "exclude each other"),
        (("policy", "-l", "app=x", "--yes"), 2, "policies have no labels"),
        (("-l", "app=none", "--yes"), 3, "no deployment has the labels app=none"),
        (("-l", "a b", "--yes"), 2, "not a valid label selector"),
    ],
)
def test_what_is_not_clear_deletes_nothing(gpuward, labelled, words, code, message):
    done = gpuward("delete", *words)
    assert (done.exit_code, message in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert deleted(labelled) == []


@pytest.mark.parametrize("verb", ["cordon", "uncordon"])
@pytest.mark.parametrize(
    ("name", "uuid"), [(A, A), ("bd020789", A), ("1", B), ("w1:1", B), ("cafecafe", SLICE), ("bd02", None), ("7", None)]
)
def test_a_gpu_is_cordoned_by_the_names_that_are_printed(gpuward, api, verb, name, uuid):
    api.add(worker("w1"), gpu(A, "w1", 0), gpu(B, "w1", 1), gpu(SLICE, "w1", 7, parent=A))
    done = gpuward(verb, "w1", "--gpu", name)
    asked = [path for method, path, _, _ in api.asked if method == "POST"]
    assert asked == ([f"/api/v1/gpus/{uuid}/{verb}"] if uuid else [])
    assert done.exit_code == (0 if uuid else 3), done.stderr


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda held: held["a"].update(generation=2), 1, "deployment 'a' was changed meanwhile"),
        (lambda held: held.update(a=deployment("a", spec={"labels": {"app": "x"}})), 1, "was changed meanwhile"),
        (lambda held: held.pop("a"), 0, "deployment/a is gone already"),
        (lambda held: held["a"].update(deleted_at=now_text()), 0, "deployment/a is gone already"),
    ],
)
def test_only_what_was_shown_is_deleted(gpuward, labelled, monkeypatch, change, code, message):
    def ask(*_names, **_how) -> None:
        change(labelled.objects["deployments"])  # while the question stands

    monkeypatch.setattr("cli.verbs.delete.confirm_deletion", ask)
    done = gpuward("delete", "-l", "app=x")
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert deleted(labelled) == ["/api/v1/deployments/b"]


def test_what_changes_at_the_last_moment_is_not_deleted(gpuward, labelled):
    """The API compares the generation, too."""

    def late(method: str, _path: str) -> None:
        if method == "DELETE":
            labelled.objects["deployments"]["a"]["generation"] = 7

    labelled.before = late
    done = gpuward("delete", "-l", "app=x", "--yes")
    assert (done.exit_code, "'a' was changed meanwhile" in done.stderr) == (1, True)
    assert labelled.objects["deployments"]["a"]["deleted_at"] is None


def test_a_worker_is_deleted_by_its_labels(gpuward, api):
    api.add(worker("w1", labels={"zone": "a"}), worker("w2"))
    assert gpuward("delete", "worker", "-l", "zone=a", "--yes").exit_code == 0
    assert deleted(api) == ["/api/v1/workers/w1"]
