"""Each bound in the code has a row in SECURITY.md: which principal it holds for, what it may cost, and where."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "controller", "gateway", "http1", "schemas")  # `cli` runs for its user alone
# How a constant, an attribute or a default that bounds the cost of a caller is named.
WORDS: Final = (
    "MAX|MOST|BURST|LIMITS?|SHARES?|PACE|BUDGETS?|RATE|QUOTA|TRIES|KEPT|DEPTH|SLOTS|AT_ONCE|PER_S|PER_MINUTE|A_MINUTE"
)
FORM: Final = re.compile(rf"_?(\w+_)?({WORDS})(_\w+)?", re.IGNORECASE)
# The deadline of an await: that each has one is a rule of its own.
DEADLINE: Final = re.compile(r"\w*(LIMIT|RATE|KEPT|MOST)_S", re.IGNORECASE)
SIZES: Final = frozenset({"maxsize", "maxlen", "max_size", "max_msg_size"})  # keywords of calls
NO_BOUNDS: Final = {
    "agent/processes/lifecycle.py": {"_REQUESTS_SHARE", "maxlen"},  # how a drain's time is divided; two readings
    "controller/decide/disk_pressure.py": {"_LEAST_SHARE"},  # the least free space
    "controller/domain/restart_delays.py": {"blameless_at_once"},  # ends of an instance, which GPUs of its own bound
    "controller/domain/rollouts.py": {"kept"},  # what a rollout reports
    "controller/domain/scaling.py": {"most"},  # of the manifest
    "controller/live/gpu_feed.py": {"_SHARE_OF_ALL"},  # the shorter of two forms
    "controller/runtime/queue.py": {"limit"},  # of one batch
    "controller/store/embedded/layout.py": {"_SOCKET_PATH_LIMIT"},  # the kernel's
    "controller/store/workers/heartbeats.py": {"FOREIGN_FLOOR_SHARE"},  # below it memory is noise
    "gateway/queueing/demand.py": {"maxlen"},  # one figure a second of a window
}
NAMED: Final = frozenset(re.findall(r"`([\w./]+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8")))


def bounds(source: str) -> Iterator[str]:
    """The names of bounds: constants, attributes of classes, defaults of parameters, sizes in calls."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body):
                yield from (name for name, value in assigned(body) if is_bound(name, value))
            case ast.FunctionDef(args=given) | ast.AsyncFunctionDef(args=given):
                positional = [*given.posonlyargs, *given.args]
                with_default = positional[len(positional) - len(given.defaults) :]
                defaults = [*zip(with_default, given.defaults, strict=True)]
                defaults += [
                    (arg, value) for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value
                ]
                yield from (arg.arg for arg, value in defaults if is_bound(arg.arg, value))
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                if called == "Semaphore" and any(map(has_number, node.args)):
                    yield called
                yield from (word.arg for word in node.keywords if word.arg in SIZES and has_number(word.value))
            case _:
                pass


def assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for statement in body:
        match statement:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                | ast.Assign(targets=[ast.Name(id=name)], value=value)
            ):
                yield name, value
            case _:
                pass


def is_bound(name: str, value: ast.expr) -> bool:
    """A number, or a computed one. A set of members is none."""
    plain = not any(isinstance(part, ast.Set) for part in ast.walk(value))
    return bool(FORM.fullmatch(name)) and not DEADLINE.fullmatch(name) and has_number(value) and plain


def has_number(value: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) and type(part.value) in {int, float} for part in ast.walk(value))


def has_row(module: str) -> bool:
    folders = [f"{folder}/" for folder in Path(module).parents if len(folder.parts) > 1]  # no package as a whole
    return module in NAMED or any(folder in NAMED for folder in folders)


def test_every_module_with_a_bound_is_named() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    names = {file.relative_to(ROOT).as_posix(): set(bounds(file.read_text(encoding="utf-8"))) for file in files}
    assert sum(map(len, names.values())) > 350, "the form finds them"
    assert {module: no for module, no in NO_BOUNDS.items() if not no <= names.get(module, set())} == {}, "gone"
    of_callers = {module: names[module] - NO_BOUNDS.get(module, set()) for module in names}
    missing = {module: bound for module, bound in of_callers.items() if bound and not has_row(module)}
    assert missing == {}, "write a row in SECURITY.md: who may cause it, what it may cost, and this module"


def test_every_module_that_is_named_exists() -> None:
    named = [name for name in sorted(NAMED) if name.split("/")[0] in PACKAGES and "/" in name]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "source",
    [
        "_MOST: Final = 3",
        "READS_PER_S = 2.0",
        "X_A_MINUTE = 9",
        "_AGENT_LIMIT: Final = aiohttp.ClientTimeout(total=25.0)",
        "_STRANGERS_SHARE: Final = 2",
        "class Settings:\n    max_keys: int = 1_000",
        "def read(most_bytes=65_536): ...",
        "async def read(*, at_once=4): ...",
        "free = asyncio.Semaphore(8)",
        "latest = deque(maxlen=100)",
    ],
)
def test_the_form_finds_a_bound(source: str) -> None:
    assert len(list(bounds(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "FILES_AT_ONCE: int",
        "ALMOST = 1",
        "_AT_ONCE = {1}",
        "READ_LIMIT_S = 2.0",
        "_HOLD_LIMIT = 'set local x'",
        "pace = x",
    ],
)
def test_the_form_finds_nothing_else(source: str) -> None:
    assert list(bounds(source)) == []
