"""`gpuward run`: a deployment from a model, and a chat with it."""

import os
import signal
import subprocess
import sys
import termios
import time

import pytest

from cli.errors import CliError
from cli.transport.chat import part_of
from cli.verbs.run import name_of
from support.builders.api_objects import deployment, now_text
from support.standins.api import KEY, ApiDouble
from support.standins.chat_terminal import ChatTerminal
from support.standins.terminal import until

MODEL = "hf:Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (MODEL, "qwen3-0-6b"),
        ("hf:Qwen/Qwen3-0.6B@main", "qwen3-0-6b"),
        ("path:/models/Llama_3/", "llama-3"),
        ("gguf:/m/tiny.Q4_K.gguf", "tiny-q4-k"),
        ("hf:a/" + "x" * 70, "x" * 63),
        ("hf:a/" + "x" * 62 + "--y", "x" * 62),
    ],
)
def test_a_model_gives_its_deployment_a_name(model: str, name: str) -> None:
    assert name_of(model) == name


@pytest.fixture
def runs(api: ApiDouble) -> ApiDouble:
    """Deployments run once they are read a second time."""
    reads: dict[str, int] = {}

    def script(kind: str, name: str) -> None:
        reads[name] = reads.get(name, 0) + 1
        if kind == "deployments" and name in api.objects[kind] and reads[name] > 2:
            api.objects[kind][name]["status"].update(phase="running", observed_generation=1)

    api.script = script
    return api


def test_a_prompt_is_answered_and_rm_deletes(gpuward, runs):
    done = gpuward("run", MODEL, "hello", "--rm", "--gpus", "1", "--arg", "max-model-len=8192")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "1 messages, the last one: hello\n"
    spec = runs.bodies("PUT", "/api/v1/deployments/qwen3-0-6b")[0]
    assert spec == {"model": MODEL, "engine": "auto", "args": {"max-model-len": "8192"}, "resources": {"gpus": 1}}
    assert runs.objects["deployments"]["qwen3-0-6b"]["deleted_at"]
    assert done.stderr.splitlines()[-1] == "deployment/qwen3-0-6b deleted"


def test_stdin_is_the_prompt_without_a_terminal_and_the_deployment_stays(gpuward, runs):
    done = gpuward("run", MODEL, "--name", "q", stdin="from a pipe\n")
    assert done.stdout == "1 messages, the last one: from a pipe\n"
    assert runs.objects["deployments"]["q"].get("deleted_at") is None


def test_one_that_exists_is_used_as_it_is_and_rm_leaves_it(gpuward, runs):
    runs.add(deployment("q", "running", spec={"model": MODEL}))
    done = gpuward("run", MODEL, "hello", "--name", "q", "--rm")
    assert done.exit_code == 0, done.stderr
    assert runs.bodies("PUT", "/api/v1/deployments/q") == []
    assert runs.objects["deployments"]["q"].get("deleted_at") is None


