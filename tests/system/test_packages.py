"""What is published: the sdist, the wheel, and the wheel built from the sdist, as each of the three installs finds it.

Nothing is fetched. The locked hatchling builds without isolation and installs without dependencies into an empty
environment. Its dependencies come from the environment of the tests, and only those that the metadata of the wheel
names for the chosen extras can be imported, with what they require themselves. So the tests show that each install
declares all that it imports. Whether a registry still holds those versions is what `make setup` shows.
"""

import importlib.metadata
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cli.local.asset_files import asset_files
from schemas.version import __version__
from support.built_wheel import install, python

ROOT = Path(__file__).parents[2]
CONTROLLER = ("controller.daemon", "gateway.daemon")  # what one extra is for
ASSETS = "cli/assets/"
PACKAGES = {"controller", "gateway", "agent", "http1", "schemas", "cli"}
COMPILED = {".pyc"}
# Lends the packages of the tests' environment, but for those that this installation would not have brought.
GUARD = """
import sys
MISSING = {missing!r}
class Guard:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Guard)
sys.path.append({site!r})
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, the wheel of the sources, and the wheel of the sdist in `again/`."""
    folder = tmp_path_factory.mktemp("dist")
    sources = _copied(tmp_path_factory.mktemp("sources"))
    python("-m", "hatchling", "build", "-d", str(folder), cwd=sources)
    (sdist,) = folder.glob("*.tar.gz")
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none yet
        archive.extractall(unpacked)  # noqa: S202 - it is our own
    (inside,) = unpacked.iterdir()
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "again"), cwd=inside)
    return folder


def _copied(folder: Path) -> Path:
    """The sources without what is not theirs: what git ignores, such as environments."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode:  # a source archive holds nothing else
        return ROOT
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def test_the_sdist_holds_no_packages_of_node_js(tmp_path: Path) -> None:
    """Of a folder in which `make ui` has run."""
    sources = tmp_path / "sources"
    for name in (".gitignore", "pyproject.toml", "README.md", "LICENSE", "schemas/version.py", "ui/.gitignore"):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_bytes((ROOT / name).read_bytes())
    package = sources / "ui" / "node_modules" / "vite" / "index.js"
    package.parent.mkdir(parents=True)
    package.touch()
    (package.parents[2] / "main.tsx").touch()
    python("-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=sources)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/ui/")[2] for name in archive.getnames() if "/ui/" in name}
    assert held == {".gitignore", "main.tsx"}


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_packages_and_the_assets_and_the_sdist_gives_the_same_one(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    held = _contents(wheel)
    assert {name.split("/")[0] for name in held} == {*PACKAGES, "gpuward.py", f"gpuward-{__version__}.dist-info"}
    for package in PACKAGES:
        mine = {
            str(f.relative_to(ROOT)) for f in (ROOT / package).rglob("*") if f.is_file() and f.suffix not in COMPILED
        }
        assert mine == {name for name in held if name.startswith(f"{package}/") and not name.startswith(ASSETS)}
    assert "controller/dashboard/files/index.html" in held
    sources = asset_files(ROOT)
    assert {name.removeprefix(ASSETS): held[name] for name in held if name.startswith(ASSETS)} == {
        name: file.read_bytes() for name, file in sources.items()
    }
    (again,) = (dist / "again").glob("*.whl")
    assert _contents(again) == held


def _modules_without(names: set[str]) -> set[str]:
    """The top-level modules that none of these distributions brings."""
    owners = importlib.metadata.packages_distributions()
    return {module for module, held_by in owners.items() if not {canonicalize_name(n) for n in held_by} & names}


def _required(requirements: Iterable[str], extras: Iterable[str], seen: set[tuple[str, str]]) -> None:
    """Adds every distribution that these requirements reach, with the extra that reaches it."""
    for text in requirements:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        name = canonicalize_name(requirement.name)
        new = {(name, extra) for extra in ("", *requirement.extras)} - seen
        seen |= new
        if new:
            _required(importlib.metadata.requires(name) or (), requirement.extras, seen)


@pytest.mark.parametrize(
    ("extras", "starts", "lacks"),
    [
        pytest.param((), (), (*CONTROLLER, "agent.daemon"), id="bare", marks=pytest.mark.cases),
        pytest.param(("agent",), ("agent.daemon",), CONTROLLER, id="agent", marks=pytest.mark.cases),
        pytest.param(("controller",), CONTROLLER, (), id="controller"),
    ],
)
def test_installed_into_an_empty_environment(
    dist: Path, tmp_path: Path, extras: tuple[str, ...], starts: tuple[str, ...], lacks: tuple[str, ...]
) -> None:
    (wheel,) = dist.glob("*.whl")
    home = tmp_path / "env"
    install(home, wheel)
    (site,) = (home / "lib").glob("python3*/site-packages")
    metadata = next(site.glob("gpuward-*.dist-info")) / "METADATA"
    requires = [line.partition(": ")[2] for line in metadata.read_text().splitlines() if line[:14] == "Requires-Dist:"]
    reached: set[tuple[str, str]] = set()
    _required(requires, extras, reached)
    missing = _modules_without({name for name, _ in reached}) - PACKAGES
    assert {"pytest", "mypy", "hypothesis"} <= missing
    (site / "gpuward_guard.py").write_text(GUARD.format(missing=missing, site=str(Path(pytest.__file__).parents[1])))
    (site / "gpuward_guard.pth").write_text("import gpuward_guard\n")

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)

    gpuward = str(home / "bin" / "gpuward")
    shown = run(gpuward, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "apply" in shown.stdout
    assert __version__ in run(gpuward, "version").stdout
    written = run(gpuward, "assets", str(tmp_path / "assets"))
    assert (written.returncode, written.stderr) == (0, "")
    assert {str(Path(line).relative_to(tmp_path / "assets")) for line in written.stdout.splitlines()} == {
        *asset_files(ROOT)
    }
    for module in starts:
        done = run(str(home / "bin" / "python"), "-c", f"import {module}; print({module}.__file__)")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(str(site))
    for module in lacks:
        done = run(str(home / "bin" / "python"), "-c", f"import {module}")
        assert "ModuleNotFoundError" in done.stderr, f"the extra of {module} names nothing that it needs"
    for verb in ("controller", "gateway", "agent"):
        said = run(gpuward, verb, "--help")
        assert said.returncode == 0, said.stderr
