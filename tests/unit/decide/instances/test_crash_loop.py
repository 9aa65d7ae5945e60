"""What an instance does after an exit or a refused start."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.domain.access.redaction import quote
from controller.domain.access.secret_scopes import SECRET_REFUSALS
from controller.domain.instances import EndedStart
from support.builders.facts import NOW, host, instance, process, spec, start
from support.decisions import effects_of, phases_of


@pytest.mark.parametrize(
    ("restart", "reason", "code", "expected", "failures", "released"),
    [
        ("always", "exit", 0, "backoff", 1, False),
        ("always", "exit", 1, "backoff", 1, False),
        ("always", "liveness", None, "backoff", 1, False),
        ("always", "agent_stopped", 0, "backoff", None, False),
        ("always", "gone", None, "backoff", None, False),
        ("on_failure", "exit", 0, "succeeded", None, True),
        ("on_failure", "exit", 3, "backoff", 1, False),
        ("never", "exit", 0, "succeeded", None, True),
        ("never", "exit", 3, "failed", 1, True),
        ("never", "gone", None, "failed", 1, True),  # an unknown end does not count as success
        ("never", "agent_stopped", 0, "failed", 1, True),
    ],
)
def test_after_an_exit(restart, reason, code, expected, failures, released) -> None:
    effects = effects_of(
        instance("a", "running", processes=(process("exited", reason, code),)), spec=spec(restart=restart)
    )
    assert phases_of(effects) == [expected]
    assert effects.phase_changes[0].failures == failures
    assert bool(effects.releases) == released


@pytest.mark.parametrize(("message", "reason"), [
    ("oom_killed: the kernel killed it", "oom_killed"), ("other: text", "crash"), ("", "crash"),
])  # fmt: skip
def test_an_exit_has_the_reason_that_its_message_begins_with(message, reason) -> None:
    ended = replace(process("exited", "exit", -9), message=message)
    effects = effects_of(instance("a", "running", processes=(ended,)), spec=spec(restart="always"))
    (change,) = effects.phase_changes
    assert change.reason == reason
    assert message in change.message
    (event,) = [one for one in effects.events if one.reason == "backoff"]
    assert event.evidence["reason"] == reason


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 10), (1, 20), (2, 40), (4, 160), (5, 300), (20, 300)])
def test_the_delay_doubles_up_to_five_minutes(failures, wait_s) -> None:
    effects = effects_of(instance("a", "running", failures=failures, processes=(process("exited", "exit", 1),)))
    assert effects.phase_changes[0].not_before == NOW + timedelta(seconds=wait_s)
    assert effects.requeue_after_s == wait_s


@pytest.mark.parametrize("restart", ["always", "on_failure"])
@pytest.mark.parametrize("earlier", [0, 4, 31])
@pytest.mark.parametrize("orderly", [True, False], ids=["after orderly ends", "after others"])
def test_a_stop_together_with_its_agent_neither_counts_nor_delays(restart, earlier, orderly) -> None:
    runs = tuple(EndedStart(NOW, NOW, orderly) for _ in range(earlier))
    ended = process("exited", "agent_stopped", -15)
    one = instance("a", "running", processes=(ended,), runs=(EndedStart(NOW, NOW, orderly=True), *runs))
    effects = effects_of(one, spec=spec(restart=restart))
    (change,) = effects.phase_changes
    assert (change.to, change.reason, change.failures, change.not_before) == ("backoff", "agent_stopped", None, NOW)


def test_orderly_ends_do_not_count_among_others() -> None:
    runs = tuple(EndedStart(NOW, NOW, orderly=n % 4 != 0) for n in range(12))
    ended = process("exited", "gone")
    (change,) = effects_of(instance("a", "running", processes=(ended,), runs=runs)).phase_changes
    assert (change.reason, change.not_before) == ("gone", NOW)


def test_ends_that_repeat_through_no_fault_of_the_instance_say_so() -> None:
    runs = tuple(EndedStart(NOW - timedelta(seconds=n), NOW - timedelta(seconds=n)) for n in range(1, 6))
    ended = replace(process("exited", "disconnected", 1), message="as told")
    effects = effects_of(instance("a", "running", processes=(ended,), runs=runs), spec=spec(restart="on_failure"))
    (change,) = effects.phase_changes
    assert (change.to, change.reason, change.failures, change.restarts) == ("backoff", "ended_repeatedly", None, 1)
    assert change.message.startswith("was stopped by its agent, which had lost the controller: as told; ")
    assert change.message.endswith("end 5 in a row without a stable run; restarts in 20 s")
    (event,) = effects.events
    assert (event.reason, event.evidence["ends"], event.evidence["wait_s"]) == ("ended", 5, 20)
    assert effects.status is not None
    assert (effects.status.phase, effects.status.reason) == ("degraded", "ended_repeatedly")


def test_on_failure_fails_after_its_retries() -> None:
    tired = instance("a", "running", failures=6, processes=(process("exited", "exit", 1),))
    assert phases_of(effects_of(tired, spec=spec(restart="on_failure"))) == ["failed"]
    assert phases_of(effects_of(tired, spec=spec(restart="always"))) == ["backoff"]


USAGE = "vllm serve: error: unrecognized arguments: --max-modle-len 9"


@pytest.mark.parametrize(
    ("phase", "failures", "message", "expected"),
    [
        ("starting", 0, USAGE, "backoff"),
        ("starting", 1, USAGE, "failed"),  # the same list again
        ("starting", 5, "KeyError: 'rope'", "backoff"),
        ("running", 1, USAGE, "backoff"),  # it has served with these arguments
    ],
)
def test_arguments_that_are_refused_twice_end_the_crash_loop(phase, failures, message, expected) -> None:
    quoted = quote(message, message)
    ended = replace(process("exited", "exit", 2), message=quoted)
    effects = effects_of(instance("a", phase, failures=failures, processes=(ended,)))
    assert phases_of(effects) == [expected]
    (change,) = effects.phase_changes
    assert change.reason == ("engine_usage" if message is USAGE else "crash")
    assert change.message.startswith(f"exited with code 2: {quoted}")
    assert bool(effects.releases) == (expected == "failed")


@pytest.mark.parametrize(
    ("code", "message", "reason", "text"),
    [
        (0, "", "exit", "ended unexpectedly, with exit code 0;"),
        (None, "", "exit", "exited, exit code unknown;"),
        (1, "OSError: [Errno 98] Address already in use", "port_taken", "exited with code 1: OSError:"),
        (-9, "oom_killed: the kernel killed it, since memory ran out", "oom_killed", "was killed by"),
        (-11, "", "crash", "was killed by signal 11;"),
    ],
)
def test_a_server_that_ends_says_why(code, message, reason, text) -> None:
    ended = replace(process("exited", "exit", code), message=message)
    (change,) = effects_of(instance("a", "running", processes=(ended,))).phase_changes
    assert change.reason == reason
    assert change.message.startswith(text)


@pytest.mark.parametrize(
    ("failures", "home", "restarts", "expected"),
    [
        (1, host(), 1, []),
        (2, host(), 1, []),
        (3, host(), 0, ["pending"]),  # the third failure there: elsewhere
        (4, host(), 1, []),
        (0, host(draining=True), 0, []),  # drained: let go of, not restarted
        (0, host(phase="joining"), 0, ["pending"]),
    ],
)
def test_the_end_of_a_backoff(failures, home, restarts, expected) -> None:
    one = instance(
        "a",
        "backoff",
        failures=failures,
        not_before=NOW - timedelta(seconds=1),
        processes=(process("exited", "exit", 1),),
    )
    effects = effects_of(one, hosts=(home,))
    assert len(effects.restarts) == restarts
    assert phases_of(effects) == expected
    assert bool(effects.releases) == (not restarts)


def test_a_backoff_lasts_its_delay() -> None:
    one = instance("a", "backoff", not_before=NOW + timedelta(seconds=7), processes=(process("exited", "exit", 1),))
    effects = effects_of(one)
    assert (phases_of(effects), effects.restarts, effects.requeue_after_s) == ([], [], 7)


def test_after_a_backoff_an_unhealthy_gpu_is_left() -> None:
    one = instance("a", "backoff", not_before=NOW, processes=(process("exited", "exit", 1),))
    sick = replace(one.claims[0], healthy=False)
    one = instance("a", "backoff", not_before=NOW, processes=one.processes, claims=(sick, one.claims[1]))
    assert phases_of(effects_of(one)) == ["pending"]


def test_a_refused_start_is_placed_again_after_a_delay() -> None:
    effects = effects_of(instance("a", "scheduled", commands=(start("refused", code="claim_conflict"),)))
    assert phases_of(effects) == ["pending"]
    assert effects.releases
    assert effects.phase_changes[0].reason == "claim_conflict"
    assert effects.phase_changes[0].not_before == NOW + timedelta(seconds=10)


@pytest.mark.parametrize(("phase", "to"), [("scheduled", "pending"), ("starting", "backoff")])
@pytest.mark.parametrize("failures", [0, 5])
def test_a_refusal_by_an_agent_that_shuts_down_has_no_back_off(phase, to, failures) -> None:
    refused = start("refused", code="shutting_down")
    (change,) = effects_of(instance("a", phase, failures=failures, commands=(refused,))).phase_changes
    assert (change.to, change.reason, change.failures, change.not_before) == (to, "shutting_down", None, None)


@pytest.mark.parametrize("code", SECRET_REFUSALS)
def test_a_start_that_lacked_a_secret_is_tried_again_at_once_when_the_secret_changes(code) -> None:
    refused = start("refused", code=code)
    changed = effects_of(instance("a", "scheduled", commands=(refused,), mended=True))
    assert (changed.phase_changes[0].to, changed.phase_changes[0].not_before) == ("pending", NOW)
    waits = effects_of(instance("a", "scheduled", commands=(refused,)))
    assert waits.phase_changes[0].not_before > NOW + timedelta(seconds=10)
    assert [change.failures for change in (*changed.phase_changes, *waits.phase_changes)] == [None, None]


def test_running_long_enough_resets_the_failure_count() -> None:
    fresh = instance("a", "running", age_s=299, failures=2, processes=(process("running"),))
    assert effects_of(fresh).forget_failures == []
    assert effects_of(fresh).requeue_after_s == 1
    stable = instance("a", "running", age_s=300, failures=2, processes=(process("running"),))
    assert effects_of(stable).forget_failures == ["a"]


@pytest.mark.parametrize(
    ("reason", "phases", "released"), [("engine_missing", ["pending"], True), ("spawn_failed", [], False)]
)
def test_after_a_missing_program_it_is_placed_again(reason: str, phases: list[str], released: bool) -> None:
    """Its agent withdraws the engine, so `auto` goes on to the next one, or to another worker."""
    missing = process("exited", "spawn_failed", None)
    missing = replace(missing, message=f"{reason}: no program 'vllm'; install it: pip install vllm")
    ended = effects_of(instance("a", "starting", processes=(missing,)))
    assert [(change.reason, "pip install vllm" in change.message) for change in ended.phase_changes] == [(reason, True)]
    waited = instance("a", "backoff", failures=1, processes=(missing,))
    effects = effects_of(replace(waited, reason=reason, not_before=NOW - timedelta(seconds=1)), hosts=(host(),))
    assert phases_of(effects) == phases
    assert bool(effects.releases) == released
    assert bool(effects.restarts) != released


@pytest.mark.parametrize(
    ("restart", "code", "reason"), [("always", 1, "backoff"), ("never", 1, "failed"), ("never", 0, "succeeded")]
)
def test_an_exit_is_an_event_with_its_evidence(restart: str, code: int, reason: str) -> None:
    one = instance("a", "running", processes=(process("exited", "exit", code),))
    (event,) = effects_of(one, spec=spec(restart=restart)).events
    assert (event.reason, event.objects) == (reason, ("instance:a", "worker:w1"))
    assert (event.evidence["exit_code"], event.evidence["epoch"]) == (code, 1)
