"""Verbs that change deployments and policies: apply, plan, scale, stop, start, delete."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.answers import Json, parse, path_of
from cli.errors import CliError, UsageError
from cli.explained import layout_line, one_line
from cli.figures import gib, or_nothing, short_gpus
from cli.idleness import rule_of
from cli.kinds import DEPLOYMENTS, POLICIES, WORKERS, kind_named
from cli.output import Format, print_data, print_table
from cli.verb import OutputOption, TimeoutOption, run
from cli.waiting import Narrator, Target, until_gone, until_running
from schemas.api.deployments import DeploymentView
from schemas.api.plan import PlanView
from schemas.api.policies import PlannedPolicy
from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import Manifest, parse_manifests
from schemas.manifest.policy import PolicyManifest
from schemas.manifest.problems import ManifestError

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
_STDIN: Final = "-"
_DEFAULT_TIMEOUT_S: Final = 600.0
FileOption = Annotated[str, typer.Option("--file", "-f", help="A manifest, YAML or JSON; `-` reads stdin.")]
NameArgument = Annotated[str, typer.Argument(help="The deployment's name.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it is done, and tell the progress.")]


@app.command()
def apply(
    ctx: typer.Context, file: FileOption, wait: WaitOption = False, timeout_s: TimeoutOption = _DEFAULT_TIMEOUT_S
) -> None:
    """Make policies and deployments as a file says. An unchanged file changes nothing."""

    async def work(api: "Api") -> None:
        manifests = read_manifests(file)
        for policy in policies_in_order(manifests):
            await _apply_policy(api, policy)
        targets = [await _apply_one(api, one) for one in manifests if isinstance(one, DeploymentManifest)]
        if wait:
            await until_running(api, targets, timeout_s, Narrator())

    run(ctx, work)


@app.command()
def plan(ctx: typer.Context, file: FileOption, output: OutputOption = Format.TABLE) -> None:
    """Show where deployments would go and which policy would apply; change nothing. Ends with 1 if some do not fit."""

    async def work(api: "Api") -> None:
        manifests = [manifest_as_json(manifest) for manifest in read_manifests(file)]
        raw = await api.post(path_of("plan"), {"manifests": manifests})
        view = parse(PlanView, raw)
        if output.for_programs:
            print_data(raw, output)
        else:
            _print_plan(view)
        misfits = sum(not item.fits and not item.preempts for item in view.items)
        if misfits:
            raise CliError(f"{misfits} of {len(view.items)} instances would have to wait")

    run(ctx, work)


@app.command()
def scale(
    ctx: typer.Context,
    name: NameArgument,
    replicas: Annotated[int, typer.Argument(min=0, help="How many instances are wanted.")],
) -> None:
    """Change the number of replicas."""

    async def work(api: "Api") -> None:
        await api.post(path_of("deployments", name, "scale"), {"replicas": replicas})
        print(f"deployment/{name} scaled to {replicas}")

    run(ctx, work)


@app.command()
def stop(ctx: typer.Context, name: NameArgument) -> None:
    """Stop a deployment. It stays stopped until `start` or a changed apply."""

    async def work(api: "Api") -> None:
        await api.post(path_of("deployments", name, "stop"))
        print(f"deployment/{name} stopped")

    run(ctx, work)


@app.command()
def start(ctx: typer.Context, name: NameArgument) -> None:
    """Start a deployment that was stopped."""

    async def work(api: "Api") -> None:
        await api.post(path_of("deployments", name, "start"))
        print(f"deployment/{name} started")

    run(ctx, work)


@app.command()
def delete(
    ctx: typer.Context,
    words: Annotated[
        list[str], typer.Argument(metavar="[KIND] NAME", help="deployment (the default), policy or worker.")
    ],
    wait: WaitOption = False,
    timeout_s: TimeoutOption = _DEFAULT_TIMEOUT_S,
    confirm_dead: Annotated[
        bool, typer.Option("--confirm-dead", help="Workers: you know that nothing runs there any more.")
    ] = False,
) -> None:
    """Delete a deployment, a policy or a worker."""

    async def work(api: "Api") -> None:
        if len(words) not in (1, 2):
            raise UsageError("write `gpuward delete NAME` or `gpuward delete KIND NAME`")
        kind = kind_named(words[0], (DEPLOYMENTS, POLICIES, WORKERS)) if len(words) > 1 else DEPLOYMENTS
        if confirm_dead and kind is not WORKERS:
            raise UsageError("--confirm-dead goes with `gpuward delete worker NAME` only")
        path = path_of(kind.path, words[-1])
        uid = (await api.get(path))["uid"] if wait else ""
        await api.delete(path, confirm_dead="true" if confirm_dead else None)
        if wait:
            await until_gone(api, path, words[-1], uid, timeout_s, Narrator())
        gone = wait or kind is POLICIES  # nothing of a policy has to end first
        print(f"{kind.singular}/{words[-1]} {'deleted' if gone else 'is being deleted'}")

    run(ctx, work)


def policies_in_order(manifests: list[Manifest]) -> list[PolicyManifest]:
    """The policies as they must be applied: one that gives up being the default before one that becomes it."""
    policies = [one for one in manifests if isinstance(one, PolicyManifest)]
    return sorted(policies, key=lambda policy: policy.default)


def read_manifests(file: str) -> list[Manifest]:
    """The policies and deployments of a file, or of stdin.

    Raises:
        UsageError: the file cannot be read.
        CliError: it holds no valid manifests; every problem is named with its path.
    """
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file: {file} cannot be read: {error}") from error
    try:
        return parse_manifests(text)
    except ManifestError as error:
        lines = [f"  {problem}" for problem in error.problems]
        raise CliError("\n".join([f"{file} is refused; nothing was changed:", *lines])) from error


async def _apply_policy(api: "Api", manifest: PolicyManifest) -> None:
    _, outcome = await api.apply(path_of("policies", manifest.name), _body(manifest))
    print(f"policy/{manifest.name} {outcome}", flush=True)


async def _apply_one(api: "Api", manifest: DeploymentManifest) -> Target:
    raw, outcome = await api.apply(path_of("deployments", manifest.name), _body(manifest))
    view = parse(DeploymentView, raw)
    print(f"deployment/{view.name} {outcome}", flush=True)
    return Target(view.name, view.uid, view.generation)


def _body(manifest: Manifest) -> Json:
    body = manifest_as_json(manifest)
    del body["kind"], body["name"]
    return body


def manifest_as_json(manifest: Manifest) -> Json:
    """What the user wrote, without defaults: those are the server's to choose."""
    written = manifest.model_dump(mode="json", exclude_unset=True)
    return {"kind": manifest.kind, "name": manifest.name, **written}


