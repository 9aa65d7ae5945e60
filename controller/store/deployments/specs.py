"""Stored specs of deployments, and the names in them under which requests address a deployment: each belongs to one."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from controller.store.core.database import Reader
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import FieldProblem, ManifestError, join_path

# Fields that the release before does not know, with their defaults. Stored without these a spec can be read by its
# gateways and controllers, which run on during an upgrade.
_NEWER: Final = (
    ("placement", "strategy", "auto"),
    ("serving", "stream_usage", "auto"),
    ("serving", "apps", None),
)
_FEWEST: Final = 128  # a parsed spec takes some 14 KiB; parsing one anew, some 50 µs
_HOLDERS: Final = """
    select n.name as held, d.name, d.spec from model_names n join deployments d on d.uid = n.deployment_uid
     where n.name = any($1) or d.name = any($2)"""


class _ParsedSpecs:
    """Parses each spec once. Keeps about two of each deployment, since a rollout has an old one and a new one.

    With room for fewer than there are, a read of all would find none of them kept.
    """

    def __init__(self) -> None:
        self._resize(_FEWEST)

    def fit(self, deployments: int) -> None:
        """Follows the number of deployments. Begins anew where it has changed a lot."""
        wanted = max(_FEWEST, 2 * deployments)
        if not 0.75 * wanted <= self._size <= 2 * wanted:
            self._resize(wanted)

    def _resize(self, size: int) -> None:
        self._size = size
        self.parse: Callable[[bytes], DeploymentSpec] = lru_cache(maxsize=size)(_parse)


def _parse(raw: bytes) -> DeploymentSpec:
    return DeploymentSpec.model_validate(orjson.loads(raw))


_PARSED: Final = _ParsedSpecs()


def spec_from_json(value: Any) -> DeploymentSpec:
    """A stored spec; equal ones are parsed once."""
    return _PARSED.parse(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


def spec_to_json(spec: DeploymentSpec) -> dict[str, Any]:
    """A spec as it is stored; `spec_from_json` reads the same."""
    stored: dict[str, Any] = spec.model_dump(mode="json")
    for part, field, default in _NEWER:
        if stored[part][field] == default:
            del stored[part][field]
    return stored


def keep_specs_of(deployments: int) -> None:
    """Says how many deployments there are, so that the specs of all of them are kept."""
    _PARSED.fit(deployments)


def names_of(name: str, spec: DeploymentSpec) -> dict[str, str]:
    """Each name with the field that brings it.

    Raises:
        ManifestError: an alias or an adapter is named as the deployment.
    """
    fields = _fields(name, spec)
    if fields[name] != "name":
        raise ManifestError([FieldProblem(fields[name], _own(name))])
    return fields


async def change_names(connection: Any, uid: uuid.UUID, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Frees the names that a deployment no longer has, and gives it the new ones.

    Of two transactions that want one name, the second waits for the first. Two that swap names may wait for each other:
    the database then fails one of them.

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


async def problems_of_names(
    connection: Reader, deployments: Mapping[str, tuple[str, DeploymentSpec]]
) -> list[FieldProblem]:
    """Names that applies of these deployments, one after the other, would find taken.

    Args:
        connection: to read from.
        deployments: names and specs by their path in the request.
    """
    wanted = {name for own, spec in deployments.values() for name in _fields(own, spec)}
    rows = await connection.fetch(_HOLDERS, sorted(wanted), sorted({own for own, _ in deployments.values()}))
    holders = {row["held"]: (row["name"], row["spec"]) for row in rows}
    problems = []
    for path, (own, spec) in deployments.items():
        fields = _fields(own, spec)
        holders = {name: holder for name, holder in holders.items() if holder[0] != own}
        problems += [
            FieldProblem(join_path(path, field), _told(name, *holders[name]) if name in holders else _own(name))
            for name, field in fields.items()
            if name in holders or (name == own and field != "name")
        ]
        holders |= dict.fromkeys(fields.keys() - holders.keys(), (own, spec.model_dump(mode="json")))
    return problems


async def _taken(connection: Any, name: str, fields: Mapping[str, str]) -> ManifestError:
    (row,) = await connection.fetch(_HOLDERS, [name], []) or (None,)
    told = f"{name!r} was taken a moment ago; apply again" if row is None else _told(name, row["name"], row["spec"])
    return ManifestError([FieldProblem(fields[name], told)])


def _fields(name: str, spec: DeploymentSpec) -> dict[str, str]:
    serving = spec.serving
    fields = dict.fromkeys(serving.adapters, "serving.adapters") | dict.fromkeys(serving.aliases, "serving.aliases")
    return {name: "name"} | fields


def _own(name: str) -> str:
    return f"{name!r} is the deployment's own name; remove it"


def _told(name: str, holder: str, spec: Mapping[str, Any]) -> str:
    serving = spec.get("serving") or {}
    kinds = {"an alias": serving.get("aliases") or (), "an adapter": serving.get("adapters") or ()}
    kind = next((kind for kind, names in kinds.items() if name in names), "a name")
    return f"{name!r} is {kind} of deployment {holder!r} already; choose another one"
