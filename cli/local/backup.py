"""The verbs `backup` and `restore`. They work on the controller's data on its host, and need no key."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import CliError
from cli.local.options import ControllerDatabaseOption, ControllerDataOption, needs, validated
from cli.runner import complain
from cli.terminal.confirm import confirm
from cli.text.formatting import printable

app = typer.Typer()


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    data_dir: ControllerDataOption = None,
    database_url: ControllerDatabaseOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file of that name.")] = False,
) -> None:
    """Write the controller's whole state to a file, while everything runs or while it is stopped.

    Secrets are in it as in the database, without the key that encrypts them. Samples and logins are left out.
    """
    module, settings = _controller(data_dir, database_url)
    try:
        manifest = module.back_up(settings, file, overwrite=overwrite, progress=_progress)
    except module.HostCommandError as error:
        complain(CliError(str(error)))
    rows = sum(part.rows for part in manifest.parts)
    size = _size(file.stat().st_size)
    print(printable(f"backup of {rows} rows at schema {manifest.schema_revision} written to {file}, {size}"))


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `gpuward backup` wrote.")],
    data_dir: ControllerDataOption = None,
    database_url: ControllerDatabaseOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace what the database holds. It is lost.")] = False,
    revoke_keys: Annotated[
        bool,
        typer.Option("--revoke-keys", help="Revoke all API keys of the backup; `gpuward key reset` makes a new one."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replace without a question.")] = False,
) -> None:
    """Put a backup in the place of the controller's state. Stop all controllers and gateways first; engines run on.

    The next leader adopts what runs. What changed since the backup is lost, and keys that were revoked since then are
    valid again unless --revoke-keys is given.
    """
    module, settings = _controller(data_dir, database_url)

    def agree(manifest: Any, target: Any, where: str) -> bool:
        taken = f"the backup of {manifest.taken_at} (gpuward {manifest.gpuward}, schema {manifest.schema_revision})"
        print(printable(f"{file} is whole: {taken}"), file=sys.stderr)
        if target.tables:
            print(printable(f"will be replaced at {where}: {target.holds}"), file=sys.stderr, flush=True)
            confirm("Replace all of it?", yes=yes)
        return True

    try:
        restored = module.put_back(
            settings, file, replace=replace, revoke_keys=revoke_keys, agree=agree, progress=_progress
        )
    except module.HostCommandError as error:
        complain(CliError(str(error)))
    except CliError as error:
        complain(error)
    _print_restored(restored, revoke_keys=revoke_keys)


def _print_restored(restored: Any, *, revoke_keys: bool) -> None:
    print(
        f"restored: {restored.deployments} deployments, {restored.instances} instances, {restored.workers} workers\n"
        f"revoked: {restored.revoked_tokens} join tokens; not sent: {restored.dropped_webhooks} webhooks"
    )
    if revoke_keys:
        print(f"revoked: {restored.revoked_keys} keys; make an administrator's key with: gpuward key reset")
    else:
        print(
            f"valid: {restored.valid_keys} keys, also those revoked since the backup; check them with: gpuward get keys"
        )
    for violation in restored.violations:
        print(printable(f"as in the backup: {violation}"), file=sys.stderr)
    if restored.unreadable_secrets:
        names = ", ".join(restored.unreadable_secrets)
        print(printable(f"no key here opens these secrets, put it back or set them again: {names}"), file=sys.stderr)
    if restored.receipts_unreadable:
        why = "engines that were started since the backup are not taken back without it"
        print(f"no key here opens the key of receipts, put it back before the start: {why}", file=sys.stderr)
    print("start the controllers now; workers that joined since the backup must join again with a new token")


def _controller(data_dir: Path | None, database_url: str | None) -> tuple[Any, Any]:
    """The module `controller.host_commands`, and the controller's settings."""
    with needs("controller"):
        from controller import host_commands as module  # noqa: PLC0415 - client verbs start without it
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    return module, validated(ControllerSettings, data_dir=data_dir, database_url=database_url)


def _progress(table: str, rows: int, size: int) -> None:
    print(f"{table:<24} {rows:>10} rows {_size(size):>12}", file=sys.stderr, flush=True)


def _size(count: int) -> str:
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004 - the step between two units
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
