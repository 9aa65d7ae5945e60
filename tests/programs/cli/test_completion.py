"""Completion: what is offered at each place, in each shell, and that it is quick and silent."""

import json
import os
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from cli.app import VERBS as TABLE
from cli.app import commands_of
from cli.completion.complete import GLOBAL, PLURALS, VERBS, offered
from cli.completion.shells import Typed, answer, typed
from cli.objects.kinds import KINDS
from support.builders.api_objects import deployment, gpu, instance, policy, worker
from support.standins.api import KEY, ApiDouble, serving

UUID = "GPU-bd020789-0000-0000-0000-000000000000"
PROGRAM = str(Path(sys.executable).with_name("gpuward"))


@pytest.fixture(scope="module")
def cluster():
    with serving(ApiDouble()) as double:
        chat = deployment("chat")
        odd = deployment("$(reboot)")
        double.add(chat, odd, deployment("code"), instance(chat), worker("w1"), worker("w2"), policy("idle"))
        double.add(gpu(UUID, "w1", 1), gpu("GPU-cafecafe-1", "w2", 0), gpu("MIG-1", "w2", 1, parent="GPU-cafecafe-1"))
        double.objects["keys"]["k-1"] = {"id": "k-1", "name": "team $x", "role": "viewer"}
        yield double


def in_bash(line: str, home: Path, **env: str) -> list[str]:
    """What bash would be offered at the end of the line; a colon and an equals sign part words, as bash does it."""
    words = line.replace(":", " : ").replace("=", " = ").split() + ([""] if line.endswith(" ") else [])
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_GPUWARD_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [PROGRAM], env={"HOME": str(home), "PATH": os.environ["PATH"], **asked, **env},
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("describe ", "deployment instance worker gpu policy chat chat-1 code idle w1 w2"),
        ("describe c", "chat chat-1 code"),
        ("describe worker ", "w1 w2"),
        ("describe worker w1 ", ""),
        ("describe gpu ", "bd020789 cafecafe MIG-1 w1:1 w2:0"),
        ("describe gpu bd", "bd020789"),
        ("describe gpu w1:", "1"),
        ("logs ", "chat chat-1 code"),
        ("logs -f cha", "chat chat-1"),
        ("logs --tail 5 cha", "chat chat-1"),
        ("stop ", "chat code"),
        ("stop chat co", "code"),
        ("stop deployment/c", "deployment/chat deployment/code"),
        ("get ", "deployments instances workers gpus policies events keys tokens"),
        ("get pol", "policies"),
        ("get policies ", "idle"),
        ("get keys ", "k-1"),
        ("get deployments -o json c", "chat code"),
        ("delete ", "deployment policy worker chat code"),
        ("delete policy ", "idle"),
        ("cordon ", "w1 w2"),
        ("cordon w1 --gpu ", "1 bd020789"),
        ("top --worker ", "w1 w2"),
        ("events --for ", "deployment/ instance/ worker/ gpu/ policy/"),
        ("events --for worker/", "worker/w1 worker/w2"),
        ("rollout undo ", "chat code"),
        ("rollout history --diff 1 2 ", "chat code"),
    ],
)
def test_live_names_are_offered(cluster, tmp_path, line, found):
    env = {"GPUWARD_URL": cluster.url, "GPUWARD_API_KEY": KEY}
    assert sorted(in_bash(f"gpuward {line}", tmp_path, **env)) == sorted(found.split())


def contexts(home: Path, url: str) -> None:
    file = home / ".config" / "gpuward" / "contexts.json"
    file.parent.mkdir(parents=True)
    kept = {"prod": {"url": url, "key": KEY}, "test": {"url": "http://127.0.0.1:1", "key": "k"}}
    file.write_text(json.dumps({"in_use": "test", "contexts": kept}))
    file.chmod(0o600)


def test_contexts_are_offered_and_the_one_of_the_line_is_asked(cluster, tmp_path):
    contexts(tmp_path, cluster.url)
    assert in_bash("gpuward --context ", tmp_path) == ["prod", "test"]
    assert in_bash("gpuward --context=p", tmp_path) == ["prod"]
    assert in_bash("gpuward context use p", tmp_path) == ["prod"]
    assert in_bash("gpuward --context prod stop ", tmp_path) == ["chat", "code"]
    assert in_bash("gpuward --context=prod stop ", tmp_path) == ["chat", "code"]
    assert in_bash(f"gpuward --url {cluster.url} --api-key {KEY} stop ", tmp_path) == ["chat", "code"]
    assert in_bash("gpuward stop ", tmp_path) == []


def test_names_are_asked_for_in_a_page_that_the_api_sends(cluster, tmp_path):
    cluster.asked.clear()
    assert in_bash("gpuward stop ", tmp_path, GPUWARD_URL=cluster.url, GPUWARD_API_KEY=KEY) == ["chat", "code"]
    assert [query["limit"] for _, _, query, _ in cluster.asked] == ["1000"]


