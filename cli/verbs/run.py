"""The verb `run`: deploys a model, and chats with it."""

import re
import sys
from contextlib import closing
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from cli.errors import CliError, UsageError
from cli.objects.gpus import gpu_names
from cli.runner import TimeoutOption, client
from cli.terminal.signals import ended_by_signals
from cli.transport.chat import Chat
from cli.transport.client import Api
from cli.transport.paths import Json, path_of
from cli.verbs.apply import DEFAULT_TIMEOUT_S
from schemas.printing import block

app = typer.Typer()
_PROMPT: Final = ">>> "
_NAME_CHARS: Final = 63


@app.command(name="run")
def run_model(  # noqa: PLR0917 - typer reads the parameters by name
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Model, such as hf:Qwen/Qwen3-0.6B.")],
    prompt: Annotated[
        str | None, typer.Argument(help="Ask this alone. Default: a chat; without a terminal, what stdin says.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the deployment. Default: from the model.")] = None,
    engine: Annotated[str, typer.Option("--engine", help="Engine that runs it.")] = "auto",
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="Number of GPUs. Default: as it needs.")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", help="Memory on each GPU, such as 20GiB. Default: as it needs.")
    ] = None,
    args: Annotated[list[str] | None, typer.Option("--arg", metavar="KEY=VALUE", help="Flag of the engine.")] = None,
    remove: Annotated[bool, typer.Option("--rm", help="Delete the deployment at the end, if made here.")] = False,
    timeout_s: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Deploy a model, wait until it runs, and chat with it. In a chat Ctrl-C stops an answer, and Ctrl-D ends it."""
    called = name or name_of(model)
    wanted = _manifest(called, model, engine, gpus, gpu_memory, args or [])
    made_uid = ""
    with ended_by_signals():  # so that the block ends in order, and restores the terminal
        try:
            with client(ctx) as api:
                raw, made = _deploy(api, called, wanted)
                made_uid = raw["uid"] if made else ""
                _until_running(api, raw, timeout_s)
                _talk(Chat(api, called), prompt)
        finally:
            if remove and made_uid:
                with client(ctx) as api:
                    _delete(api, called, made_uid)


def name_of(model: str) -> str:
    """A deployment's name from a model: the last part of its path."""
    last = re.split(r"[/:]", model.partition("@")[0].rstrip("/"))[-1]
    name = re.sub(r"[^a-z0-9]+", "-", last.lower().removesuffix(".gguf"))[:_NAME_CHARS].strip("-")
    if not name:
        raise typer.BadParameter(f"no name can be made from {model!r}; write one with --name", param_hint="MODEL")
    return name


def _manifest(name: str, model: str, engine: str, gpus: int | None, gpu_memory: str | None, args: list[str]) -> Json:
    flags = {}
    for arg in args:
        key, equals, value = arg.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{arg!r} is not KEY=VALUE, such as max-model-len=8192", param_hint="--arg")
        flags[key] = value
    resources = {"gpus": gpus, "gpu_memory": gpu_memory}
    return {
        "kind": "Deployment",
        "name": name,
        "model": model,
        "engine": engine,
        "args": flags,
        "resources": {field: value for field, value in resources.items() if value is not None},
    }


def _deploy(api: Api, name: str, wanted: Json) -> tuple[Json, bool]:
    """Makes the deployment, or takes an existing one of this name and model; returns it, and True if it was made.

    Raises:
        CliError: the name belongs to another model.
        UsageError: the manifest is refused.
    """
    from cli.manifest.files import spec_as_json  # noqa: PLC0415 - slow to import
    from schemas.manifest.parse import ManifestError, parse_manifest_objects  # noqa: PLC0415 - as above

    try:
        (manifest,) = parse_manifest_objects([wanted])
    except ManifestError as error:
        raise UsageError(
            "\n".join(["this cannot be deployed:", *(f"  {problem}" for problem in error.problems)])
        ) from None
    raw = api.find(path_of("deployments", name))
    if raw is None or raw.get("deleted_at") is not None:  # the name of a deleted deployment is free at once
        raw, outcome = api.apply(path_of("deployments", name), spec_as_json(manifest))
        print(block(f"deployment/{name} {outcome}"), file=sys.stderr)
        return raw, outcome == "created"  # else another call has made it
    if raw["spec"].get("model") != wanted["model"]:
        raise CliError(f"deployment {name!r} exists, with the model {raw['spec'].get('model')}; write another --name")
    print(f"deployment/{name} exists, and is used as it is", file=sys.stderr)
    return raw, False


def _delete(api: Api, name: str, uid: str) -> None:
    """Deletes the deployment with this uid, and no other deployment of its name."""
    raw = api.find(path_of("deployments", name))
    if raw is None or raw["uid"] != uid or raw.get("deleted_at") is not None:
        print(f"deployment/{name} was deleted already, not by this call", file=sys.stderr)
        return
    api.delete(path_of("deployments", name))
    print(f"deployment/{name} deleted", file=sys.stderr)


def _until_running(api: Api, raw: Json, timeout_s: float) -> None:
    from cli.waiting.states import Target  # noqa: PLC0415 - as below
    from cli.waiting.wait import ProgressLog, until_running  # noqa: PLC0415 - slow to import

    target = Target(raw["name"], raw["uid"], raw["generation"])
    until_running(api, [target], timeout_s, ProgressLog(gpus=gpu_names(api)))


def _talk(chat: Chat, prompt: str | None) -> None:
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a request cannot hold bytes that are not text
    if prompt is not None:
        _answer(chat, prompt)
    elif not sys.stdin.isatty():
        if text := sys.stdin.read().strip():
            _answer(chat, text)
    else:
        _converse(chat)


def _converse(chat: Chat) -> None:
    """Reads and answers until Ctrl-D, also after a refused request. Ctrl-C stops an answer, or empties the line."""
    import readline  # noqa: PLC0415 - lines can be edited and recalled

    readline.parse_and_bind("set disable-completion on")  # completion offers names of files
    while True:
        try:
            text = input(_PROMPT).strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\nCtrl-D ends the chat")
            continue
        if not text:
            continue
        try:
            _answer(chat, text)
        except KeyboardInterrupt:
            print()
        except CliError as error:
            print(block(f"gpuward: {error}"), file=sys.stderr)


def _answer(chat: Chat, text: str) -> None:
    with closing(chat.send(text)) as parts:
        for part in parts:
            print(block(part), end="", flush=True)
    print()
