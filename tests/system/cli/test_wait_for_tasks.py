"""Scripts wait for a task by its exit code: 0 it succeeded, 1 it failed, 4 the time is over."""

import asyncio
import sys
from pathlib import Path

import pytest
import yaml

from support.processes.cluster import Cluster
from support.processes.served_models import serve


async def gpuward(cluster: Cluster, *words: str) -> tuple[int, str]:
    """Exit code and output of a call."""
    lines = (cluster.data_dir / "client.env").read_text().splitlines()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "cli", *words),
        env=dict(line.split("=", 1) for line in lines),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


def task(folder: Path, name: str, script: str, **fields: object) -> str:
    """A file with a task."""
    file = folder / f"{name}.yaml"
    spec = {"engine": "custom", "command": ["sh", "-c", script], "restart": "never", "resources": {"gpus": 0}}
    file.write_text(yaml.safe_dump({"kind": "Deployment", "name": name, **spec, **fields}))
    return str(file)


@pytest.mark.cases
async def test_the_exit_code_is_that_of_the_wait(cluster: Cluster, tmp_path: Path) -> None:
    await serve(cluster)
    good, bad = task(tmp_path, "good", "sleep 1"), task(tmp_path, "bad", "sleep 1; exit 7")
    long, server = task(tmp_path, "long", "sleep 600"), task(tmp_path, "server", "sleep 600", restart="always")
    for_success = ("--wait", "--for", "succeeded")
    (good_code, _), (bad_code, said), (long_code, _), (server_code, refused) = await asyncio.gather(
        gpuward(cluster, "apply", "-f", good, *for_success),
        gpuward(cluster, "apply", "-f", bad, *for_success),
        gpuward(cluster, "apply", "-f", long, *for_success, "--timeout", "4s"),
        gpuward(cluster, "apply", "-f", server, *for_success),
    )
    assert (good_code, bad_code, long_code, server_code) == (0, 1, 4, 1)
    assert "7" in said, "the task's own code"
    assert "restart" in refused
    codes = [(await gpuward(cluster, "wait", name, "--for", "succeeded"))[0] for name in ("good", "bad")]
    assert codes == [0, 1]
    assert (await gpuward(cluster, "wait", "long", "--for", "succeeded", "--timeout", "1s"))[0] == 4
    assert (await gpuward(cluster, "apply", "-f", long, "--wait"))[0] == 0, "it runs"
    assert (await gpuward(cluster, "apply", "-f", good, "--for", "succeeded"))[0] == 2, "without --wait"
