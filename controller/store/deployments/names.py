"""The names under which requests ask for a deployment: its own, its aliases, its adapters. Each belongs to one."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import FieldProblem, ManifestError


def names_of(name: str, spec: DeploymentSpec) -> dict[str, str]:
    """Each name with the field that brings it.

    Raises:
        ManifestError: an alias or an adapter is named as the deployment.
    """
    serving = spec.serving
    fields = dict.fromkeys(serving.adapters, "serving.adapters") | dict.fromkeys(serving.aliases, "serving.aliases")
    if name in fields:
        raise ManifestError([FieldProblem(fields[name], f"{name!r} is the deployment's own name; remove it")])
    return {name: "name", **fields}


async def change_names(connection: Any, uid: uuid.UUID, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Frees the names that a deployment no longer has, and gives it the new ones.

    Of two transactions that want one name, the second waits for the first. Names are taken in their order, so that
    none waits in a circle.

    Raises:
        ManifestError: a name belongs to another deployment.
    """
    if freed := sorted(before.keys() - after.keys()):
        await connection.execute("delete from model_names where deployment_uid = $1 and name = any($2)", uid, freed)
    wanted = {name: after[name] for name in sorted(after.keys() - before.keys())}
    if wanted:
        held = await connection.fetch(
            """insert into model_names (name, deployment_uid) select name, $1 from unnest($2::text[]) name
               on conflict do nothing returning name""",
            uid,
            list(wanted),
        )
        await check_held(connection, wanted, (row["name"] for row in held))


async def check_held(connection: Any, wanted: Mapping[str, str], held: Iterable[str]) -> None:
    """Raises the error of the first name that was wanted, by its field, and not had.

    Raises:
        ManifestError: a name belongs to another deployment.
    """
    if taken := wanted.keys() - set(held):
        raise await _taken(connection, min(taken), wanted)


async def _taken(connection: Any, name: str, fields: Mapping[str, str]) -> ManifestError:
    row = await connection.fetchrow(
        "select d.name, d.spec from model_names n join deployments d on d.uid = n.deployment_uid where n.name = $1",
        name,
    )
    if row is None:  # it has just been freed
        return ManifestError([FieldProblem(fields[name], f"{name!r} was taken a moment ago; apply again")])
    serving = row["spec"].get("serving") or {}
    kinds = {
        "a name": [row["name"]],
        "an alias": serving.get("aliases") or [],
        "an adapter": serving.get("adapters") or {},
    }
    kind = next((kind for kind, names in kinds.items() if name in names), "a name")
    fix = f"{name!r} is {kind} of deployment {row['name']!r} already; choose another one"
    return ManifestError([FieldProblem(fields[name], fix)])
