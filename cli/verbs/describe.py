"""The verb `describe`."""

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from cli.errors import CliError, NotFoundError, UsageError
from cli.objects.gpus import gpu_names
from cli.objects.kind import Kind, object_key
from cli.objects.kinds import DEPLOYMENTS, EVENTS, GPUS, INSTANCES, POLICIES, WORKERS, kind_named
from cli.objects.names import matching, nearest
from cli.printing.output import Format, print_data, terminal_width
from cli.runner import OutputOption, client
from cli.text.details import describe as describe_view
from cli.text.details import draw_action, draw_window
from cli.text.page import Page, Part
from cli.transport.client import Api
from cli.transport.near_names import did_you_mean
from cli.transport.paths import Json, parse, path_of
from cli.verbs.get import read_object
from schemas.api.deployments import DeploymentView, ModelHead, ModelHeads
from schemas.api.events import EventView
from schemas.api.gpus import GpuView
from schemas.api.history import UtilizationView
from schemas.api.instances import InstanceView
from schemas.api.policies import PolicyView
from schemas.api.view import View
from schemas.api.workers import WorkerView
from schemas.printing import block

app = typer.Typer()
_EVENTS: Final = 15
_FITS_SHOWN: Final = 5
_KINDS: Final = (DEPLOYMENTS, INSTANCES, WORKERS, GPUS, POLICIES)
_DRAWN: Final = (DEPLOYMENTS, INSTANCES)
_ACTIONS: Final = ("stop", "scale_down", "notify")
POLICY_REASONS: Final = ",".join([f"policy_{a}" for a in _ACTIONS] + [f"policy_would_{a}" for a in _ACTIONS])
_VIEWS: Final[dict[str, type[View]]] = {
    DEPLOYMENTS.singular: DeploymentView,
    INSTANCES.singular: InstanceView,
    WORKERS.singular: WorkerView,
    GPUS.singular: GpuView,
    POLICIES.singular: PolicyView,
}


@app.command()
def describe(
    ctx: typer.Context,
    kind_or_name: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]", help="Kind: deployment, instance, worker, gpu or policy. Not needed where NAME is unique."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the object or its beginning; for a GPU also WORKER:INDEX."),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show an object in detail, with its latest events."""
    with client(ctx) as api:
        if name is None:
            wanted, raw = _named(api, kind_or_name)
        else:
            wanted = kind_named(kind_or_name, _KINDS)
            raw = read_object(api, wanted, name)
        if output.for_programs:
            print_data(raw, output)
        else:
            page = Page(terminal_width(), wide=output is Format.WIDE, gpus=gpu_names(api))
            print(block(_description(api, wanted, raw, page)))


def _named(api: Api, name: str) -> tuple[Kind, Json]:
    """The only object of any kind with this name; else the only object whose name begins with it."""
    exact = [(kind, raw) for kind in _KINDS if (raw := api.find(path_of(kind.plural, name))) is not None]
    lists = {} if exact else {kind.singular: api.items(path_of(kind.plural)) for kind in _KINDS}
    fits = exact or [
        (kind, raw)
        for kind in _KINDS
        for match in matching(kind, name, lists[kind.singular])
        for raw in lists[kind.singular]
        if raw["name"] == match
    ]
    if len(fits) == 1:
        return fits[0]
    if any(name.lower() in (kind.singular, kind.plural) for kind in _KINDS):
        raise UsageError(f"NAME is missing: gpuward describe {name} NAME")
    if not fits:
        words = (f"{kind.singular} {other}" for kind in _KINDS for other in nearest(kind, name, lists[kind.singular]))
        meant = did_you_mean(list(words)[:_FITS_SHOWN])
        raise NotFoundError(
            f"nothing has the name {name!r}{meant or '; list objects: gpuward get deployments, gpuward ps'}"
        )
    shown = ", ".join(f"{kind.singular} {raw['name']}" for kind, raw in fits[:_FITS_SHOWN])
    more = f" and {len(fits) - _FITS_SHOWN} more" if len(fits) > _FITS_SHOWN else ""
    raise CliError(f"{name!r} is not unique: {shown}{more}; write gpuward describe KIND NAME")


def _description(api: Api, kind: Kind, raw: Json, page: Page) -> str:
    name = raw["name"]
    if kind is INSTANCES and raw["status"]["phase"] == "pending":
        raw = _with_advice(api, raw)
    instances = api.items(path_of(INSTANCES.plural), deployment=name) if kind is DEPLOYMENTS else []
    gpus = api.items(path_of(GPUS.plural), worker=name) if kind is WORKERS else []
    events = api.items(path_of(EVENTS.plural), limit=_EVENTS, object=object_key(kind, raw))
    now = datetime.now(UTC)
    graphs = _graphs(api, kind, raw, now) if kind in _DRAWN else []
    return describe_view(
        parse(_VIEWS[kind.singular], raw),
        instances=[parse(InstanceView, item) for item in instances],
        gpus=[parse(GpuView, item) for item in gpus],
        events=[parse(EventView, item) for item in reversed(events)],
        graphs=graphs,
        now=now,
        heads=_heads(api, name) if kind is DEPLOYMENTS and raw["status"].get("model_commits") else (),
        page=page,
    )


def _graphs(api: Api, kind: Kind, raw: Json, now: datetime) -> list[Part]:
    """The utilization of its GPUs over the window, and the evidence of the last action of its policy."""
    view = parse(UtilizationView, api.get(path_of("utilization"), **{kind.singular: raw["name"]}))
    actions = api.items(path_of(EVENTS.plural), limit=1, object=object_key(kind, raw), reason=POLICY_REASONS)
    return [*draw_window(view), *(line for action in actions for line in draw_action(parse(EventView, action), now))]


def _with_advice(api: Api, raw: Json) -> Json:
    """A pending instance with a fresh explanation, which the controller makes on demand only, since it costs CPU."""
    try:
        explain = api.get(path_of(INSTANCES.plural, raw["name"], "explain"))
    except CliError:  # it was placed or removed since
        return raw
    return {**raw, "status": {**raw["status"], "explain": explain}}


def _heads(api: Api, name: str) -> list[ModelHead]:
    """The present commits of the hub; empty where it does not answer."""
    try:
        return parse(ModelHeads, api.get(path_of(DEPLOYMENTS.plural, name, "models"))).items
    except CliError:
        return []
