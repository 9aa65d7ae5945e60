"""What policies would stop at once: shown by plan and apply, and asked about at a terminal before anything changes."""

import signal
import subprocess
from typing import Any

import pytest

from support.standins.api import ApiDouble, refusal
from support.standins.terminal import Terminal, until

MANIFEST = "kind: UtilizationPolicy\nname: p\nmin_gpu_utilization: 50\ntime_window: 1m\n"


def stop(name: str, action: str = "stop", **fields: Any) -> dict[str, Any]:
    given = {"deployment": name, "policy": "p", "action": action, "stops": 2, "replicas": 0, "message": f"of {name}"}
    return {**given, **fields}


STOPS = {"stop": 2, "items": [stop("a"), stop("b")]}
ALL = {
    "stop": 112, "scale_down": 1, "unknown": 1,
    "items": [
        *(stop(f"s{n}") for n in range(100)), stop("big", "scale_down", replicas=1),
        stop("u", "unknown", stops=0, replicas=None),
    ],
}  # fmt: skip


def applied(api: ApiDouble) -> bool:
    return "p" in api.objects["policies"]


@pytest.fixture
def manifest(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(MANIFEST)
    return str(file)


@pytest.mark.parametrize(("answer", "code"), [("y\r", 0), ("n\r", 1), ("\r", 1)])
def test_at_a_terminal_it_is_asked_about(api, manifest, answer, code):
    api.canned["policies"] = STOPS
    with Terminal(api, "apply", "-f", manifest, columns=100, lines=10) as terminal:
        until(lambda: "[y/N]" in terminal.text())
        assert "2 deployments would stop: a, b" in terminal.text()
        assert not applied(api)
        terminal.type(answer)
        assert terminal.end() == code
    assert applied(api) == (code == 0)


@pytest.mark.parametrize(
    ("words", "stops"),
    [(("--yes",), STOPS), ((), {}), ((), {"unknown": 1, "items": [stop("u", "unknown", stops=0, replicas=None)]})],
)
def test_at_a_terminal_it_is_not_asked_about_with_yes_or_where_nothing_stops(api, manifest, words, stops):
    api.canned["policies"] = stops
    with Terminal(api, "apply", "-f", manifest, *words, columns=100, lines=10) as terminal:
        assert terminal.end() == 0
        assert "[y/N]" not in terminal.text()
        assert ("a, b" in terminal.text()) == (stops is STOPS)
    assert applied(api)


def test_ctrl_c_ends_the_question_also_where_the_verb_waits(api, manifest):
    api.canned["policies"] = STOPS
    with Terminal(api, "apply", "-f", manifest, "--wait", columns=100, lines=10) as terminal:
        until(lambda: "[y/N]" in terminal.text())
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() != 0
    assert not applied(api)


def test_nothing_is_asked_where_the_question_would_not_be_seen(api, manifest):
    api.canned["policies"] = STOPS
    with Terminal(api, "apply", "-f", manifest, columns=100, lines=10, stderr=subprocess.PIPE) as terminal:
        assert terminal.end() == 0
        assert terminal.process.stderr.read() == b"2 deployments would stop: a, b\n"
        terminal.process.stderr.close()
    assert applied(api)


def test_a_manifest_typed_at_the_terminal_is_read_before_the_question(api):
    api.canned["policies"] = STOPS
    with Terminal(api, "apply", "-f", "-", columns=100, lines=10) as terminal:
        terminal.type(MANIFEST + "\x04")
        until(lambda: "[y/N]" in terminal.text())
        terminal.type("y\r")
        assert terminal.end() == 0
    assert applied(api)


def test_without_a_terminal_it_is_printed_and_applied(gpuward, api):
    api.canned["policies"] = STOPS
    done = gpuward("apply", "-f", "-", stdin=MANIFEST)
    assert (done.exit_code, done.stdout) == (0, "policy/p created\n")
    assert done.stderr == "2 deployments would stop: a, b\n"
    assert api.bodies("POST", "/api/v1/plan/policies") == api.bodies("POST", "/api/v1/apply")


def test_plan_shows_the_first_names_the_others_number_and_why(gpuward, api):
    api.canned["plan"] = {"items": [], "policy_changes": {"p": "create"}, "policy_stops": ALL}
    done = gpuward("plan", "-f", "-", stdin=MANIFEST)
    lines = done.stdout.splitlines()
    (first,) = [line for line in lines if line.startswith("112 deployments would stop")]
    assert first.endswith("s0, s1, s2, s3, s4, s5, s6, s7, s8, s9 and 102 more")
    assert "  s0: of s0" in lines
    assert "1 deployment would be scaled down: big (2 of 3 replicas)" in lines
    assert "unknown whether 1 deployment would stop: u" in lines
    assert '"scale_down": 1' in gpuward("plan", "-f", "-", "-o", "json", stdin=MANIFEST).stdout


@pytest.mark.parametrize(
    ("status", "code", "warns"),
    [(404, "not_found", False), (400, "invalid", False), (403, "forbidden", False), (503, "overloaded", True)],
)
def test_an_apply_goes_on_where_it_cannot_be_found_out(gpuward, api, status, code, warns):
    async def refuse(request):
        if request.path.endswith("/plan/policies"):
            return refusal(status, code, "unknown path /api/v1/plan/policies" if status == 404 else "no")
        return await api._apply(request)

    api.refuse = refuse
    done = gpuward("apply", "-f", "-", stdin=MANIFEST)
    assert (done.exit_code, done.stdout) == (0, "policy/p created\n")
    assert ("is unknown" in done.stderr) == warns
    assert applied(api)


def test_the_plan_of_an_older_controller_shows_nothing_of_it(gpuward, api):
    api.canned["plan"] = {"items": [], "policy_changes": {"p": "create"}}
    assert "would stop" not in gpuward("plan", "-f", "-", stdin=MANIFEST).stdout
