"""Names of workers and GPUs in manifests, checked against what is known: warnings, and refusals of ambiguous ones."""

from collections.abc import Mapping
from typing import Final

from controller.api.errors import invalid
from controller.engines.base import SpecError
from controller.store.core.database import Reader
from controller.store.placement.plan_reads import named_devices
from schemas.manifest.deployment import DeploymentManifest, DeploymentSpec
from schemas.manifest.problems import FieldProblem, join_path

_MOST_WARNINGS: Final = 20


async def warnings_of(connection: Reader, manifests: Mapping[str, DeploymentManifest]) -> list[str]:
    """The warnings about all manifests, given by their path in the request. Each begins with the deployment's name.

    Raises:
        ApiError: 400, names every field with an ambiguous name.
    """
    found: list[str] = []
    problems: list[FieldProblem] = []
    for path, manifest in manifests.items():
        try:
            found += await placement_warnings(connection, manifest.spec(), manifest.name)
        except SpecError as error:
            field, _, message = str(error).partition(": ")
            problems.append(FieldProblem(join_path(path, field), message))
    if problems:
        raise invalid(problems)
    return found


async def placement_warnings(connection: Reader, spec: DeploymentSpec, name: str = "") -> list[str]:
    """Warns of names that mean no worker and no GPU now. `name` is the deployment's, where several are checked.

    Raises:
        SpecError: a name means several GPUs; the message has their UUIDs.
    """
    placement = spec.placement
    if not placement.workers and not placement.gpus:
        return []
    known = await named_devices(connection, placement.workers, placement.gpus)
    for gpu, meant in known.gpus.items():
        if len(meant) > 1:
            choice = " or ".join(f"{uuid} ({vendor})" for uuid, vendor in meant)
            raise SpecError(f"placement.gpus: {gpu} means {choice}; write the UUID")
    all_gpus = spec.takes_all_named_gpus
    unknown = [
        *((f"placement.workers: unknown worker {one}", placement.all_of) for one in dict.fromkeys(placement.workers)
          if one not in known.workers),
        *((f"placement.gpus: unknown GPU {one}", all_gpus) for one in placement.gpus if one not in known.gpus),
    ]  # fmt: skip
    lines = [
        f"{name}: {text}; {'instances stay pending without it' if needed else 'the others are used'}".removeprefix(": ")
        for text, needed in unknown
    ]
    more = len(lines) - _MOST_WARNINGS
    return lines if more <= 0 else [*lines[:_MOST_WARNINGS], f"{name}: {more} more unknown names".removeprefix(": ")]
