"""`apply --prune`: what the files own by labels and no longer have is deleted, and nothing else."""

import json

import pytest

from support.builders.api_objects import deployment, policy
from support.standins.api import refusal

KEPT = "kind: Deployment\nname: a\nengine: simulated\nlabels: {app: x}\n"
PRUNE = ("apply", "-f", "-", "--prune", "-l", "app=x")


@pytest.fixture(autouse=True)
def cluster(api):
    of_x = {"labels": {"app": "x"}}
    gone = {**deployment("gone", spec=of_x), "deleted_at": "2026-01-01T00:00:00Z"}
    api.add(deployment("a", spec=of_x), deployment("b", spec=of_x), deployment("other"), gone, policy("p"))


def written(api) -> list[str]:
    """Applies, as the names that they are of, and deletions."""
    found = []
    for method, path, _, body in api.asked:
        if method == "DELETE":
            found.append(f"DELETE {path.rsplit('/', 1)[1]}")
        elif path == "/api/v1/apply":
            found += [f"apply {one['name']}" for one in body["manifests"]]
    return found


def test_what_the_files_no_longer_have_is_shown_and_deleted_last(gpuward, api):
    done = gpuward(*PRUNE, "--yes", stdin=KEPT)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "deployment/b pruned"
    assert done.stderr == "will be deleted: deployment/b\n"
    assert written(api) == ["apply a", "DELETE b"]
    again = gpuward(*PRUNE, stdin=KEPT)  # nothing is left to ask about
    assert (again.exit_code, again.stderr) == (0, "")


def test_without_a_terminal_nothing_changes_until_yes(gpuward, api):
    done = gpuward(*PRUNE, stdin=KEPT)
    assert (done.exit_code, "add --yes" in done.stderr) == (2, True)
    assert written(api) == []


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        (("apply", "-f", "-", "--prune"), KEPT, "--prune needs --selector"),
        (("apply", "-f", "-", "--prune", "-l", "!app"), KEPT, "demands a label"),
        (("apply", "-f", "-", "--prune", "-l", "app!=y"), KEPT, "demands a label"),
        (("apply", "-f", "-", "-l", "app=x"), KEPT, "only of use with --prune"),
        (("diff", "-f", "-", "--prune"), KEPT, "--prune needs --selector"),
        (
            (*PRUNE, "--yes"),
            "kind: UtilizationPolicy\nname: q\nmin_gpu_utilization: 50\ntime_window: 60s\n",
            "have no deployment",
        ),
    ],
)
def test_a_prune_that_could_mean_all_is_refused(gpuward, api, words, stdin, message):
    done = gpuward(*words, stdin=stdin)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    assert written(api) == []


def test_nothing_is_deleted_where_there_is_no_manifest_or_one_is_not_valid(gpuward, api):
    for text in ("", KEPT + "---\nkind: Deployment\nname: c\nreplicass: 1\n"):
        assert gpuward(*PRUNE, "--yes", stdin=text).exit_code != 0
    assert written(api) == []


def test_nothing_is_deleted_where_a_manifest_is_refused(gpuward, api):
    refuse = api.refuse

    async def only_reads(request):
        if request.path == "/api/v1/apply":
            return refusal(409, "conflict", "no")
        return await (api._canned if request.method == "POST" else api._list)(request)

    api.refuse = only_reads
    assert gpuward(*PRUNE, "--yes", stdin=KEPT).exit_code == 1
    api.refuse = refuse
    assert written(api) == ["apply a"]


def test_one_that_was_made_anew_meanwhile_stays(gpuward, api):
    def remade(kind: str, name: str) -> None:
        if (kind, name) == ("deployments", "b"):
            api.add(deployment("b"))

    api.script = remade
    done = gpuward(*PRUNE, "--yes", stdin=KEPT)
    assert (done.exit_code, "run the command again" in done.stderr) == (1, True)
    assert written(api) == ["apply a"]


def test_diff_shows_what_would_go(gpuward, api):
    api.canned["plan"] = {"items": [], "changes": {"a": "unchanged"}}
    done = gpuward("diff", *PRUNE[1:], stdin=KEPT)
    assert (done.exit_code, done.stdout) == (1, "deployment/b: pruned\n"), done.stderr
    shown = json.loads(gpuward("diff", *PRUNE[1:], "-o", "json", stdin=KEPT).stdout)
    assert shown["pruned"] == ["b"]
    assert written(api) == []


def changed_when_read(api, change) -> None:
    """Changes deployment `b` once it has been shown, before it is read again."""

    def script(kind: str, name: str) -> None:
        if (kind, name) == ("deployments", "b"):
            change(api.objects[kind])

    api.script = script


def test_one_that_lost_the_label_meanwhile_stays(gpuward, api):
    changed_when_read(api, lambda held: held["b"].update(generation=2, spec={**held["b"]["spec"], "labels": {}}))
    done = gpuward(*PRUNE, "--yes", stdin=KEPT)
    assert (done.exit_code, "run the command again" in done.stderr) == (1, True)
    assert written(api) == ["apply a"]


def test_one_that_changes_between_the_last_look_and_the_deletion_stays(gpuward, api):
    def late(method: str, _path: str) -> None:
        if method == "DELETE":
            api.objects["deployments"]["b"]["generation"] = 2

    api.before = late
    done = gpuward(*PRUNE, "--yes", stdin=KEPT)
    assert (done.exit_code, "run the command again" in done.stderr) == (1, True)
    assert api.objects["deployments"]["b"]["deleted_at"] is None


@pytest.mark.parametrize("change", [lambda held: held.pop("b", None), lambda held: held["b"].update(deleted_at="2026")])
def test_one_that_is_gone_is_left_out_and_the_others_go_and_are_waited_for(gpuward, api, change):
    api.add(deployment("c", spec={"labels": {"app": "x"}}))
    changed_when_read(api, change)
    done = gpuward(*PRUNE, "--yes", "--wait", stdin=KEPT)
    assert done.exit_code == 0, done.stderr
    assert "deployment/b is gone already" in done.stderr
    assert "deployment/c pruned" in done.stdout
    assert written(api) == ["apply a", "DELETE c"]
    assert ("GET", "/api/v1/deployments/a") in [(method, path) for method, path, _, _ in api.asked]
