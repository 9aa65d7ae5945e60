"""The verb `context`: addresses and keys of controllers by name, in a file of this user. It calls no controller."""

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.errors import CliError, NotFoundError, UsageError
from cli.objects.kind import Column, Kind, table_of
from cli.printing.output import Format, print_data, print_table
from cli.runner import OutputOption, complaining
from cli.text.formatting import printable
from cli.transport.connection import named_context, valid_url
from cli.transport.contexts import Context, Contexts, changing, contexts_file, read_contexts
from cli.transport.servers import client_context
from schemas.printing import block

app = typer.Typer()
_context = typer.Typer(no_args_is_help=True, help="Manage the controllers that this user calls.")
app.add_typer(_context, name="context")
_MOST_KEY: Final = 1024
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]
_ROWS: Final = Kind(
    "context",
    "contexts",
    "",
    (
        Column("NAME", lambda row, _: printable(row["name"])),
        Column("IN USE", lambda row, _: "yes" if row["in_use"] else "no"),
        Column("URL", lambda row, _: printable(row["url"])),
    ),
)


@_context.command()
def add(
    name: NameArgument,
    url: Annotated[str, typer.Option("--url", help="URL of the controller.")],
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Authority of its certificate. Default: the system's."),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a context of this name.")] = False,
) -> None:
    """Add a context. Its key is read from stdin, or asked for, and is never printed."""
    with complaining():
        address = valid_url(url, "--url")
        authority = None if ca is None else ca.expanduser().absolute()
        if authority is not None:
            client_context(authority)
        made = Context(address, _key_from_stdin(), authority)
        with changing(contexts_file(os.environ)) as held:
            if name in held[0].by_name and not replace:
                raise CliError(f"context {name!r} exists; replace it with --replace")
            held[0] = held[0].having(name, made)
            if use:
                held[0] = held[0].using(name)
        print(block(f"context/{name} {'added and in use' if use else 'added'}"))


@_context.command("use")
def use_context(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the context.")] = None,
    none: Annotated[bool, typer.Option("--none", help="Use none.")] = False,
) -> None:
    """Use a context from now on, where flags and environment name no controller."""
    with complaining():
        if (name is None) != none:
            raise UsageError("write `gpuward context use NAME`, or `gpuward context use --none`")
        with changing(contexts_file(os.environ)) as held:
            held[0] = held[0].using(name)
        print("no context is in use" if name is None else block(f"context/{name} in use"))


@_context.command("list")
def list_contexts(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List contexts, without their keys."""
    with complaining():
        contexts = read_contexts(contexts_file(os.environ))
        rows = [_row(contexts, name) for name in sorted(contexts.by_name)]
        if output.for_programs:
            print_data({"items": rows}, output)
        else:
            print_table(table_of(_ROWS, rows, datetime.now().astimezone()), empty="no contexts found")
            flag = (ctx.find_object(dict) or {}).get("context")
            named = named_context(flag, os.environ)
            if named is not None:
                source = f"GPUWARD_CONTEXT={named}" if flag is None else f"--context {named}"
                print(printable(f"{source} goes before the one in use"))


@_context.command()
def show(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the context. Default: that of `--context`, else the one in use."),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show a context, without its key."""
    with complaining():
        contexts = read_contexts(contexts_file(os.environ))
        flags = ctx.find_object(dict) or {}
        wanted = name or named_context(flags.get("context"), os.environ)
        wanted = contexts.in_use if wanted is None else wanted
        if wanted is None:
            raise NotFoundError("no context is in use; use one: gpuward context use NAME")
        row = _row(contexts, wanted)
        if output.for_programs:
            print_data(row, output)
        else:
            in_use = "yes" if row["in_use"] else "no"
            authority = f"\nCA:      {row['ca']}" if "ca" in row else ""
            print(block(f"Name:    {wanted}\nURL:     {row['url']}\nIn use:  {in_use}{authority}"))


@_context.command()
def delete(name: NameArgument) -> None:
    """Delete a context with its key. The key itself stays valid: see `gpuward key revoke`."""
    with complaining():
        with changing(contexts_file(os.environ)) as held:
            held[0] = held[0].without(name)
        print(block(f"context/{name} deleted"))


def _row(contexts: Contexts, name: str) -> dict[str, Any]:
    context = contexts.get(name)
    authority = {} if context.ca is None else {"ca": str(context.ca)}
    return {"name": name, "url": context.url, "in_use": name == contexts.in_use, **authority}


def _key_from_stdin() -> str:
    """The key, which errors do not show. Raises `UsageError` where stdin has no valid key."""
    text = typer.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read(_MOST_KEY + 1)
    key = str(text).strip()
    if not key:
        raise UsageError("stdin is empty; give the key there: gpuward context add NAME --url URL < FILE")
    if len(key) > _MOST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("stdin has no valid key; a key is one line, such as `gpuward key create` prints it")
    return key
