"""docs/cli.md: every verb of `gpuward` with its arguments and options, from typer."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final

import typer

from cli.app import VERBS, app, imported
from cli.errors import CliError, NotFoundError, TimedOutError, UsageError
from cli.examples import examples_of
from cli.runner import INTERRUPTED
from tables import code, duration, sentence, table, words

HEAD: Final = """\
# Command line

<!-- Written by `make reference` from the typer application in cli/. Do not edit. -->

`gpuward` runs the daemons (`up`, `controller`, `agent`), and it is the client of the controller's HTTP API.
`gpuward VERB --help` prints the same texts as this page.

A client verb takes the controller's address and the key from the first of these that is there:

1. the options before the verb: `--context NAME`, or `--url` and `--api-key`;
2. `GPUWARD_CONTEXT`, the name of a context;
3. `GPUWARD_URL` and `GPUWARD_API_KEY`;
4. the context in use (`gpuward context use`);
5. the file `client.env` of a default data folder.

`--api-key` also replaces the key of a context. `GPUWARD_API_KEY` does not: a key goes only to the address that it was
given or stored with. Contexts are in `~/.config/gpuward/contexts.json`, or below `XDG_CONFIG_HOME`; a call refuses that
file where others may read it.

With `-o json` or `-o yaml` a verb prints exactly what the API returns; `models` alone joins several answers.

Tables and sentences name a GPU by its worker and its index, such as `gpu-a1:0`. With `-o wide` they have UUIDs and
local times. Arguments take both names of a GPU. Where a name does not exist, the error has the names that are like it.
"""
SCRIPTS: Final = """\
## For scripts

Results that stdout cannot take, such as on a full disk, end a call with 1. Messages that stderr cannot take are
dropped. `up` goes on without either.

`get`, `delete`, `stop`, `start`, `cordon`, `uncordon` and `drain` take several names, and try each. Refusals are
written to stderr, and the others are done. Then the exit code is that of the refusals where they have one in common,
else 1. Where no controller answers, a verb ends at once. The names may have their kind before them, as `-o name` prints
them:

```bash
gpuward get deployments -l team=search -o name | xargs --no-run-if-empty gpuward stop
```

`-l` takes `app=chat`, `app!=chat`, `app in (a,b)`, `app notin (a,b)`, `app` and `!app`; of several, with commas between
them, all must hold. Deployments have the labels of their manifests, instances those of their deployment, and workers
those of their agents.

`-o jsonpath=TEMPLATE` prints parts of what `-o json` prints. The language is a part of kubectl's:

| in braces | meaning |
|---|---|
| `.status.phase`, `['status']` | a field; `\\.` is a dot within a name |
| `.items[0]`, `[-1]`, `[0:2]`, `[*]` | items of a list, from its end, from one to before another, all |
| `..name` | every field of this name, however deep |
| `.items[?(@.status.ready<2)]` | those for which it holds (`==`, `!=`, `<`, `<=`, `>`, `>=`), or that have the field |
| `range .items[*]` ... `end` | what is between, for each item; paths begin at the item, with `$` at the whole |
| `"\\n"`, `"\\t"` | a text |

What stands outside braces is printed as it is. Several values of a path are printed with spaces between them, a field
that an object does not have as nothing, an object or a list as JSON. Where no path finds anything, stderr says so.

```bash
gpuward get instances -o jsonpath='{range .items[*]}{.name}{"\\t"}{.status.phase}{"\\n"}{end}'
```
"""
_KINDS: Final = {"int": "number", "float": "number", "int range": "number", "float range": "number"}
_PROGRAM: Final = "gpuward"
_EXIT_CODES: Final[Sequence[tuple[int, str]]] = (
    (0, "done"),
    (CliError.exit_code, "refused or failed"),
    (UsageError.exit_code, "the command line is not valid"),
    (NotFoundError.exit_code, "the object does not exist"),
    (TimedOutError.exit_code, "timed out while waiting"),
    (INTERRUPTED, "ended by Ctrl-C before it was done"),
)


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb as it is written after `gpuward`, with its command; a group's verbs stand for the group."""
    for name in (verb.name for verb in VERBS):
        command = imported(name)
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield name, command
            for verb, one in command.commands.items():
                yield f"{name} {verb}", one
        else:
            yield name, command


def page() -> str:
    """The whole page."""
    exit_codes = table(("exit code", "meaning"), [(str(number), text) for number, text in _EXIT_CODES])
    options = typer.main.get_command(app).params
    lines = [HEAD, *exit_codes, SCRIPTS, "## Options before the verb", "", *_table_of(options)]
    for name, command in verbs():
        lines += [f"## {_PROGRAM} {name}", "", sentence(command.help or ""), "", "```text"]
        lines += [_usage(name, command), "```", "", *_table_of(command.params)]
        lines += ["```bash", *examples_of(name), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _usage(name: str, command: Any) -> str:
    arguments = [_argument(one) for one in command.params if not _is_option(one)]
    options = ["[OPTIONS]"] if any(_is_option(one) for one in command.params) else []
    return " ".join([_PROGRAM, name, *options, *arguments])


def _argument(one: Any) -> str:
    name = one.metavar or one.name.upper()
    if one.metavar is not None and " " in one.metavar:
        return name
    return name if one.required else f"[{name}]"


def _table_of(params: Sequence[Any]) -> list[str]:
    rows = [_row(one) for one in params if not one.hidden and one.help is not None and not _is_help(one)]
    with_variable = any(row[3] for row in rows)
    titles = ("argument or option", "value", "default", "variable", "meaning")
    kept = [n for n in range(len(titles)) if n != 3 or with_variable]  # noqa: PLR2004 - the variable's column
    return table([titles[n] for n in kept], [[row[n] for n in kept] for row in rows]) if rows else []


def _row(one: Any) -> list[str]:
    if not _is_option(one):
        return [code(one.metavar or one.name.upper()), _value(one), _default(one), "", sentence(one.help)]
    names = ", ".join(code(name) for name in (*one.opts, *one.secondary_opts))
    variable = code(one.envvar) if one.envvar else ""
    return [names, "" if one.is_flag else _value(one), _default(one), variable, sentence(one.help)]


def _is_option(one: Any) -> bool:
    return any(name.startswith("-") for name in (*one.opts, *one.secondary_opts))


def _is_help(one: Any) -> bool:
    return "--help" in one.opts or "--install-completion" in one.opts or "--show-completion" in one.opts


def _value(one: Any) -> str:
    choices = getattr(one.type, "choices", None)
    if choices:
        return words(list(choices))
    if _is_option(one) and one.metavar:
        return code(one.metavar)
    kind = _KINDS.get(one.type.name, "text")
    match getattr(one.type, "min", None), getattr(one.type, "max", None):
        case None, None:
            return kind
        case least, None:
            return f"{kind}, at least {least}"
        case None, most:
            return f"{kind}, at most {most}"
        case least, most:
            return f"{kind}, {least} to {most}"


def _default(one: Any) -> str:
    default = one.default
    if default is None or default is False or default == "":
        return "required" if one.required else ""
    if one.metavar == "DURATION":
        return code(duration(default))
    return code(default.value if isinstance(default, Enum) else default)
