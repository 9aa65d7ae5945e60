"""Stored specs, and the names in a deployment's under which requests address it: each belongs to one deployment."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from controller.store.core.database import Reader
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import PolicySpec
from schemas.manifest.problems import FieldProblem, ManifestError, join_path

# The path of each field in a spec (`*`: each item of a list or mapping), and its default, which is not stored. The
# release before does not know these fields or their defaults. Its gateways and controllers continue to run during an
# upgrade, and could not read a spec that names them. Those in `utilization_policy` hold for stored policies, too.
NEWER_FIELDS: Final[Mapping[str, Any]] = {
    "placement.strategy": "auto",  # the release before knows `pack` and `spread`
    "serving.stream_usage": "auto",
    "serving.apps": None,
}
_FEWEST: Final = 128  # a parsed spec takes some 14 KiB, parsing it again some 50 µs
_HOLDERS: Final = """
    select n.name as held, d.name, d.spec from model_names n join deployments d on d.uid = n.deployment_uid
     where n.name = any($1) or d.name = any($2)"""


class _ParsedSpecs:
    """Parses each spec once, and keeps about two of each deployment: the old and the new one of a rollout.

    If it kept fewer than there are, a read of all would find none of them.
    """

    def __init__(self) -> None:
        self._resize(_FEWEST)

    def fit(self, deployments: int) -> None:
        """Adapts to the number of deployments; drops all specs where it has changed a lot."""
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
    return _without_newer(spec.model_dump(mode="json"))


def policy_to_json(spec: PolicySpec) -> dict[str, Any]:
    """The stored spec; `default` is a column."""
    inline = {"utilization_policy": spec.model_dump(mode="json", exclude={"default"})}
    stored: dict[str, Any] = _without_newer(inline)["utilization_policy"]
    return stored


def _without_newer(stored: dict[str, Any]) -> dict[str, Any]:
    for path, default in NEWER_FIELDS.items():
        leave_out(stored, path, default)
    return stored


def leave_out(stored: Any, path: str, default: Any) -> None:
    """Removes the field at this path of a stored spec, if it has its default there."""
    name, _, rest = path.partition(".")
    if name == "*":
        for item in stored.values() if isinstance(stored, dict) else stored:
            leave_out(item, rest, default)
    elif isinstance(stored, dict) and name in stored:
        if rest:
            leave_out(stored[name], rest, default)
        elif stored[name] == default:
            del stored[name]


def keep_specs_of(deployments: int) -> None:
    """Keeps the specs of this many deployments."""
    _PARSED.fit(deployments)


def names_of(name: str, spec: DeploymentSpec) -> dict[str, str]:
    """Each name with the field of the spec that has it.

    Raises:
        ManifestError: an alias or an adapter is named as the deployment.
    """
    fields = _fields(name, spec)
    if fields[name] != "name":
        raise ManifestError([FieldProblem(fields[name], _own(name))])
    return fields


async def change_names(connection: Any, uid: uuid.UUID, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Frees the names that a deployment no longer has, and takes the new ones.

    Of two transactions that want the same name, the second waits for the first. If two swap names, the database fails
    one of them.

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
    """Checks that all wanted names (each with its field) are held.

    Raises:
        ManifestError: a name belongs to another deployment.
    """
    if taken := wanted.keys() - set(held):
        raise await _name_taken(connection, min(taken), wanted)


async def problems_of_names(
    connection: Reader, deployments: Mapping[str, tuple[str, DeploymentSpec]]
) -> list[FieldProblem]:
    """Problems with names if these deployments (names and specs by path in the request) were applied in their order."""
    wanted = {name for own, spec in deployments.values() for name in _fields(own, spec)}
    rows = await connection.fetch(_HOLDERS, sorted(wanted), sorted({own for own, _ in deployments.values()}))
    holders = {row["held"]: (row["name"], row["spec"]) for row in rows}
    problems = []
    for path, (own, spec) in deployments.items():
        fields = _fields(own, spec)
        holders = {name: holder for name, holder in holders.items() if holder[0] != own}
        problems += [
            FieldProblem(join_path(path, field), _taken(name, *holders[name]) if name in holders else _own(name))
            for name, field in fields.items()
            if name in holders or (name == own and field != "name")
        ]
        stored = {"serving": {"aliases": spec.serving.aliases, "adapters": spec.serving.adapters}}
        holders |= dict.fromkeys(fields.keys() - holders.keys(), (own, stored))
    return problems


async def _name_taken(connection: Any, name: str, fields: Mapping[str, str]) -> ManifestError:
    (row,) = await connection.fetch(_HOLDERS, [name], []) or (None,)
    text = f"{name!r} was taken a moment ago; apply again" if row is None else _taken(name, row["name"], row["spec"])
    return ManifestError([FieldProblem(fields[name], text)])


def _fields(name: str, spec: DeploymentSpec) -> dict[str, str]:
    serving = spec.serving
    fields = dict.fromkeys(serving.adapters, "serving.adapters") | dict.fromkeys(serving.aliases, "serving.aliases")
    return {name: "name"} | fields


def _own(name: str) -> str:
    return f"{name!r} is the deployment's own name; remove it"


def _taken(name: str, holder: str, spec: Mapping[str, Any]) -> str:
    serving = spec.get("serving") or {}
    kinds = {"an alias": serving.get("aliases") or (), "an adapter": serving.get("adapters") or ()}
    kind = next((kind for kind, names in kinds.items() if name in names), "a name")
    return f"{name!r} is {kind} of deployment {holder!r} already; choose another one"
