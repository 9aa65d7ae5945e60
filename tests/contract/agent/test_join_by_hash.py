"""Joining over TLS with nothing but a token: its hash says which authority may sign for the controller."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.link.controllers import LEARNED_FILE
from http1.tls.issue import Issued, issue_server, make_authority, public_key_hash
from schemas.wire import split_token, token_with_authority
from support.processes.agents import AgentUnderTest, running_agent, settings_for
from support.standins.controller import TOKEN, WAIT_S, ControllerDouble

NOW = datetime.now(UTC)
TRUE, FALSE = make_authority(NOW), make_authority(NOW)
HASHED = token_with_authority(TOKEN, public_key_hash(TRUE.certificate))


def context_of(authority: Issued, folder: Path) -> ssl.SSLContext:
    made = issue_server(authority, ["127.0.0.1"], NOW)
    file = folder / "server.pem"
    file.write_bytes(made.certificate + made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@asynccontextmanager
async def controller_over_tls(signer: Issued, shown: bytes, folder: Path) -> AsyncIterator[ControllerDouble]:
    """A controller whose certificate one authority has signed, and which shows the certificate of some authority."""
    double = ControllerDouble()
    double.tls, double.authority = context_of(signer, folder), shown
    await double.start()
    try:
        yield double
    finally:
        await double.stop()


async def test_the_hash_is_enough_and_the_authority_is_kept(tmp_path: Path) -> None:
    async with controller_over_tls(TRUE, FALSE.certificate + TRUE.certificate, tmp_path) as controller:
        async with running_agent(controller, tmp_path, join_token=HASHED) as agent:
            await controller.connected()
            kept = agent.settings.data_dir / LEARNED_FILE
            assert kept.read_bytes() == TRUE.certificate
            assert kept.stat().st_mode & 0o077 == 0
        assert [join.token for join in controller.joins] == [TOKEN]
        controller.authority = b""
        async with running_agent(controller, tmp_path, join_token=None):
            await controller.connected(2)


@pytest.mark.parametrize("shown", [FALSE.certificate, TRUE.certificate, b"nothing", b""])
async def test_a_stranger_between_is_refused_before_the_token_is_sent(
    shown: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it shows the true authority's certificate, which anything can: its own is not signed by that."""
    async with controller_over_tls(FALSE, shown, tmp_path) as stranger:
        agent = AgentUnderTest(settings_for(stranger, tmp_path, join_token=HASHED))
        output = ""
        async with asyncio.timeout(WAIT_S):
            while "controller rejects this agent" not in output and "controller unreachable" not in output:
                output += "".join(capsys.readouterr())
                await asyncio.sleep(0.02)
        await agent.crash()
        assert stranger.joins == []
        assert stranger.given == []


async def test_a_token_for_tls_is_not_sent_without(
    controller: ControllerDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = AgentUnderTest(settings_for(controller, tmp_path, join_token=HASHED))
    async with asyncio.timeout(WAIT_S):
        assert await agent.task == 1
    assert "https://" in "".join(capsys.readouterr())
    assert controller.joins == []


async def test_a_certificate_that_nothing_vouches_for_is_refused_without_a_hash(tmp_path: Path) -> None:
    async with controller_over_tls(TRUE, TRUE.certificate, tmp_path) as controller:
        agent = AgentUnderTest(settings_for(controller, tmp_path))
        await asyncio.sleep(0.5)
        assert not agent.task.done()
        await agent.crash()
        assert controller.joins == []
        file = tmp_path / "ca.crt"
        file.write_bytes(TRUE.certificate)
        async with running_agent(controller, tmp_path, ca=file):
            await controller.connected()


def test_only_a_whole_hash_is_one() -> None:
    assert split_token(HASHED) == (TOKEN, public_key_hash(TRUE.certificate))
    assert split_token(TOKEN) == (TOKEN, None)
    assert split_token(HASHED[:-1]) == (HASHED[:-1], None)
