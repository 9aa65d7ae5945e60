"""The verb that makes room: defrag."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.answers import parse, path_of
from cli.errors import CliError, UsageError
from cli.figures import age, gib, or_nothing, short_gpus
from cli.output import Format, print_data, print_table
from cli.verb import OutputOption, run
from cli.verbs.change import manifest_as_json, read_manifests
from schemas.api.defrag import DefragView, RelocationsView

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
_NAMED: Final = 8  # instances in one line


@app.command()
def defrag(
    ctx: typer.Context,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be moved.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Move it: a copy comes up, then the old one goes.")] = False,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Make room for these deployments too; `-` reads stdin.")
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Move running instances so that those that wait fit. Without a flag: show how far earlier moves have come.

    Ends with 1 if some would not fit even so.
    """
    if plan and apply:
        raise typer.BadParameter("--plan and --apply exclude each other")

    async def work(api: "Api") -> None:
        if not plan and not apply:
            if file is not None:
                raise UsageError("--file goes with --plan or --apply")
            _show_moves(await api.get(path_of("defrag")), output)
            return
        manifests = [manifest_as_json(one) for one in read_manifests(file)] if file is not None else []
        raw = await api.post(path_of("defrag"), {"apply": apply, "manifests": manifests})
        view = parse(DefragView, raw)
        if output.for_programs:
            print_data(raw, output)
        else:
            _print(view)
        if view.left:
            raise CliError(f"no moves would make room for {_some(view.left)}")

    run(ctx, work)


def _print(view: DefragView) -> None:
    rows = [
        [m.instance, ",".join(m.workers), ",".join(m.to_workers), short_gpus(m.to_gpus), gib(m.memory_mib)]
        for m in view.moves
    ]
    empty = "nothing is moved" if view.left else "nothing has to be moved"
    print_table(["INSTANCE", "FROM", "TO", "GPUS", "MEMORY"], rows, empty=empty)
    if view.fits:
        print(f"\nthen fit: {_some(view.fits)}")
    if view.applied:
        print("the moves have been ordered; `gpuward defrag` and `gpuward events` tell how far they have come")


def _some(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _show_moves(raw: Any, output: Format) -> None:
    if output.for_programs:
        print_data(raw, output)
        return
    now = datetime.now(UTC)
    rows = [
        [m.instance, m.state, ",".join(m.to_workers), or_nothing(m.copy_name), age(m.created_at, now), m.message]
        for m in parse(RelocationsView, raw).items
    ]
    print_table(["INSTANCE", "STATE", "TO", "COPY", "AGE", "MESSAGE"], rows, empty="no instance was ever moved")
