"""Draws mutants of pure rooms, and runs the unit and property tests that reach each one.

A mutant is killed where a test fails, cannot be collected, or takes far more CPU time than without it: the load of the
machine kills none. The command prints the mutants that survive, and fails where fewer than nine of ten were killed.
SURVIVORS.md gives the reason for each known survivor.

    .venv/bin/python tests/mutation/mutate.py --seed 7 --count 400 controller/decide controller/scheduling
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path

from mutants import Mutant, mutants

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_TESTS = ("tests/unit", "tests/property")
_SECONDS_OF_TESTS = 60.0  # a mutant that lives gets the tests nearest to it, up to this long
_START_S = 30.0  # of CPU time: an interpreter with all imports
_STARVED = 10  # times its CPU time: so long a mutant may take on a loaded machine before it is given up
_LEAST_KILLED = 0.9
_KILLED = ("killed", "late")


@dataclass(frozen=True)
class Tests:
    """Passed tests with their seconds, by the functions that they enter."""

    seconds: dict[str, float]
    breadth: dict[str, int]  # functions that a test enters
    of_function: dict[str, set[str]]

    def nearest(self, mutant: Mutant) -> list[str]:
        """Tests that enter the mutant's function, those of fewest other functions first."""
        if mutant.function:
            key = f"{mutant.path}:{mutant.function}"
            reaching = self.of_function.get(key) or self._within(key.rpartition(".")[0] + ".")
        else:
            reaching = self._within(f"{mutant.path}:")
        ordered = sorted(reaching, key=lambda test: (self.breadth[test], self.seconds[test], test))
        chosen, total = [], 0.0
        for test in ordered:
            total += self.seconds[test]
            if total > _SECONDS_OF_TESTS and chosen:
                break
            chosen.append(test)
        return chosen

    def _within(self, prefix: str) -> set[str]:
        return set().union(*(tests for name, tests in self.of_function.items() if name.startswith(prefix)))


def trace(rooms: Sequence[str], jobs: int) -> Tests:
    """Runs all tests once without a mutant."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "GPUWARD_MUTATION_REACHED": folder,
            "GPUWARD_MUTATION_ROOMS": " ".join(rooms),
            "PYTHONPATH": str(_HERE),
        }
        subprocess.run(  # a failed test is left out
            [sys.executable, "-m", "pytest", *_TESTS, "-p", "reached", "-q", "-n", str(jobs), "--dist", "loadfile"],
            cwd=_ROOT,
            env=environment,
            check=False,
        )
        seconds: dict[str, float] = {}
        breadth: dict[str, int] = {}
        of_function = defaultdict(set)
        for part in Path(folder).glob("*.json"):
            for test, (took, names) in json.loads(part.read_text()).items():
                seconds[test], breadth[test] = took, len(names)
                for name in names:
                    of_function[name].add(test)
        return Tests(seconds, breadth, dict(of_function))


def drawn(rooms: Iterable[str], seed: int, count: int) -> list[Mutant]:
    """The mutants of this seed. A change of the code changes the draw only for the mutants that come or go with it."""
    every = [
        mutant
        for room in rooms
        for path in sorted((_ROOT / room).rglob("*.py"))
        for mutant in mutants(str(path.relative_to(_ROOT)), path.read_text(encoding="utf-8"))
    ]
    print(f"{len(every)} mutants in {', '.join(rooms)}; {min(count, len(every))} drawn with seed {seed}", flush=True)
    alike: Counter[str] = Counter()

    def lot(mutant: Mutant) -> bytes:
        name = f"{mutant.path}:{mutant.function}:{mutant.before}:{mutant.after}"
        alike[name] += 1
        return sha256(f"{seed}:{name}:{alike[name]}".encode()).digest()

    return sorted(every, key=lot)[:count]


def verdict(mutant: Mutant, tests: Tests) -> str:
    """`killed`, `late` (killed by its CPU time), `survived`, `unreached`, or `starved` (none of them in time)."""
    nearest = tests.nearest(mutant)
    if not nearest:
        return "unreached"
    cpu_s = _START_S + 5 * sum(tests.seconds[test] for test in nearest)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as order, tempfile.TemporaryFile() as output:
        json.dump({"path": mutant.path, "number": mutant.number, "tests": nearest, "cpu_s": ceil(cpu_s)}, order)
        order.flush()
        child = subprocess.Popen(
            [sys.executable, str(_HERE / "one_mutant.py"), order.name],
            cwd=_ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=_STARVED * cpu_s)
        except subprocess.TimeoutExpired:
            return "starved"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if code == -signal.SIGXCPU:
            return "late"
        if code not in {0, 1, 2}:  # passed, failed, not collected: see pytest.ExitCode
            output.seek(0)
            raise RuntimeError(f"pytest ended with {code}: {output.read()[-2000:].decode(errors='replace')}")
        return "killed" if code else "survived"


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="+", help="folders of modules, from the root")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    chosen = drawn(options.rooms, options.seed, options.count)
    tests = trace(options.rooms, options.jobs)
    print(f"{len(tests.seconds)} tests enter these rooms; traced after {time.monotonic() - started:.0f} s", flush=True)
    found: dict[str, list[Mutant]] = defaultdict(list)
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, what in zip(chosen, pool.map(lambda mutant: verdict(mutant, tests), chosen), strict=True):
            found[what].append(mutant)
            if what not in _KILLED:
                where = f"{mutant.path}:{mutant.line} {mutant.function}"
                print(f"{what}: {where}\n    {mutant.before}\n    {mutant.after}", flush=True)
    for room in options.rooms:
        of_room = {what: [m for m in some if m.path.startswith(f"{room}/")] for what, some in found.items()}
        print(f"{room}: {_figures(of_room)}")
    print(f"all: {_figures(found)}, in {time.monotonic() - started:.0f} s")
    return 0 if _share_killed(found) >= _LEAST_KILLED else 1


def _share_killed(found: Mapping[str, Sequence[Mutant]]) -> float:
    total = sum(len(some) for some in found.values())
    return sum(len(found.get(what, ())) for what in _KILLED) / total if total else 1.0


def _figures(found: Mapping[str, Sequence[Mutant]]) -> str:
    total = sum(len(some) for some in found.values())
    each = ", ".join(f"{what} {len(some)}" for what, some in sorted(found.items()) if some)
    return f"{_share_killed(found):.1%} of {total} mutants killed ({each})"


if __name__ == "__main__":
    sys.exit(main())