def test_what_is_not_a_name_is_left_to_typer(tmp_path):
    assert in_bash("gpuward sto", tmp_path) == ["stop"]
    assert "--follow" in in_bash("gpuward logs --fo", tmp_path)
    assert "yaml" in in_bash("gpuward get -o ", tmp_path)


def test_without_a_controller_the_kinds_are_offered_in_silence(tmp_path):
    kinds = ["deployment", "instance", "worker", "gpu", "policy"]
    assert in_bash("gpuward describe ", tmp_path, GPUWARD_URL="http://127.0.0.1:1", GPUWARD_API_KEY="x") == kinds
    assert in_bash("gpuward stop ", tmp_path, GPUWARD_URL="nonsense", GPUWARD_API_KEY="x") == []


def test_a_silent_controller_is_left_after_a_second(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url, began = f"http://127.0.0.1:{silent.getsockname()[1]}", time.monotonic()
        found = in_bash("gpuward delete ", tmp_path, GPUWARD_URL=url, GPUWARD_API_KEY="x")
    assert found == ["deployment", "policy", "worker"]
    assert 1.0 <= time.monotonic() - began < 5


def test_other_shells_ask_and_get_it_their_way():
    zsh = {"_GPUWARD_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "gpuward describe gpu w"}
    asked = typed(zsh)
    assert asked == Typed(["describe", "gpu"], "w")
    assert answer(zsh, asked, ["w1:0", "w2"]) == ('_arguments \'*: :(("w1\\\\:0"\n"w2"))\'', 0)
    assert typed({**zsh, "_TYPER_COMPLETE_ARGS": "gpuward stop "}) == Typed(["stop"], "")
    fish = {"_GPUWARD_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "gpuward stop"}
    assert answer({**fish, "_TYPER_COMPLETE_FISH_ACTION": "is-args"}, asked, []) == ("", 1)
    assert answer({**fish, "_TYPER_COMPLETE_FISH_ACTION": "is-args"}, asked, ["a"]) == ("", 0)
    assert answer({**fish, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, asked, ["a", "b"]) == ("a\nb", 0)
    assert typed({"_GPUWARD_COMPLETE": "complete_powershell"}) is None


def command(name: str):
    modules = {verb.name: verb.module for verb in TABLE}
    first, _, second = name.partition(" ")
    found = commands_of(import_module(modules[first]).app)[first]
    return found.commands[second] if second else found


@pytest.mark.parametrize("name", VERBS)
def test_the_table_has_the_flags_and_the_options_of_the_verb(name):
    options = [one for one in command(name).params if one.opts[0].startswith("-")]
    flags = {word for one in options if one.is_flag for word in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    assert VERBS[name].flags == flags
    assert VERBS[name].pairs == {word for one in options if one.nargs == 2 for word in one.opts}
    assert set(VERBS[name].values) <= {word for one in options if not one.is_flag for word in one.opts}


def test_every_verb_that_takes_names_is_in_the_table():
    words = ("deployment", "worker", "context", "id, as", "name of a process", "kind")
    for verb in TABLE:
        whole = command(verb.name)
        for name, one in getattr(whole, "commands", {"": whole}).items():
            arguments = [p for p in one.params if not p.opts[0].startswith("-")]
            named = any(word in (p.help or "").lower() for p in arguments for word in words)
            full = f"{verb.name} {name}".strip()
            assert full in VERBS or not named or full == "context add", full


def test_the_kinds_are_those_that_there_are():
    assert {kind.singular: kind.plural for kind in KINDS} == PLURALS
    assert set(GLOBAL) == {"--url", "--api-key", "--context"}


def test_completion_of_names_imports_little():
    told = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    code = f"{told}; from cli.main import main; main()"
    env = {"_GPUWARD_COMPLETE": "complete_bash", "COMP_WORDS": "gpuward stop ", "COMP_CWORD": "2", "HOME": "/nowhere"}
    env |= {"GPUWARD_URL": "http://127.0.0.1:1", "GPUWARD_API_KEY": "x"}
    called = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    slow = {"typer", "click", "asyncio", "pydantic", "rich", "yaml", "aiohttp", "cli.objects.kinds"}
    assert slow.isdisjoint(called.stderr.split())


def test_options_are_not_taken_for_names():
    assert offered(["stop", "--nonsense"], "").wanted is None
    assert offered(["nonsense"], "").wanted is None
    assert offered([], "").wanted is None


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(gpuward, shell):
    done = gpuward("completion", shell)
    assert done.exit_code == 0
    assert f"_GPUWARD_COMPLETE=complete_{shell}" in done.stdout


def test_bash_completes_with_the_printed_script(cluster, tmp_path):
    code = (
        'source <(gpuward completion bash); COMP_WORDS=(gpuward describe gpu w1 : ""); COMP_CWORD=5;'
        ' _gpuward_completion gpuward; echo "${COMPREPLY[@]}"'
    )
    env = {"GPUWARD_URL": cluster.url, "GPUWARD_API_KEY": KEY, "HOME": str(tmp_path)}
    env["PATH"] = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
