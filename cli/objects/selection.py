"""The option `-l`: labels of objects, and the objects that a selector picks."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli.errors import UsageError
from cli.objects.kind import Kind
from cli.objects.kinds import DEPLOYMENTS, INSTANCES, WORKERS
from cli.objects.selectors import Selector, parse_selector
from cli.transport.client import Api
from cli.transport.paths import Json, path_of


def _parse(text: Any) -> Selector:
    try:
        return parse_selector(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


SelectorOption = Annotated[
    Selector | None,
    typer.Option(
        "--selector",
        "-l",
        parser=_parse,
        metavar="LABELS",
        help="Only objects with these labels: `app=chat`, `app!=chat`, `app in (a,b)`, `app notin (a,b)`, `app`, "
        "`!app`; several with commas. Instances have the labels of their deployment.",
    ),
]


def selected(api: Api, kind: Kind, raws: list[Json], selector: Selector | None) -> list[Json]:
    """The objects that the selector picks; without a selector all. Raises `UsageError` as `must_have_labels`."""
    if selector is None:
        return raws
    must_have_labels(kind)
    if kind is INSTANCES:
        deployments = api.items(path_of(DEPLOYMENTS.plural))
        labels = {raw["uid"]: labels_of(DEPLOYMENTS, raw) for raw in deployments}
        return [raw for raw in raws if selector.matches(labels.get(raw["spec"]["deployment_uid"], {}))]
    return [raw for raw in raws if selector.matches(labels_of(kind, raw))]


def must_have_labels(kind: Kind) -> None:
    if kind not in (DEPLOYMENTS, INSTANCES, WORKERS):
        raise UsageError(f"--selector: {kind.plural} have no labels; deployments, instances and workers have")


def labels_of(kind: Kind, raw: Json) -> Mapping[str, str]:
    labels = raw["spec" if kind is DEPLOYMENTS else "status"].get("labels") or {}
    return {str(name): str(value) for name, value in labels.items()}