def test_one_that_is_being_deleted_is_not_used(gpuward, runs):
    runs.add({**deployment("q", "deleting", spec={"model": "hf:a/other"}), "deleted_at": now_text()})
    gpuward("run", MODEL, "hello", "--name", "q", "--timeout", "0.2s")
    assert len(runs.bodies("PUT", "/api/v1/deployments/q")) == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((MODEL, "--name", "other"), 1, "deployment 'other' exists, with the model hf:a/b; write another --name"),
        ((MODEL, "--gpu-memory", "much"), 2, "resources.gpu_memory: "),
        ((MODEL, "--name", "NO"), 2, "name: "),
        (("nonsense",), 2, "model: "),
        ((MODEL, "--arg", "x"), 2, "is not KEY=VALUE"),
        (("hf:a/--",), 2, "no name can be made"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(gpuward, runs, words, code, message):
    runs.add(deployment("other", spec={"model": "hf:a/b"}))
    done = gpuward("run", *words, stdin="")
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert not [one for one in runs.asked if one[0] == "PUT"]


def test_rm_deletes_what_never_ran(gpuward, api):
    done = gpuward("run", MODEL, "x", "--rm", "--timeout", "0.2s")
    assert done.exit_code == 4
    assert api.objects["deployments"]["qwen3-0-6b"]["deleted_at"]


@pytest.mark.usefixtures("runs")
def test_an_answer_that_breaks_off_is_an_error(gpuward):
    done = gpuward("run", MODEL, "break")
    assert done.exit_code == 1
    assert "the answer broke off" in done.stderr


@pytest.mark.parametrize(
    ("event", "part"),
    [
        (b'{"choices": [{"delta": {"content": "a"}}]}', "a"),
        (b'{"choices": [{"delta": {"content": null}}]}', ""),
        (b'{"choices": [{"delta": {"role": "assistant"}}]}', ""),
        (b'{"choices": [], "usage": {"total_tokens": 3}}', ""),
    ],
)
def test_an_event_has_a_part_or_none(event: bytes, part: str) -> None:
    assert part_of(event) == part


@pytest.mark.parametrize("event", [b"[]", b"x", b'{"error": {"message": "no"}}', b'{"error": "no"}'])
def test_an_error_within_an_answer_is_told(event: bytes) -> None:
    with pytest.raises(CliError, match="no"):
        part_of(event)


def test_a_chat_on_a_terminal(api: ApiDouble) -> None:
    api.add(deployment("q", "running", spec={"model": MODEL}))
    with ChatTerminal("--url", api.url, "--api-key", KEY, "run", MODEL, "--name", "q") as terminal:
        terminal.until(">>> ")
        terminal.type("hello\n")
        terminal.until("1 messages, the last one: hello")
        terminal.until(">>> ")
        terminal.type("endless\n")
        terminal.until("3 messages, the last one: endless more more")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(">>> ")
        end = time.monotonic() + 10  # it ends at the server while the chat goes on
        while not api.chats_cut and time.monotonic() < end:
            time.sleep(0.02)
        assert api.chats_cut == 1
        terminal.type("again\n")
        terminal.until("5 messages, the last one: again")
        terminal.until(">>> ")
        terminal.type("break\n")
        terminal.until("the answer broke off")
        terminal.until(">>> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_what_is_typed_is_asked_as_it_is(api: ApiDouble, monkeypatch: pytest.MonkeyPatch, locale: str) -> None:
    """Bytes that are no text are replaced, and Tab completes no name of a file."""
    api.add(deployment("q", "running", spec={"model": MODEL}))
    monkeypatch.setenv("LC_ALL", locale)
    with ChatTerminal("--url", api.url, "--api-key", KEY, "run", MODEL, "--name", "q") as terminal:
        terminal.until(">>> ")
        os.write(terminal.main, b"a\xffb /et\tc\n")
        terminal.until("1 messages, the last one: ")
        terminal.until(">>> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    (asked,) = api.bodies("POST", "/v1/chat/completions")
    assert asked["messages"][-1]["content"] == "a\ufffdb /et\tc"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(api: ApiDouble, number: int) -> None:
    api.add(deployment("q", "running", spec={"model": MODEL}))
    with ChatTerminal("--url", api.url, "--api-key", KEY, "run", MODEL, "--name", "q") as terminal:
        before = termios.tcgetattr(terminal.main)
        terminal.until(">>> ")
        until(lambda: termios.tcgetattr(terminal.main) != before)
        assert ended_by(terminal.process, number) == 128 + number
        assert termios.tcgetattr(terminal.main) == before


def ended_by(process: subprocess.Popen[bytes], number: int) -> int:
    """Its exit code. What comes just before CPython waits for a key, it hears with the next signal or key."""
    for _ in range(30):
        process.send_signal(number)
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("it has not ended")


def test_bytes_on_stdin_that_are_no_text_are_replaced(api: ApiDouble) -> None:
    api.add(deployment("q", "running", spec={"model": MODEL}))
    words = ("--url", api.url, "--api-key", KEY, "run", MODEL, "--name", "q")
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], input=b"a\xffb", capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert api.bodies("POST", "/v1/chat/completions")[0]["messages"][-1]["content"] == "a\ufffdb"


def test_rm_deletes_no_other_deployment_of_the_name(gpuward, runs):
    other = deployment("q", "running", spec={"model": MODEL})

    before = runs.script

    def remade(kind: str, name: str) -> None:
        before(kind, name)
        if any(path == "/v1/chat/completions" for _, path, _, _ in runs.asked):
            runs.add(other)

    runs.script = remade
    done = gpuward("run", MODEL, "hello", "--name", "q", "--rm")
    assert done.exit_code == 0, done.stderr
    assert [one for one in runs.asked if one[0] == "DELETE"] == []
    assert other["deleted_at"] is None
    assert "was deleted already, not by this call" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_rm_deletes_where_a_signal_ends_the_call(runs, number):
    words = ("--url", runs.url, "--api-key", KEY, "run", MODEL, "endless", "--name", "q", "--rm")
    code = f"import signal; signal.signal({int(number)}, signal.SIG_DFL); from cli.main import main; main()"
    called = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert called.stdout is not None
        assert called.stdout.read(1)  # the answer has begun
        called.send_signal(number)
        said = called.communicate(timeout=30)[1]
    finally:
        called.kill()
        called.communicate()
    assert called.returncode == 128 + number
    assert runs.objects["deployments"]["q"]["deleted_at"], said


def test_rm_leaves_one_that_another_call_has_made_meanwhile(gpuward, api):
    def late(method: str, _path: str) -> None:
        if method == "PUT":
            api.add(deployment("q", observed_generation=2, spec={"model": MODEL}))

    api.before = late
    done = gpuward("run", MODEL, "hello", "--name", "q", "--rm", "--timeout", "20s")
    assert done.exit_code == 0, done.stderr
    assert api.objects["deployments"]["q"]["deleted_at"] is None
    assert "created" not in done.stderr
