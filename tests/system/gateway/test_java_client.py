"""The JDK's own client, unmodified: with each request over plain HTTP it offers to switch to HTTP/2."""

import asyncio
import shutil
from pathlib import Path

import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import listed, make_key, serve

SOURCE = Path(__file__).parent / "java" / "Requests.java"
PROGRAMS = ("java", "ecj")

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason="Debian's packages openjdk-17-jre-headless and ecj are not installed"
)


async def run(*command: str | Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_each_request_of_the_jdk_is_answered(cluster: Cluster, tmp_path: Path) -> None:
    await asyncio.gather(serve(cluster, chat={}), run("ecj", "-proc:none", "-17", "-d", tmp_path, SOURCE))
    await listed(cluster, "chat")
    key = await make_key(cluster, role="admin")
    lines = (await run("java", "-XX:TieredStopAtLevel=1", "-cp", tmp_path, "Requests", cluster.url, key)).splitlines()
    answers = [tuple(line.split(" ", 2)) for line in lines]
    names = ("chat", "chunked", "stream", "form", "chunked-form", "plan", "models")
    assert [(name, status) for name, status, _ in answers] == [(name, "200") for name in names] * 2, lines
    texts = {name: text for name, _, text in answers}
    assert all("The quick brown fox jumps" in texts[name] for name in ("chat", "chunked"))
    assert texts["stream"].rstrip().endswith("data: [DONE]")
    assert '"other"' in texts["plan"]
