import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import web

from cli.errors import UsageError
from cli.transport.connection import default_data_dir, find_connection
from support.builders.api_objects import deployment
from support.standins.api import KEY, ApiDouble, refusal


def stored(folder: Path, url: str = "http://10.0.0.1:1", key: str = "gpw_stored") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "client.env").write_text(f"GPUWARD_URL={url}\nGPUWARD_API_KEY={key}\n")
    return folder


def test_flags_win_over_the_stored_connection(tmp_path):
    found = find_connection("http://a:1/", "k", environ={}, data_dirs=[stored(tmp_path)])
    assert (found.url, found.key) == ("http://a:1", "k")


def test_without_flags_the_stored_connection_is_used(tmp_path):
    found = find_connection(None, None, environ={}, data_dirs=[tmp_path / "none", stored(tmp_path / "there")])
    assert (found.url, found.key) == ("http://10.0.0.1:1", "gpw_stored")


def test_a_stored_key_is_never_sent_to_another_server(tmp_path):
    folder = stored(tmp_path)
    assert find_connection("http://elsewhere:1", None, environ={}, data_dirs=[folder]).key is None
    assert find_connection("http://10.0.0.1:1/", None, environ={}, data_dirs=[folder]).key == "gpw_stored"


def test_the_user_data_folder_follows_xdg(tmp_path):
    assert default_data_dir({"XDG_DATA_HOME": "/x"}, root=False) == Path("/x/gpuward")
    assert default_data_dir({"XDG_DATA_HOME": "relative", "HOME": "/h"}, root=False) == Path("/h/.local/share/gpuward")
    assert default_data_dir({"XDG_DATA_HOME": "/x"}, root=True) == Path("/var/lib/gpuward")
    stored(tmp_path / "gpuward", "http://127.0.0.9:1")
    assert find_connection(None, None, environ={"XDG_DATA_HOME": str(tmp_path)}).url in (
        "http://127.0.0.9:1",
        find_connection(None, None, environ={"HOME": "/nowhere"}).url,  # a system-wide one comes first
    )


def test_a_url_without_a_scheme_is_a_usage_error():
    with pytest.raises(UsageError, match="http://127"):
        find_connection("localhost:8420", None, environ={}, data_dirs=[])


def test_without_a_controller_the_message_has_address_and_fix(gpuward):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening, so connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = gpuward("ps", GPUWARD_URL=url)
    assert result.exit_code == 1
    assert f"no controller answers at {url}" in result.stderr
    assert "gpuward up" in result.stderr
    assert "Traceback" not in result.stderr


def test_flags_before_the_verb_win_over_the_environment(gpuward, api):
    api.add(deployment("hello"))
    result = gpuward("--url", api.url, "--api-key", KEY, "get", "deployments", GPUWARD_URL="http://127.0.0.1:1")
    assert result.exit_code == 0


def test_an_unknown_key_names_the_variable_for_it(gpuward):
    result = gpuward("ps", GPUWARD_API_KEY="gpw_wrong")
    assert result.exit_code == 1
    assert "GPUWARD_API_KEY" in result.stderr
    assert "gpw_wrong" not in result.stderr


@pytest.fixture
def answers(api: ApiDouble):
    """Makes the server answer the list of workers with one response."""

    def answer(make):
        def script(_kind: str, _name: str) -> None:
            raise make()

        api.script = script

    return answer


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: web.HTTPBadGateway(text="<html>bad gateway"), "answers 502, but it is not a Gpuward controller"),
        (lambda: web.HTTPFound("http://other:1/"), "redirects to http://other:1/"),
        (lambda: web.HTTPOk(text="<html>hello"), "not a Gpuward controller"),
        (
            lambda: web.HTTPOk(text='{"kind": "Worker"}'),
            "cannot read the WorkerView of the server (Object missing required field `name`",
        ),
    ],
)
def test_other_servers_are_recognized(gpuward, answers, make, part):
    answers(make)
    result = gpuward("get", "worker", "gpu-1")
    assert result.exit_code == 1
    assert part in result.stderr


def test_a_refusal_shows_every_problem_with_its_path(gpuward, api):
    problems = [{"path": "resources.gpus", "message": "must be at least 0"}]

    async def refuse(_request: web.Request) -> web.Response:
        return refusal(422, "invalid", "the spec is refused", problems=problems)

    result = gpuward("cordon", "gpu-1")
    assert result.exit_code == 3
    api.refuse = refuse
    result = gpuward("cordon", "gpu-1")
    assert result.exit_code == 1
    assert "the spec is refused\n  resources.gpus: must be at least 0" in result.stderr


def test_help_is_fast_and_needs_no_library_of_the_daemons():
    blocked = "import sys; sys.modules.update(dict.fromkeys(['aiohttp', 'numpy', 'sqlmodel', 'asyncpg', 'psutil']))\n"
    code = blocked + "sys.argv = ['gpuward', '--help']\nfrom cli.main import main\nmain()"
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    took_s = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    assert "join-token" in done.stdout
    assert took_s < 5  # 0.25 s on a quiet machine; aiohttp and numpy alone would not fit a slow one


def test_a_missing_library_names_the_extra():
    blocked = "import sys; sys.modules['uvloop'] = None; sys.argv = ['gpuward', 'up']\n"
    code = blocked + "from cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'gpuward[controller,agent]'" in done.stderr
    assert "Traceback" not in done.stderr
