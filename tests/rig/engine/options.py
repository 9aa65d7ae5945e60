"""The command line. `rig.simulated_args` has the same names."""

import argparse


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rig.engine", allow_abbrev=False)
    add = parser.add_argument
    add("--port", type=int, required=True, help="loopback port")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--model", required=True, help="name of the served model")
    add("--load-seconds", type=_seconds, default=0.0, help="duration of loading")
    add("--exit-after", type=_seconds, default=None, help="exit after this many seconds")
    add("--exit-code", type=int, default=0, help="exit code for --exit-after")
    add("--ignore-sigterm", action="store_true", help="ignore SIGTERM")
    add("--token-seconds", type=_seconds, default=0.0, help="seconds per token")
    add("--wait-seconds", type=_seconds, default=0.0, help="seconds before the first byte of an answer")
    add("--die-after-tokens", type=_count, default=None, metavar="N", help="die after N tokens of an answer")
    add("--refuse", type=_status, default=None, metavar="STATUS", help="answer every request with this status")
    add("--hang-after", type=_count, default=None, metavar="N", help="generate nothing more after N requests")
    add("--silent", action="store_true", help="take requests, and never answer")
    add("--no-usage", action="store_true", help="state no usage in answers")
    add("--slots", type=_count, default=0, metavar="N", help="answer at most N requests at once, queue others; 0: all")
    add("--kv-tokens", type=_count, default=100_000, metavar="N", help="tokens that the KV cache holds")
    add("--without", action="append", default=[], metavar="PATH", help="do not serve this path, as /v1/responses")
    add("--served-model-name", nargs="+", default=[], metavar="NAME", help="answer to these names alone")
    add("--lora-modules", nargs="+", type=_adapter, default=[], metavar="NAME=PATH", help="adapters by name")
    return parser.parse_args(argv)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 seconds or more, got {text}")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return count


def _status(text: str) -> int:
    status = int(text)
    if not 400 <= status <= 599:
        raise argparse.ArgumentTypeError(f"must be a status from 400 to 599, got {text}")
    return status


def _adapter(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, got {text}")
    return name, path
