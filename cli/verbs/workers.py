"""Verbs of operators about workers and GPUs: label, cordon, uncordon, drain."""

from typing import Annotated, Final

import typer

from cli.errors import CliError, NotFoundError, UsageError
from cli.objects.gpus import gpu_names
from cli.objects.kind import bare_name
from cli.objects.kinds import WORKERS
from cli.objects.names import printed_gpus, printed_name
from cli.printing.output import print_table
from cli.printing.table import Table
from cli.runner import client, parse_labels, parse_seconds, post_each
from cli.several import Refusals
from cli.text.formatting import DASH
from cli.text.gpu_names import GpuNames
from cli.transport.client import Api
from cli.transport.paths import Json, parse, path_of
from cli.verbs.join_token import NetworksOption
from cli.waiting.wait import ProgressLog, until_drained
from schemas.api.requests import DEFAULT_DRAIN_S
from schemas.api.workers import DrainPlanView
from schemas.printing import block

app = typer.Typer()
_label = typer.Typer(no_args_is_help=True, help="Set labels of a worker that take precedence over those of its host.")
app.add_typer(_label, name="label")
_ENDS_WITHIN_S: Final = 1800.0  # after the drain's timeout: old instances finish their requests
WorkersArgument = Annotated[list[str], typer.Argument(metavar="WORKER...", help="Names of workers.")]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="Only this GPU of the worker, by its UUID, its short id, WORKER:INDEX or its index.",
    ),
]


@_label.command("worker")
def label_worker(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="WORKER", help="Name of the worker.")],
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="LABEL...", help="Labels to set, each as KEY=VALUE; KEY- removes one.")
    ] = None,
    networks: NetworksOption = None,
) -> None:
    """Set or remove trusted labels of a worker, or allow addresses for its agent.

    Keys must match GPUWARD_TRUSTED_LABELS of the controller; all other labels are the agent's (--label). With
    --advertise-network these networks take the place of those that its join token named.
    """
    with client(ctx) as api:
        words = labels or []
        removals = [word for word in words if word.endswith("-") and "=" not in word]
        removed = [word.removesuffix("-") for word in removals]
        new = parse_labels(word for word in words if word not in removals)
        if not (removed or new or networks):
            raise UsageError("nothing to change; give a label, such as gpuward.io/zone=a, or --advertise-network")
        body: dict[str, object] = {"labels": dict.fromkeys(removed) | new}
        if networks:
            body["advertise_networks"] = networks
        api.patch(path_of("workers", name.removeprefix("worker/")), body)
        print(f"worker/{name.removeprefix('worker/')} changed")


@app.command()
def cordon(ctx: typer.Context, workers: WorkersArgument, gpu: GpuOption = None) -> None:
    """Place no new instances on workers, or on one GPU of one. Running instances stay."""
    if gpu is None:
        post_each(ctx, WORKERS, workers, "cordon", "cordoned")
    else:
        _post_gpu(ctx, workers, gpu, "cordon")


@app.command()
def uncordon(ctx: typer.Context, workers: WorkersArgument, gpu: GpuOption = None) -> None:
    """End the cordon or drain of workers, or the cordon of one GPU.

    With --gpu it also dismisses a grave Xid that the driver has reported of that GPU.
    """
    if gpu is None:
        post_each(ctx, WORKERS, workers, "uncordon", "uncordoned")
    else:
        _post_gpu(ctx, workers, gpu, "uncordon")


@app.command()
def drain(
    ctx: typer.Context,
    workers: WorkersArgument,
    now: Annotated[
        bool, typer.Option("--now", help="Stop everything at once, tasks too; replacements start afterwards.")
    ] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            parser=parse_seconds,
            metavar="DURATION",
            show_default="30m",
            help="Longest time to wait for replacements to run before the old instances stop.",
        ),
    ] = None,
    restart_tasks: Annotated[
        bool | None,
        typer.Option(
            "--restart-tasks/--keep-tasks",
            help="After the timeout, start tasks with restart: never again elsewhere, or let them end (default).",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nothing runs on the workers any more.")] = False,
) -> None:
    """Cordon workers and move their instances to others, replacements first.

    It first prints what stops, what moves and what fits nowhere. A replacement runs before its old instance stops.
    A task with restart: never runs until it ends. On a worker that is drained already, only the given flags change.
    """
    if now and timeout_s is not None:
        raise typer.BadParameter("--now waits for nothing; leave --timeout out", param_hint="--timeout")
    given = {"now": now or None, "timeout": timeout_s, "restart_tasks": restart_tasks}
    body = {field: value for field, value in given.items() if value is not None}
    with client(ctx) as api:
        names = list(dict.fromkeys(bare_name(WORKERS, name) for name in workers))
        known = [name for name in names if api.find(path_of("workers", name)) is not None]
        if known:
            drained = parse(DrainPlanView, api.post(path_of("plan", "drain"), {"workers": known, **body}))
            _print_drain(drained, gpu_names(api))
        draining: dict[str, str] = {}

        def drain_one(name: str) -> None:
            draining[name] = api.post(path_of("workers", name, "drain"), body or None)["uid"]
            print(block(f"worker/{name} is draining"))

        refusals = Refusals()
        refusals.each(names, drain_one)
        if wait and draining:
            limit_s = (DEFAULT_DRAIN_S if timeout_s is None else timeout_s) + _ENDS_WITHIN_S
            until_drained(api, draining, limit_s, ProgressLog(gpus=gpu_names(api)))
        refusals.report()


def _print_drain(plan: DrainPlanView, gpus: GpuNames) -> None:
    if not plan.items:
        return
    rows = []
    for item in plan.items:
        to = DASH if item.fits is None else ",".join(item.to_workers) or "nowhere"
        rows.append([item.instance, ",".join(item.workers), item.action, to, gpus.in_text(item.message)])
    print_table(Table(["INSTANCE", "WORKER", "ACTION", "TO", "WHY"], rows), empty="")


def _post_gpu(ctx: typer.Context, workers: list[str], gpu: str, verb: str) -> None:
    if len(workers) > 1:
        raise typer.BadParameter("is of one worker; name that one alone", param_hint="--gpu")
    (worker,) = workers
    with client(ctx) as api:
        raw = _gpu_of(api, worker, gpu)
        api.post(path_of("gpus", raw["name"], verb))
        print(block(f"gpu/{printed_name(raw)} {verb}ed"))


def _gpu_of(api: Api, worker: str, gpu: str) -> Json:
    """A worker's GPU, from its UUID, the first block of that, its index or WORKER:INDEX."""
    raws = api.items(path_of("gpus"), worker=worker)
    if not raws:
        api.get(path_of("workers", worker))  # raises where the worker does not exist
        raise NotFoundError(f"worker {worker!r} has no GPUs")
    uuids = printed_gpus(f"{worker}:{gpu}" if gpu.isdecimal() else gpu, raws) or printed_gpus(gpu, raws)
    if len(uuids) == 1:
        return next(raw for raw in raws if raw["name"] == uuids[0])
    if uuids:
        raise CliError(f"--gpu: {gpu!r} is not unique on {worker}: {', '.join(uuids)}; write the whole UUID")
    indexed = [raw for raw in raws if raw["status"].get("parent") is None]  # slices have no index
    known = ", ".join(f"{raw['status']['index']} ({raw['name']})" for raw in indexed)
    raise NotFoundError(f"--gpu: {gpu!r} is unknown on {worker}; it has {known}")