def _print_plan(view: PlanView) -> None:
    if view.policy_changes:
        policies = [[f"policy/{name}", change] for name, change in view.policy_changes.items()]
        print_table(["POLICY", "CHANGE"], policies, empty="")
        print()
    changes = [
        [f"deployment/{name}", change, _planned_policy(view.policies.get(name))]
        for name, change in view.changes.items()
    ]
    print_table(["DEPLOYMENT", "CHANGE", "POLICY"], changes, empty="no deployment would change")
    print()
    rows = []
    for item in view.items:
        why = one_line(item.explain) if item.explain is not None else layout_line(item.layout) if item.layout else ""
        memory = gib(item.memory_mib_per_gpu)
        where = ",".join(item.workers) or item.worker
        rows.append(
            [
                f"{item.deployment}#{item.instance}", "yes" if item.fits else "no", or_nothing(item.engine),
                or_nothing(where), short_gpus(item.gpus), memory, why,
            ]
        )  # fmt: skip
    titles = ["INSTANCE", "FITS", "ENGINE", "WORKER", "GPUS", "PER GPU", "WHY"]
    print_table(titles, rows, empty="no instance would be started")
    for name, advice in _advice(view).items():
        print(f"\n{name}:", *(f"  {line}" for line in advice), sep="\n")


def _advice(view: PlanView) -> dict[str, list[str]]:
    """What would make a deployment's instances fit, once for each."""
    return {i.deployment: i.explain.advice for i in view.items if i.explain is not None and i.explain.advice}


def _planned_policy(policy: PlannedPolicy | None) -> str:
    return "none" if policy is None else f"{policy.name or 'inline'}: {rule_of(policy.spec)}"
