"""Runs given tests, in their order, with one module replaced by a mutant.

Ends with pytest's exit code, or by SIGXCPU once it has used the CPU time that it was given. A test that waits forever
fails after `_HANGS_S`; a loaded machine does not slow any test down that far.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from mutants import mutated

_HANGS_S = 600


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compile(mutated(Path(self.path).read_text(encoding="utf-8"), self._number), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, path: str, number: int) -> None:
        self._path, self._number = path, number
        self._name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        where = str(Path.cwd() / self._path)
        return importlib.util.spec_from_file_location(fullname, where, loader=_Loader(fullname, where, self._number))


class _Chosen:
    def __init__(self, tests: list[str]) -> None:
        self._order = {test: at for at, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the chosen tests, nearest first."""
        kept = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(kept, key=lambda item: self._order[item.nodeid])


def main() -> int:
    """Runs the command."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_s"], order["cpu_s"] + 9))  # then SIGKILL
    sys.path.insert(0, str(Path.cwd()))
    sys.meta_path.insert(0, _Finder(order["path"], order["number"]))
    files = list(dict.fromkeys(test.partition("::")[0] for test in order["tests"]))
    flags = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"]
    flags.append(f"--timeout={_HANGS_S}")
    return int(pytest.main([*files, *flags], plugins=[_Chosen(order["tests"])]))


if __name__ == "__main__":
    sys.exit(main())
