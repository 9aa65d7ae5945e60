"""Deployments of real model servers on a running `gpuward up`: apply, ask, look."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from openai import APIError, OpenAI

from engines.table import RealEngine
from support.processes.up_process import Up, clean_env

START_LIMIT = "400s"  # importing vLLM takes a minute or more on a busy machine
MESSAGES: Any = [{"role": "user", "content": "Say something."}]


def client_env(up: Up) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (up.data_dir / "client.env").read_text().splitlines())


def gpuward(up: Up, *words: str, manifest: dict[str, Any] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", *words],
        env=clean_env() | client_env(up),
        input=json.dumps(manifest) if manifest else None,
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr, up.text[-2000:])
    return done.stdout


def listed(up: Up, kind: str) -> list[dict[str, Any]]:
    """The statuses of all objects of a kind, each with its deployment where it has one."""
    items = json.loads(gpuward(up, "get", kind, "-o", "json"))["items"]
    return [{"deployment": one["spec"].get("deployment"), **one["status"]} for one in items]


def until(holds: Callable[[], object], what: str, limit_s: float = 150) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        time.sleep(0.3)


def openai_client(up: Up) -> OpenAI:
    env = client_env(up)
    return OpenAI(base_url=f"{env['GPUWARD_URL']}/v1", api_key=env["GPUWARD_API_KEY"], timeout=60, max_retries=0)


class Deployed:
    """A deployment of an engine's tiny model. `run` starts it where a test has ended it."""

    def __init__(self, up: Up, engine: RealEngine, manifest: dict[str, Any]) -> None:
        self.up = up
        self.engine = engine
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.client = openai_client(up)

    def run(self) -> None:
        """Applies it and waits until it runs. Where it runs already, nothing happens."""
        gpuward(self.up, "apply", "--wait", "--timeout", START_LIMIT, "-f", "-", manifest=self.manifest)

    def delete(self) -> None:
        """Deletes it and waits until it is gone; it may be gone already."""
        if any(one["deployment"] == self.name for one in listed(self.up, "instances")):
            gpuward(self.up, "delete", "--wait", self.name)

    def status(self) -> dict[str, Any]:
        """Of its one instance."""
        (one,) = (one for one in listed(self.up, "instances") if one["deployment"] == self.name)
        return one

    def processes(self) -> dict[int, psutil.Process]:
        """What the agents started for it, by rank."""
        found = {}
        running = {one.pid: one for one in self.up.engines()}
        for one in running.values():
            with suppress(psutil.Error):
                env = one.environ()
                if env["GPUWARD_INSTANCE"].startswith(f"{self.name}-") and one.ppid() not in running:
                    found[int(env["GPUWARD_RANK"])] = one
        return found

    def ask(self, **fields: Any) -> Any:
        """A whole answer."""
        fields = {"max_tokens": 12, "temperature": 0, **fields}
        return self.client.chat.completions.create(model=self.name, messages=MESSAGES, **fields)

    def answers(self) -> bool:
        try:
            return bool(self.ask(max_tokens=2).choices)
        except APIError:
            return False

    def stream(self, tokens: int) -> tuple[Any, Iterator[Any]]:
        """A stream of so many tokens, and its chunks after the first one with text."""
        stream: Any = self.client.chat.completions.create(
            model=self.name, messages=MESSAGES, max_tokens=tokens, temperature=0, stream=True,
            extra_body=dict(self.engine.endless),
        )  # fmt: skip
        chunks = iter(stream)
        while not (first := next(chunks)).choices or not first.choices[0].delta.content:
            pass
        return stream, chunks

    def metrics(self) -> str:
        """What its server shows on /metrics."""
        line = self.processes()[0].cmdline()
        url = f"http://127.0.0.1:{line[line.index('--port') + 1]}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            text: str = answer.read().decode()
        return text

    def story(self) -> str:
        """What happened to it, for the message of a test that fails."""
        events = gpuward(self.up, "events", "--for", f"deployment/{self.name}")
        return "\n".join([events, *(f"{file}:\n{file.read_text()[-2000:]}" for file in self._logs())])

    def _logs(self) -> list[Path]:
        return sorted((self.up.data_dir / "agents").glob(f"*/instances/{self.name}-*/**/*.log"))

    def family(self) -> list[psutil.Process]:
        """Its processes and their descendants. Those which change their title hide their environment by that."""
        started = self.processes().values()
        return [one for first in started for one in (first, *first.children(recursive=True))]

    def computing(self) -> float:
        """The cores that its processes use, over a second."""
        family = self.family()
        before, begun = _cpu_s(family), time.monotonic()
        time.sleep(1)
        return (_cpu_s(family) - before) / (time.monotonic() - begun)


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended. A zombie is left to the parent that it was given."""
    found = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def _cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for one in processes:
        with suppress(psutil.Error):
            times = one.cpu_times()
            total += times.user + times.system
    return total
