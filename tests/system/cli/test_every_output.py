"""Each verb that prints objects prints them in each of its formats, while there is an object of every kind."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from cli.app import VERBS, app, imported
from cli.objects.kinds import KINDS
from schemas.api.usage import UsageReport
from schemas.api.view import from_plain
from support.processes.cluster import Cluster
from support.processes.served_models import CHAT, USER, bearer, listed, make_key, serve

KINDS_OF_GET = ("deployments", "instances", "workers", "gpus", "policies", "events", "keys", "tokens")
OF_LISTS = ("table", "wide", "json", "yaml", "name", "jsonpath={.items}")
OF_REPORTS = ("table", "json", "yaml", "csv")
# What follows each verb; several calls where what it prints depends on its words.
CALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "gateway list": ((),),
    "diff": (("-f", "MANIFEST"),),
    "plan": (("-f", "MANIFEST"),),
    "rollout history": (("chat",),),
    "defrag": ((),),
    "get": tuple((kind,) for kind in KINDS_OF_GET),
    "ps": ((), ("chat",)),
    "pending": ((),),
    "models": ((), ("chat",)),
    "describe": (
        *(("deployment", "chat"), ("deployment", "big"), ("worker", "gpu-1"), ("policy", "idle")),
        *(("instance", "INSTANCE"), ("gpu", "GPU")),
    ),
    "report idle": ((),),
    "usage": ((),),
    "events": ((),),
    "cache list": (("gpu-1",),),
    "cache prune": (("gpu-1",),),
    "context list": ((),),
    "context show": (("here",),),
    "join-token list": ((),),
    "key list": ((),),
    "secret list": ((),),
    "audit": ((),),
    "audit-log": ((),),
    "audit-log verify": ((),),
    "doctor": ((),),
}


def printing_verbs() -> Iterator[tuple[str, Any]]:
    """Each verb with `--output`, and that option."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name in getattr(command, "commands", None) or ():
            yield from walk(command.commands[name], (*words, name))
        for option in command.params:
            if "--output" in option.opts:
                yield " ".join(words), option

    for verb in VERBS:
        yield from walk(imported(verb.name), (verb.name,))


def formats_of(option: Any) -> tuple[str, ...]:
    return tuple(getattr(option.type, "choices", None) or OF_LISTS)


def test_no_verb_is_left_out() -> None:
    assert {verb for verb, _ in printing_verbs()} == set(CALLS)
    assert {kind.plural for kind in KINDS} == set(KINDS_OF_GET), "`get` lists another kind: add it"


@pytest.fixture
async def filled(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """A cluster with an object of every kind; the words that stand for those whose names are not known before."""
    await serve(cluster, chat={"serving": {"aliases": ["gpt"]}})
    await cluster.session.put("/api/v1/secrets/hf", json={"value": "abcdefgh"})
    await cluster.session.put(
        "/api/v1/policies/idle",
        json={"kind": "UtilizationPolicy", "name": "idle", "min_gpu_utilization": 10, "time_window": "1m"},
    )
    await cluster.apply("big", resources={"gpus": 512})
    await cluster.post("/tokens", {})
    key = await make_key(cluster)
    await listed(cluster, "chat")
    async with cluster.session.post(CHAT, json={"model": "chat", "messages": USER}, headers=bearer(key)) as answer:
        assert answer.status == 200

    async def counted() -> bool:
        return bool(from_plain(UsageReport, await cluster.get("/usage?since=1h")).items)

    await cluster.until(counted, "the request is counted")
    (instance,) = await cluster.instances("chat")
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text("kind: Deployment\nname: chat\nengine: simulated\nreplicas: 2\nresources: {gpus: 0}\n")
    gpu = (await cluster.get("/gpus"))["items"][0]["name"]
    return {"INSTANCE": instance["name"], "GPU": gpu, "MANIFEST": str(manifest)}


@pytest.fixture
def call(filled: dict[str, str], cluster: Cluster, tmp_path: Path) -> Callable[..., Result]:  # noqa: ARG001 - an order
    """Calls the command line with the administrator's key, in a home of its own."""
    lines = (cluster.data_dir / "client.env").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines)
    env = {
        **{name: values[name] for name in ("GPUWARD_URL", "GPUWARD_API_KEY")},
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path),
    }

    def run(*words: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, words, input=stdin, env=env)

    added = run("context", "add", "here", "--url", cluster.url, stdin=values["GPUWARD_API_KEY"])
    assert added.exit_code == 0
    return run


async def test_names_of_gpus_in_tables_are_arguments(call: Callable[..., Result], cluster: Cluster) -> None:
    uuids = {gpu["name"] for gpu in (await cluster.get("/gpus"))["items"]}

    def check() -> None:
        named = {}
        for line in call("get", "gpus").stdout.splitlines()[1:]:
            name = line.split()[0]
            named[name] = json.loads(call("describe", "gpu", name, "-o", "json").stdout)["name"]
        assert set(named.values()) == uuids
        assert uuids.isdisjoint(named)
        for instance in json.loads(call("get", "instances", "-o", "json").stdout)["items"]:
            shown = call("get", "instance", instance["name"]).stdout
            assert all(uuid not in shown for uuid in uuids)
            assert all(
                any(named[name] == uuid for name in named if name in shown) for uuid in instance["status"]["gpus"][:2]
            )
        assert call("get", "gpus", "-o", "name").stdout.split() == [f"gpu/{named[name]}" for name in named]

    await asyncio.to_thread(check)


async def test_each_verb_prints_in_each_format(filled: dict[str, str], call: Callable[..., Result]) -> None:
    wrong = []
    for verb, option in printing_verbs():
        for words in CALLS[verb]:
            for format_ in formats_of(option):
                said = (*verb.split(), *(filled.get(word, word) for word in words), "-o", format_)
                result = await asyncio.to_thread(call, *said)
                if (problem := problem_of(verb, format_, result)) is not None:
                    wrong.append(f"{' '.join(said)}: {problem}: {result.output[-500:]}")
    assert not wrong, "\n".join(wrong)


def problem_of(verb: str, format_: str, result: Result) -> str | None:
    """What is wrong with an answer; None: nothing."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return repr(result.exception)
    if result.exit_code not in ((0, 1) if verb in ("diff", "doctor", "plan", "defrag") else (0,)):
        return f"exit code {result.exit_code}"
    text = result.stdout
    try:
        match format_:
            case "json":
                json.loads(text)
            case "jsonl":
                [json.loads(line) for line in text.splitlines()]
            case "yaml":
                list(yaml.safe_load_all(text))
    except ValueError as error:
        return repr(error)
    return None if result.output.strip() or (verb.startswith("cache") and format_ == "name") else "prints nothing"
