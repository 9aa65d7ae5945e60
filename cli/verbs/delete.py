"""The verb `delete`: deployments, policies and workers, several at once."""

import time
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import typer

from cli.errors import NotFoundError, UsageError
from cli.objects.kind import Kind, bare_name
from cli.objects.kinds import DEPLOYMENTS, KINDS, POLICIES, WORKERS, kind_named
from cli.objects.selection import SelectorOption, must_have_labels, selected
from cli.objects.selectors import Selector
from cli.objects.shown import Shown, delete_shown
from cli.runner import TimeoutOption, WaitOption, client
from cli.several import Refusals
from cli.terminal.confirm import YesOption, confirm_deletion
from cli.transport.client import Api
from cli.transport.paths import path_of
from schemas.printing import block

app = typer.Typer()
_DEFAULT_TIMEOUT_S: Final = 600.0
_LEAST_WAIT_S: Final = 1.0  # sufficient for a read of the object
_DELETABLE: Final = (DEPLOYMENTS, POLICIES, WORKERS)


class _Target(NamedTuple):
    """An object that arguments name."""

    kind: Kind
    name: str


@app.command()
def delete(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND] NAME...",
            help="Kind (deployment, policy or worker; default: deployment) and names; KIND/NAME is taken, too.",
        ),
    ] = None,
    selector: SelectorOption = None,
    yes: YesOption = False,
    wait: WaitOption = False,
    timeout_s: TimeoutOption = _DEFAULT_TIMEOUT_S,
    confirm_dead: Annotated[
        bool, typer.Option("--confirm-dead", help="Confirm that nothing runs on the worker any more. Workers only.")
    ] = False,
) -> None:
    """Delete deployments, policies or workers. Each is tried, whatever becomes of the others.

    With --selector those with the labels are shown and asked about. Without a terminal, add --yes.
    """
    with client(ctx) as api:
        targets = _targets(api, words or [], selector)
        if confirm_dead and any(target.kind is not WORKERS for target in targets):
            raise UsageError("--confirm-dead is only valid for `gpuward delete worker NAME`")
        if selector is not None:
            confirm_deletion([f"{target.kind.singular}/{target.name}" for target in targets], yes=yes)
        refusals, deleted = Refusals(), list[tuple[Kind, str, str]]()
        confirmed = "true" if confirm_dead else None

        def delete_one(target: _Target | Shown) -> None:
            kind, name = target.kind, target.name
            if isinstance(target, Shown):
                uid = target.uid
                if not delete_shown(api, target, selector, confirm_dead=confirmed):
                    return
            else:
                path = path_of(kind.plural, name)
                uid = api.get(path)["uid"] if wait else ""
                api.delete(path, confirm_dead=confirmed)
            deleted.append((kind, name, uid))
            if not wait:
                gone = kind is POLICIES  # a policy has no processes that must end first
                print(block(f"{kind.singular}/{name} {'deleted' if gone else 'is being deleted'}"), flush=True)

        refusals.each(targets, delete_one)
        if wait:
            _wait_for_all(api, deleted, timeout_s, refusals)
        refusals.report()


def _targets(api: Api, words: Sequence[str], selector: Selector | None) -> Sequence[_Target | Shown]:
    """Raises `UsageError` unless either names or labels are given; `NotFoundError` if no object has the labels."""
    if selector is None:
        if not words:
            raise UsageError("write the names of what to delete, or its labels: -l app=x")
        targets = targets_of(words)
        _check_for_a_misspelt_kind(api, words)
        return targets
    if len(words) > 1 or (words and not any(words[0].lower() in kind.words for kind in KINDS)):
        raise UsageError("names and --selector exclude each other; write `gpuward delete [KIND] -l LABELS`")
    kind = kind_named(words[0], _DELETABLE) if words else DEPLOYMENTS
    must_have_labels(kind)
    raws = [raw for raw in api.items(path_of(kind.plural)) if raw.get("deleted_at") is None]
    shown = [Shown.of(kind, raw) for raw in selected(api, kind, raws, selector)]
    if not shown:
        raise NotFoundError(f"no {kind.singular} has the labels {selector.text}; list them: gpuward get {kind.plural}")
    return shown


def targets_of(words: Sequence[str]) -> list[_Target]:
    """The objects that the words name, each once, in their order. Raises `UsageError` for a kind that does not fit."""
    named = any(words[0].lower() in kind.words for kind in KINDS) and len(words) > 1
    if named:
        kind = kind_named(words[0], _DELETABLE)
        return list(dict.fromkeys(_Target(kind, bare_name(kind, word)) for word in words[1:]))
    targets = []
    for word in words:
        prefix, slash, _ = word.partition("/")
        kind = kind_named(prefix, _DELETABLE) if slash else DEPLOYMENTS
        targets.append(_Target(kind, bare_name(kind, word)))
    return list(dict.fromkeys(targets))


def _check_for_a_misspelt_kind(api: Api, words: Sequence[str]) -> None:
    """Raises `UsageError` for `delete polcy chat`, which would delete the deployment `chat`."""
    first = words[0].lower()
    if len(words) == 1 or "/" in first or any(first in kind.words for kind in KINDS):
        return
    from difflib import get_close_matches  # noqa: PLC0415 - few calls need it

    nearly = get_close_matches(first, [word for kind in _DELETABLE for word in kind.words], 1, 0.75)
    if nearly and api.find(path_of(DEPLOYMENTS.plural, words[0])) is None:
        raise UsageError(f"unknown kind {words[0]!r}, and no deployment has that name; did you mean {nearly[0]}?")


def _wait_for_all(api: Api, deleted: Sequence[tuple[Kind, str, str]], timeout_s: float, refusals: Refusals) -> None:
    from cli.waiting.wait import ProgressLog, until_gone  # noqa: PLC0415 - slow to import, and most calls do not wait

    progress, until = ProgressLog(), time.monotonic() + timeout_s

    def wait_for(target: tuple[Kind, str, str]) -> None:
        kind, name, uid = target
        left = max(until - time.monotonic(), min(timeout_s, _LEAST_WAIT_S))
        until_gone(api, {name: uid}, left, progress, kind.plural)
        print(block(f"{kind.singular}/{name} deleted"), flush=True)

    refusals.each(deleted, wait_for)
