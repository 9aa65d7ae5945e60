"""Applies of several manifests in one transaction: all of them, or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import asyncpg
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from controller.store.core.database import Database
from controller.store.core.refusals import Changed, ChangedMeanwhileError
from controller.store.deployments.apply import ApplyOutcome, Judge, apply_on
from controller.store.policies.apply import apply_policy_on
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import PolicySpec
from schemas.manifest.problems import FieldProblem, ManifestError, join_path

Kind = Literal["policy", "deployment"]
# What does not exist has no row to lock: two applies that create the same objects in different orders would each wait
# for the other. So applies of several objects go one after the other.
_ONE_AT_A_TIME: Final = "select pg_advisory_xact_lock(hashtext('gpuward.apply_all'))"
# In the order of locks (`core/guards.py`), each by key.
_PRESENT: Final[Mapping[Kind, str]] = {
    "deployment": """select name, generation from deployments where name = any($1) and deleted_at is null
                      order by uid for no key update""",
    "policy": "select name, generation from policies where name = any($1) order by uid for no key update",
}


@dataclass(frozen=True, slots=True)
class Document:
    """One manifest of a request.

    Attributes:
        path: in the request.
        name: of the object.
        spec: the engine's checks have passed.
        input_hash: of what the analysis of a deployment reads.
    """

    path: str
    name: str
    spec: DeploymentSpec | PolicySpec
    input_hash: str = ""

    @property
    def kind(self) -> Kind:
        """Of the object."""
        return "policy" if isinstance(self.spec, PolicySpec) else "deployment"


@dataclass(frozen=True, slots=True)
class AppliedDocument:
    """What an apply did with one manifest."""

    kind: Kind
    name: str
    uid: str
    generation: int
    outcome: ApplyOutcome


Expected = Mapping[Kind, Mapping[str, int]]  # generations by name; 0: it does not exist


# As for a single deployment: a name that another transaction took meanwhile is found by the next attempt.
@retry(
    retry=retry_if_exception_type((asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError)),
    stop=stop_after_attempt(3),
    reraise=True,
)
async def apply_all(
    database: Database, documents: Sequence[Document], expected: Expected, *, longest_window_s: float, judge: Judge
) -> list[AppliedDocument]:
    """Applies policies first, a new default one last, then deployments in their order.

    Args:
        database: where.
        documents: of different objects.
        expected: the generations at which objects must be, also such as no document is of.
        longest_window_s: how long samples are kept, which bounds a policy's window.
        judge: as of a single deployment.

    Raises:
        ChangedMeanwhileError: objects are at other generations; names all of them.
        ManifestError: as of a single apply; its paths are those in the request.
    """
    async with database.transaction() as connection:
        if len(documents) > 1:
            await connection.execute(_ONE_AT_A_TIME)
        await _check_expected(connection, documents, expected)
        done: list[AppliedDocument] = []
        for one in sorted(documents, key=_order):
            try:
                done.append(await _apply(connection, one, longest_window_s, judge))
            except ManifestError as error:
                raise ManifestError([_within(one.path, each) for each in error.problems]) from error
        return done


def _order(document: Document) -> int:
    if isinstance(document.spec, PolicySpec):
        return int(document.spec.default)
    return 2


def _within(path: str, problem: FieldProblem) -> FieldProblem:
    return FieldProblem(join_path(path, problem.path) if problem.path else path, problem.message)


async def _check_expected(connection: Any, documents: Sequence[Document], expected: Expected) -> None:
    """Locks the objects that exist, and compares their generations."""
    changed: list[Changed] = []
    for kind, query in _PRESENT.items():
        wanted = expected.get(kind, {})
        names = {one.name for one in documents if one.kind == kind} | wanted.keys()
        present = {row["name"]: row["generation"] for row in await connection.fetch(query, sorted(names))}
        changed += [
            Changed(kind, name, generation, present.get(name, 0))
            for name, generation in wanted.items()
            if present.get(name, 0) != generation
        ]
    if changed:
        raise ChangedMeanwhileError(changed)


async def _apply(connection: Any, one: Document, longest_window_s: float, judge: Judge) -> AppliedDocument:
    if isinstance(one.spec, DeploymentSpec):
        written = await apply_on(
            connection, one.name, one.spec, input_hash=one.input_hash, if_match=None,
            longest_window_s=longest_window_s, judge=judge,
        )  # fmt: skip
        return AppliedDocument("deployment", one.name, *written)
    outcome = await apply_policy_on(connection, one.name, one.spec, if_match=None, longest_window_s=longest_window_s)
    row = await connection.fetchrow("select uid, generation from policies where name = $1", one.name)
    return AppliedDocument("policy", one.name, str(row["uid"]), row["generation"], outcome)
