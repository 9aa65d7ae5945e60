"""The typer application: the global flags, and the verbs, which are imported when they are called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from cli.examples import examples_of
from schemas.version import __version__


class Verb(NamedTuple):
    """`module` has the verb in its `app`; `help` is the first sentence of its help."""

    name: str
    module: str
    help: str


class Group(NamedTuple):
    """Verbs under a title of `--help`."""

    title: str
    verbs: tuple[Verb, ...]


GROUPS: Final = (  # in the order of `--help`
    Group(
        "Deploy models",
        (
            Verb(
                "apply",
                "cli.verbs.apply",
                "Create or update deployments and policies from manifests: all of them, or none.",
            ),
            Verb("plan", "cli.verbs.plan", "Show what `apply` would do: changes, placements and policies."),
            Verb("diff", "cli.verbs.diff", "Show field by field what `apply` would change."),
            Verb("run", "cli.verbs.run", "Deploy a model, wait until it runs, and chat with it."),
            Verb("wait", "cli.verbs.wait", "Wait until deployments run, succeed, are stopped or are gone."),
            Verb(
                "scale",
                "cli.verbs.deployments",
                "Set the number of replicas of a deployment, or the bounds between which it follows the requests.",
            ),
            Verb("stop", "cli.verbs.deployments", "Stop deployments."),
            Verb(
                "start",
                "cli.verbs.deployments",
                "Start stopped deployments, and run ended tasks and failed instances again.",
            ),
            Verb("wake", "cli.verbs.deployments", "Wake a sleeping deployment, and keep it awake for a time."),
            Verb(
                "restart",
                "cli.verbs.deployments",
                "Restart the instances of a deployment, as many at a time as its `update` allows.",
            ),
            Verb("rollout", "cli.verbs.rollout", "Manage the rollout of a deployment's newest revision."),
            Verb("delete", "cli.verbs.delete", "Delete deployments, policies or workers."),
        ),
    ),
    Group(
        "See models, instances and GPUs",
        (
            Verb("get", "cli.verbs.get", "List the objects of a kind, or some of them."),
            Verb("ps", "cli.verbs.get", "List instances."),
            Verb("pending", "cli.verbs.pending", "List pending instances in the order in which they are placed."),
            Verb("describe", "cli.verbs.describe", "Show an object in detail, with its latest events."),
            Verb("models", "cli.verbs.models", "List models: their names, and where they run and are cached."),
            Verb("logs", "cli.verbs.logs", "Print the logs of engines."),
            Verb("events", "cli.verbs.events", "List events, oldest first."),
            Verb("top", "cli.verbs.top", "Show workers and GPUs live."),
            Verb("usage", "cli.verbs.report", "Report requests and tokens by key and model."),
            Verb("report", "cli.verbs.report", "Report how GPUs were used."),
        ),
    ),
    Group(
        "Manage hosts and GPUs",
        (
            Verb("join-token", "cli.verbs.join_token", "Manage the tokens with which agents join."),
            Verb("label", "cli.verbs.workers", "Set labels of a worker that take precedence over those of its host."),
            Verb("cordon", "cli.verbs.workers", "Place no new instances on workers, or on one GPU of one."),
            Verb("uncordon", "cli.verbs.workers", "End the cordon or drain of workers, or the cordon of one GPU."),
            Verb(
                "drain", "cli.verbs.workers", "Cordon workers and move their instances to others, replacements first."
            ),
            Verb("defrag", "cli.verbs.defrag", "Relocate running instances so that pending ones fit."),
            Verb("cache", "cli.verbs.cache", "Models of the hub that workers have fetched: list, prune."),
        ),
    ),
    Group(
        "Manage access",
        (
            Verb("context", "cli.verbs.context", "Manage the controllers that this user calls."),
            Verb("key", "cli.verbs.key", "Manage API keys."),
            Verb("secret", "cli.verbs.secret", "Manage secrets for `env: {NAME: {secret: ...}}` in manifests."),
            Verb("ca", "cli.local.ca", "Manage a private certificate authority for TLS."),
            Verb(
                "audit-log",
                "cli.verbs.audit_log",
                "List changes, and reads of secrets and logs: by which key, from where, and with which outcome.",
            ),
        ),
    ),
    Group(
        "Run Gpuward",
        (
            Verb("up", "cli.up.verb", "Run a database, a controller and agents on this host."),
            Verb("controller", "cli.local.daemons", "Run a controller and its gateway."),
            Verb(
                "gateway",
                "cli.local.daemons",
                "Run a gateway: it answers requests to models, and passes all else on to a controller.",
            ),
            Verb("agent", "cli.local.daemons", "Run an agent on this host."),
            Verb("doctor", "cli.local.doctor", "Examine this host, and say what to do."),
            Verb(
                "backup",
                "cli.local.backup",
                "Write the controller's whole state to a file, while everything runs or while it is stopped.",
            ),
            Verb("restore", "cli.local.backup", "Put a backup in the place of the controller's state."),
            Verb("audit", "cli.verbs.audit", "Check the invariants of the ledger."),
            Verb(
                "assets",
                "cli.local.assets",
                "Write the files for operators: units, rules, boards, Compose, Kubernetes.",
            ),
        ),
    ),
    Group(
        "This program",
        (
            Verb(
                "completion",
                "cli.verbs.completion",
                "Print the script with which a shell completes verbs and live names.",
            ),
            Verb("version", "cli.verbs.version", "Print the version of this program."),
        ),
    ),
)
VERBS: Final = tuple(verb for group in GROUPS for verb in group.verbs)


_AROUND_HELP: Final = 6  # columns of the indentation and the gap
_GLOBAL: Final = {"--url": "URL", "--api-key": "KEY", "--context": "NAME"}  # options before the verb, and their values


def commands_of(app: typer.Typer) -> Mapping[str, Any]:
    plain = typer.Typer(rich_markup_mode=None)  # a part of an application has its markup mode
    plain.add_typer(app)
    return get_group(plain).commands


def imported(name: str) -> Any:
    """The command of a verb, with its examples in its help."""
    module = next(verb.module for verb in VERBS if verb.name == name)
    command = commands_of(import_module(module).app)[name]
    for words, inner in ((name, command), *((f"{name} {verb}", of) for verb, of in _inner(command).items())):
        inner.epilog = "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples_of(words))
    return command


def _inner(command: Any) -> Mapping[str, Any]:
    """The verbs of a group of verbs, such as those of `key`; empty for a verb."""
    return getattr(command, "commands", {})


class Verbs(TyperGroup):
    """Help and completion know the names and short help of verbs, and import none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for verb in VERBS:
            self.add_command(TyperCommand(verb.name, help=verb.help))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature of the base
        width = max(map(len, self.commands))
        for group in GROUPS:
            limit = formatter.width - width - _AROUND_HELP
            with formatter.section(group.title):
                formatter.write_dl(
                    [
                        (verb.name.ljust(width), self.commands[verb.name].get_short_help_str(limit))
                        for verb in group.verbs
                    ]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Imports the verb. Where a kind is written in its place, the error names the call that lists the kind."""
        if args and args[0] not in self.commands:
            from cli.objects.kinds import KINDS  # noqa: PLC0415 - slow, and only errors need it

            if any(args[0].lower() in kind.words for kind in KINDS):
                ctx.fail(f"No such command '{args[0]}'. List these objects by: gpuward get {args[0].lower()}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else imported(name), rest

    def invoke(self, ctx: Any) -> Any:
        """Where a global option follows the verb, the error shows where it belongs."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            option: Any = getattr(error, "option_name", None)
            if option in _GLOBAL and hasattr(error, "possibilities"):  # unknown, not without its value
                _, _, verb = error.ctx.command_path.partition(" ")  # type: ignore[attr-defined]
                error.possibilities = None
                error.message += f"; write it before the verb: gpuward {option} {_GLOBAL[option]} {verb}"
            raise


app = typer.Typer(
    name="gpuward",
    cls=Verbs,
    help="Gpuward keeps AI models on GPUs. Start with `gpuward up`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, and keys are among them
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gpuward {__version__}")
        raise typer.Exit


@app.callback()
def remember_flags(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", envvar="GPUWARD_URL", show_envvar=True, metavar="URL[,URL]", help="URL of the controller."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="GPUWARD_API_KEY", show_envvar=True, help="API key (prefer GPUWARD_API_KEY)."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar="GPUWARD_CONTEXT",
            show_envvar=True,
            metavar="NAME",
            help="A context of `gpuward context list`. It goes before GPUWARD_URL and GPUWARD_API_KEY.",
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version of this program."),
    ] = False,
) -> None:
    """Keeps the flags for the client verbs. They read the variables themselves: see `cli.transport.connection`."""
    given = {"url": url, "key": key, "context": context}
    ctx.obj = {name: value if _is_flag(ctx, name) else None for name, value in given.items()}


def _is_flag(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
