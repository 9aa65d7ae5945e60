"""A stand-in for the CUDA program: same options, same line, no GPU. The false GPU reads its options."""

import argparse
import signal
import sys
import threading


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, otherwise in (("--mib", 0), ("--duty", 0), ("--sms", 100), ("--seconds", 60)):
        parser.add_argument(name, type=float, default=otherwise)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdout.write("ready: no multiprocessors\n")
    sys.stdout.flush()
    threading.Event().wait(options.seconds)


if __name__ == "__main__":
    main()
