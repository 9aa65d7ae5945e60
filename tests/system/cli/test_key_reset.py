"""Keys rotate: `key reset` on the controller's host, and `up` after the first key was revoked."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.flood import Flood
from support.processes.up_process import Up, clean_env

pytestmark = pytest.mark.cases
OTHER_UID = 65534


def reset(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "cli", "key", "reset", "--data-dir", str(folder)]
    return subprocess.run(
        argv, env={**clean_env(), **env}, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip


def stored(folder: Path) -> dict[str, str]:
    lines = (folder / "client.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


async def status_with(cluster: Cluster, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as session, session.get(cluster.url + "/api/v1/keys", headers=headers) as answer:
        return answer.status


async def made_key(folder: Path, **env: str) -> str:
    """Resets; returns the new key."""
    before = stored(folder)
    done = await asyncio.to_thread(reset, folder, **env)
    assert (done.returncode, done.stdout) == (0, f"key of an administrator written to {folder / 'client.env'}\n"), done
    after = stored(folder)
    assert after["GPUWARD_URL"] == before["GPUWARD_URL"]
    assert after["GPUWARD_API_KEY"] != before["GPUWARD_API_KEY"]
    assert (folder / "client.env").stat().st_mode & 0o777 == 0o600
    return after["GPUWARD_API_KEY"]


@pytest.mark.parametrize("kind", ["embedded", "external"])
async def test_a_key_is_made_while_the_controller_runs_and_while_it_is_stopped(
    cluster: Cluster, database: str, kind: str
) -> None:
    env = {"GPUWARD_DATABASE_URL": database} if kind == "external" else {}
    await cluster.start_controller(**env)
    first = stored(cluster.data_dir)["GPUWARD_API_KEY"]
    while_running = await made_key(cluster.data_dir, **env)
    assert await status_with(cluster, while_running) == 200
    newest = (await cluster.get("/events?reason=key_created&limit=1"))["items"][0]
    assert (newest["actor"], newest["subjects"][0]["kind"]) == ("host", "key")
    cluster.processes["controller"].terminate()
    await asyncio.to_thread(cluster.processes["controller"].wait, 30)
    while_stopped = await made_key(cluster.data_dir, **env)
    await cluster.start_controller(**env)
    for key in (first, while_running, while_stopped):
        assert await status_with(cluster, key) == 200
    assert stored(cluster.data_dir)["GPUWARD_API_KEY"] == while_stopped


def test_it_refuses_what_is_not_the_controllers_folder(data_dir: Path) -> None:
    done = reset(data_dir)
    assert done.returncode == 1
    assert "is not the data folder of a controller" in done.stderr
    assert list(data_dir.iterdir()) == []
    done = reset(data_dir / "missing")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_it_needs_the_rights_of_the_data_folder(data_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another account")
    (data_dir / "client.env").write_text("GPUWARD_URL=http://127.0.0.1:1\n")
    os.chown(data_dir, OTHER_UID, OTHER_UID)
    done = reset(data_dir, GPUWARD_DATABASE_URL="postgresql://h/db")
    assert done.returncode == 1
    assert "run this command as that account" in done.stderr


def test_up_survives_the_revocation_of_the_first_key(data_dir: Path) -> None:
    def run(*words: str, key: str) -> str:
        env = {**clean_env(), "GPUWARD_URL": up.url(), "GPUWARD_API_KEY": key}
        argv = [sys.executable, "-P", "-m", "cli", *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with Up(data_dir, "--agents", "1", "--port", "0") as up:
        up.wait_until_ready()
        first = stored(data_dir)["GPUWARD_API_KEY"]
        mine = run("key", "create", "--role", "admin", key=first).strip()
        (listed,) = [one for one in json.loads(run("key", "list", "-o", "json", key=mine))["items"]
                     if one["name"] == "first"]  # fmt: skip
        run("key", "revoke", listed["id"], key=mine)
        assert up.stop()[0] == 0
    with Up(data_dir, "--agents", "2", "--example", "--port", "0") as up:
        up.wait_until_ready()
        assert "revoked; for a new one run:" in up.text
        assert run("get", "workers", key=mine).count("gpu-") == 2
        assert reset(data_dir).returncode == 0
        run("ps", key=stored(data_dir)["GPUWARD_API_KEY"])
        assert up.stop()[0] == 0


async def test_a_key_is_made_while_strangers_attack(cluster: Cluster) -> None:
    """They hold every connection that a stranger can have, and ask with guessed keys for the database's."""
    await cluster.start_controller()
    guess = b"GET /api/v1/keys HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer gpw_%d\r\n\r\n"
    half = Flood(cluster.port, 700, b"GET /readyz HTTP/1.1\r\n", drip=b"x-y: z\r\n")
    guesses = Flood(cluster.port, 200, b"".join(guess % n for n in range(20)))
    async with half.held(), guesses.held():
        key = await made_key(cluster.data_dir)
        assert await status_with(cluster, key) == 200
        assert await status_with(cluster, "gpw_guessed") == 401
