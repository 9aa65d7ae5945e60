"""Variables that look like Gpuward's: those of every daemon are known, and a typing error is told with advice."""

import pytest

from schemas.unknown_variables import unknown_variables
from schemas.variable_names import VARIABLES


def test_all_that_some_daemon_or_the_command_line_reads_is_known() -> None:
    assert unknown_variables((name, "x") for name in VARIABLES) == {}
    assert {"GPUWARD_URL", "GPUWARD_DATABASE_URL", "GPUWARD_AGENT_LABELS", "GPUWARD_JOIN_TOKEN"} <= VARIABLES
    assert unknown_variables([("gpuward_log_level", "x"), ("PATH", "x"), ("_GPUWARD_COMPLETE", "x")]) == {}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("GPUWARD_LOGLEVEL", "did you mean GPUWARD_LOG_LEVEL?"),
        ("GPUWARD_VIEWER_READ_LOGS", "did you mean GPUWARD_VIEWERS_READ_LOGS?"),
        ("GPUWARD_AGENT_LABEL", "did you mean GPUWARD_AGENT_LABELS?"),
        ("GPUWARD_DATABASE_URI", "did you mean GPUWARD_DATABASE_URL?"),
        ("GPUWARD_XYZZY", "the page 'Settings' of the documentation lists all"),
        ("GPUWARD_", "the page 'Settings' of the documentation lists all"),
    ],
)
def test_a_typing_error_is_told_with_advice(name: str, advice: str) -> None:
    assert unknown_variables([(name, "1")]) == {name: advice}


def test_what_describes_a_service_of_this_name_is_not_ours() -> None:
    rests = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_API", "PORT_8420_TCP", "PORT_8420_TCP_ADDR")
    names = [f"GPUWARD_CONTROLLER_{rest}" for rest in rests]
    assert unknown_variables((name, "10.0.0.1") for name in names) == {}
    assert unknown_variables([("GPUWARD_CONTROLLER_PORT", "tcp://10.0.0.1:8420")]) == {}
    assert list(unknown_variables([("GPUWARD_CONTROLLER_PORT", "8420")])) == ["GPUWARD_CONTROLLER_PORT"]
