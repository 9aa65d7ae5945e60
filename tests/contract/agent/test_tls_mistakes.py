"""An address with the wrong scheme, or a certificate that does not fit: agent and `doctor` name the mistake."""

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from agent.decide.doctor.controller import judge_controller
from agent.decide.doctor.finding import Finding
from agent.doctor.controller_probe import probe_controller
from agent.errors import UnreachableError
from agent.link.channel import Channel
from agent.link.credential import join
from http1.tls.acceptor import PLAIN_REFUSED
from http1.tls.issue import issue_server, make_authority
from http1.tls.pinned import trusting
from schemas.wire import JoinRequest
from support.standins.controller import TOKEN, WAIT_S, ControllerDouble

NOW = datetime.now(UTC)
AUTHORITY = make_authority(NOW)
LONG_AGO = NOW - timedelta(days=200)


@asynccontextmanager
async def controller_for(folder: Path, name: str, made_at: datetime = NOW) -> AsyncIterator[tuple[str, Path]]:
    """A controller whose certificate has this name; its address and its authority's file."""
    made = issue_server(AUTHORITY, [name], made_at)
    (folder / "server.pem").write_bytes(made.certificate + made.key)
    (folder / "ca.crt").write_bytes(AUTHORITY.certificate)
    double = ControllerDouble()
    double.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    double.tls.load_cert_chain(folder / "server.pem")
    await double.start()
    try:
        yield double.url.replace("http://", "https://"), folder / "ca.crt"
    finally:
        await double.stop()


@asynccontextmanager
async def tls_alone() -> AsyncIterator[str]:
    """A port that answers plain requests as ours does where it speaks TLS; its address without TLS."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(PLAIN_REFUSED)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def told(url: str, authority: Path | None) -> list[str]:
    """What an agent logs that connects, and that joins, and what `doctor` prints, with what to do."""
    tls, words = trusting(authority), []
    async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as session:
        with pytest.raises(UnreachableError) as connecting:
            await Channel.dial(session, url, "credential", heartbeat=None, tls=tls)  # type: ignore[arg-type]
        with pytest.raises(UnreachableError) as joining:
            await join(session, url, JoinRequest(token=TOKEN, name="gpu-1", agent_version="1"), "credential", tls)
        words += [str(connecting.value), str(joining.value)]
    facts = await probe_controller(url, None, readable=True, token=False, tls=tls)
    (found,) = judge_controller(facts)
    assert isinstance(found, Finding)
    assert found.status == "fails"
    return [*words, f"{found.message} {found.remedy}"]


async def test_without_tls_to_a_port_with_it() -> None:
    async with tls_alone() as url:
        for words in await told(url, None):
            assert url.replace("http:", "https:") in words
            assert "GPUWARD_AGENT_CONTROLLER_URL" in words


async def test_with_tls_to_a_port_without_it(controller: ControllerDouble) -> None:
    for words in await told(controller.url.replace("http:", "https:"), None):
        assert controller.url in words
        assert "speaks no TLS" in words
        assert "[SSL" not in words


@pytest.mark.parametrize(("name", "made_at", "known", "expected"), [
    ("127.0.0.1", NOW, False, "GPUWARD_AGENT_CA"),
    ("gpuward.example", NOW, True, "gpuward ca init --name"),
    ("127.0.0.1", LONG_AGO, True, "Replace the certificate"),
])  # fmt: skip
async def test_a_certificate_that_does_not_fit(
    name: str, made_at: datetime, known: bool, expected: str, tmp_path: Path
) -> None:
    async with controller_for(tmp_path, name, made_at) as (url, authority):
        for words in await told(url, authority if known else None):
            assert url in words
            assert expected in words
            assert "firewalls" not in words


async def test_other_trouble_keeps_its_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for words in await told(url, None):
        assert f"{url} cannot be reached" in words


async def test_doctor_takes_the_agents_variables(tmp_path: Path) -> None:
    """As systemd gives them to the agent: also those that are not ours, and the authority by either way."""
    (tmp_path / "models").mkdir()
    (tmp_path / "bin").mkdir()
    engine = tmp_path / "bin" / "vllm"
    engine.write_text("#!/bin/sh\necho 9.9.9\n")
    engine.chmod(0o755)
    file = tmp_path / "agent.env"
    lines = {"HF_HUB_CACHE": tmp_path / "models", "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "no name": "x"}
    async with controller_for(tmp_path, "127.0.0.1") as (url, authority):
        for argv, more in (((), {"GPUWARD_AGENT_CA": authority}), (("--ca", str(authority)), {})):
            file.write_text("".join(f"{name}={value}\n" for name, value in {**lines, **more}.items()))
            words = (sys.executable, "-P", "-m", "cli", "doctor", "-o", "json", "--env-file", str(file))
            process = await asyncio.create_subprocess_exec(
                *words,
                *("--controller", url, "--data-dir", str(tmp_path / "agent"), *argv),
                env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
                stdout=subprocess.PIPE,
            )
            out, _ = await asyncio.wait_for(process.communicate(), WAIT_S + 30)
            assert f"{url} answers" in out.decode()
            assert str(tmp_path / "models") in out.decode()
            assert "9.9.9" in out.decode()
