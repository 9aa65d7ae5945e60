"""Serves until a signal, or until `--exit-after`."""

import asyncio
import signal
import sys
from argparse import Namespace

from rig.engine.behaviour import Behaviour
from rig.engine.engine import Engine
from rig.engine.http_server import HttpServer
from rig.engine.names import Names
from rig.engine.options import parse_args


def make_engine(args: Namespace) -> Engine:
    return Engine(
        Names(args.model, tuple(args.served_model_name), dict(args.lora_modules)),
        Behaviour(
            token_seconds=args.token_seconds,
            wait=args.wait_seconds,
            refuse=args.refuse,
            silent=0 if args.silent else None,
            die=args.die_after_tokens,
            usage=not args.no_usage,
        ),
        load_seconds=args.load_seconds,
        slots=args.slots,
        hang_after=args.hang_after,
        kv_tokens=args.kv_tokens,
        without=frozenset(args.without),
    )


async def serve(args: Namespace) -> int:
    """Serves until SIGTERM, SIGINT or `--exit-after`; returns the exit code."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, (lambda: None) if args.ignore_sigterm else stop.set)
    server = HttpServer(make_engine(args).handle)
    await server.start(args.host, args.port)
    print(f"serving {args.model} on {args.host}:{args.port}", flush=True)  # noqa: T201 - its log
    try:
        async with asyncio.timeout(args.exit_after):
            await stop.wait()
    except TimeoutError:
        return int(args.exit_code)
    else:
        return 0
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(parse_args(sys.argv[1:]))))
