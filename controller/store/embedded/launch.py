"""Starts a program under another account; the program ends with its parent. Run as a script, never imported.

It takes one JSON argument, `{"parent", "account": {"uid", "gid", "groups"} | null, "death_signal", "argv"}`, and
becomes `argv`. With `"reach"` (a list of paths) in place of `argv` it prints the first folder or file on the way to
them that the account cannot enter or read, or `null`.

It imports the standard library only, and all of it before the account changes: the new account may be unable to read
this interpreter.
"""

import ctypes
import json
import os
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_REFUSED = 127


def _become(account: dict[str, object]) -> None:
    os.setgroups(account["groups"])  # type: ignore[arg-type]  # written by our own controller
    os.setgid(account["gid"])  # type: ignore[arg-type]  # as above
    os.setuid(account["uid"])  # type: ignore[arg-type]  # as above


def _die_with_parent(libc: ctypes.CDLL, parent: int, death_signal: int) -> None:
    # After the account change, because that change clears the setting.
    if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # A parent that ended before the line above sends no signal.
    if os.getppid() != parent:
        sys.exit(_EXIT_REFUSED)


def _first_blocked(paths: list[str]) -> str | None:
    for path in paths:
        step = ""
        for name in path.split("/"):
            step = f"{step}{name}/" if name or not step else step
            here = step.rstrip("/") or "/"
            if not os.access(here, os.X_OK if os.path.isdir(here) else os.R_OK):  # noqa: PTH112  # pathlib imports too much for a launcher
                return here
    return None


def main() -> None:
    """Carries out the request in the first argument; exits 127 with one line on stderr if it cannot."""
    request = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if request["account"] is not None:
            _become(request["account"])
        _die_with_parent(libc, request["parent"], request["death_signal"])
        if "reach" in request:
            os.write(1, json.dumps(_first_blocked(request["reach"])).encode())
            return
        os.execv(request["argv"][0], request["argv"])  # noqa: S606  # this process becomes the program
    except OSError as error:
        os.write(2, f"cannot start {request.get('argv', ['the check'])[0]}: {error}\n".encode())
        sys.exit(_EXIT_REFUSED)


if __name__ == "__main__":
    main()
