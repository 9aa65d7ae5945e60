"""The names under which requests ask for a deployment: its own, its aliases, its adapters. Each belongs to one."""

import uuid
from typing import Any

from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import FieldProblem, ManifestError


async def hold_names(
    connection: Any, uid: uuid.UUID, name: str, spec: DeploymentSpec, before: DeploymentSpec | None = None
) -> None:
    """Gives the deployment its names, and frees those that it no longer has.

    Of two transactions that want one name, the second waits for the first. Names have one order, so that none waits
    in a circle.

    Raises:
        ManifestError: a name belongs to another deployment, or an alias or adapter is named as the deployment.
    """
    names = _kinds(name, spec)
    old = {} if before is None else _kinds(name, before)
    if freed := sorted(old.keys() - names.keys()):
        await connection.execute("delete from model_names where deployment_uid = $1 and name = any($2)", uid, freed)
    if not (wanted := sorted(names.keys() - old.keys())):
        return
    held = await connection.fetch(
        """insert into model_names (name, deployment_uid) select name, $1 from unnest($2::text[]) name
           on conflict do nothing returning name""",
        uid,
        wanted,
    )
    if taken := set(wanted) - {row["name"] for row in held}:
        raise await _taken(connection, min(taken), names)


def _kinds(name: str, spec: DeploymentSpec) -> dict[str, str]:
    """Each name with the field that brings it."""
    serving = spec.serving
    fields = dict.fromkeys(serving.adapters, "serving.adapters") | dict.fromkeys(serving.aliases, "serving.aliases")
    if name in fields:
        raise ManifestError([FieldProblem(fields[name], f"{name!r} is the deployment's own name; remove it")])
    return {name: "name", **fields}


async def _taken(connection: Any, name: str, fields: dict[str, str]) -> ManifestError:
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
