"""The parent of one engine, a program of its own: it starts the engine, waits, and records how the engine ended.

The kernel reports an end only to the parent, and the agent may be away then. So each engine has this parent, which does
nothing else: `python -I -S parent_main.py RECORD`, outside the engine's session and control group, under the agent's
account.

Descriptors: 0 the channel to the agent, 1 and 2 the engine's log, and RECORD, where the end is recorded
(`agent/processes/engine_parent.py`).

    agent → parent   the order (`agent/processes/engine_launch.py`), after a line with its length in bytes
    parent → agent   "pid N": the engine's process exists and waits
    agent → parent   "go TICKS": its pid and start time are journalled and it is in its control group
    parent → agent   "ok", or why it could not be started

Without "go" no engine runs: if the agent dies first, the waiting process ends. After the engine's end its zombie is
kept until the agent signals SIGUSR1: until then its pid, and with it the number of its group, cannot be reused. A
removed record will be read by no agent, so then it ends as well.

It imports little, for its memory, and nothing after its start: its installation may be replaced while it waits.
"""

from __future__ import annotations

import os
import resource  # os.wait4 would load it at the engine's end
import sys
import time

TYPE_CHECKING = False  # of `typing`, which would cost more memory than the rest
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal  # `signal` imports `enum`: it costs a megabyte

_RECORD_BYTES = 512
_LOOK_S = 10.0
_UNREAD_LOOK_S = 5.0
_WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_CAPBSET_DROP, _CAP_AMBIENT, _AMBIENT_CLEAR_ALL, _MOST_CAPABILITIES = 24, 47, 4, 64  # prctl(2)


def main() -> None:
    """Starts the engine on "go", and returns after its end was recorded."""
    channel = os.dup(0)
    record = int(sys.argv[1])
    os.set_inheritable(record, False)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    order = _read_order(channel)
    if not order:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the kernel would keep no exit code
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    go_read, go_write = os.pipe()
    failure_read, failure_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _become_engine(order, go_read, failure_write)
    del order
    os.close(go_read)
    os.close(failure_write)
    _write(channel, b"pid %d\n" % pid)
    ticks = _read_line(channel).removeprefix(b"go ")
    if ticks:
        _write(go_write, b"g")
    os.close(go_write)  # without "g" the engine's process ends
    failure = _read_all(failure_read)
    os.close(failure_read)
    if failure or not ticks:
        os.waitpid(pid, 0)
        _write(channel, failure)
        return
    _write(channel, b"ok")
    os.close(channel)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    _watch(pid, int(ticks), record)


def _watch(pid: int, ticks: int, record: int) -> None:
    """Waits for the end, records it, and keeps the zombie until the agent releases it."""
    signals: set[int] = set()
    kills = [_oom_kills()] * 2
    while (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        if not _take_signal(signals, _LOOK_S):
            kills = [kills[1], _oom_kills()]
    ended_at = time.time()
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status  # as in Python's subprocess
    # A host that shuts down signals all processes before one of them can end.
    terminated = signal.SIGTERM in signals | signal.sigpending()
    known = (pid, ticks, code, ended_at, _json(terminated), _json(_oom_kills() > kills[0]))
    _write_record(record, known, None)
    while signal.SIGUSR1 not in signals and os.fstat(record).st_nlink:
        _take_signal(signals, _UNREAD_LOOK_S)
    _, _, used = os.wait4(pid, 0)
    _write_record(record, known, used)


def _take_signal(signals: set[int], limit_s: float) -> bool:
    """Waits for a signal and notes it; False if none came."""
    taken = signal.sigtimedwait(_WATCHED, limit_s)
    if taken is not None:
        signals.add(taken.si_signo)
    return taken is not None


def _write_record(record: int, known: tuple[Any, ...], used: resource.struct_rusage | None) -> None:
    """Overwrites the record, whose space was reserved before the start: the disk may be full now."""
    pid, ticks, code, ended_at, terminated, oom_kills = known
    usage = "null"
    if used is not None:
        usage = f'{{"user_s": {used.ru_utime:.3f}, "system_s": {used.ru_stime:.3f}, "max_rss_kib": {used.ru_maxrss}}}'
    text = (
        f'{{"pid": {pid}, "start_ticks": {ticks}, "code": {code}, "ended_at": {ended_at:.3f}, "asked": {terminated}, '
        f'"oom_kills": {oom_kills}, "usage": {usage}}}\n'
    )
    try:
        os.pwrite(record, text.encode("ascii").ljust(_RECORD_BYTES), 0)
        os.fsync(record)
    except OSError:
        pass  # then the code stays unknown


def _json(value: bool) -> str:
    return "true" if value else "false"


def _oom_kills() -> int:
    """The kernel's kills for lack of memory since boot; 0 if not counted."""
    try:
        file = os.open("/proc/vmstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(file, 65_536)
        finally:
            os.close(file)
        count = text.partition(b"\noom_kill ")[2].split(None, 1)
        return int(count[0]) if count else 0
    except (OSError, ValueError):
        return 0


def _become_engine(order: bytes, go: int, failure: int) -> NoReturn:
    """In the new process: waits for the agent's "go", and runs the engine."""
    account, where, count, *texts = order.split(b"\0")
    argv, env = texts[: int(count)], dict(text.split(b"=", 1) for text in texts[int(count) :])
    try:
        os.setsid()
        os.chdir(where)
        where = b""
        if account:
            _take_account(*map(int, account.split()))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python
            signal.signal(number, signal.SIG_DFL)
        if os.read(go, 1) != b"g":
            os._exit(0)
        where = argv[0]
        _execute(argv, env)
    except OSError as error:
        _write(failure, b"%d %b" % (error.errno or 0, where))
    except BaseException as error:  # noqa: BLE001 - this process must not continue as a second parent
        _write(failure, b"0 " + repr(error).encode())
    os._exit(127)


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """As os.execvpe, which imports modules: another account may be unable to."""
    folders = [b""] if b"/" in argv[0] else env.get(b"PATH", os.defpath.encode()).split(b":")
    failure: OSError | None = None
    for folder in folders:
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)  # noqa: PTH118, S606 - an argv, as the order has it
        except (FileNotFoundError, NotADirectoryError) as error:
            failure = failure or error
        except OSError as error:  # the program exists, but cannot be run
            if failure is None or isinstance(failure, (FileNotFoundError, NotADirectoryError)):
                failure = error
    if failure is not None:
        raise failure


def _take_account(uid: int, gid: int, *groups: int) -> None:
    """Changes the account and gives up all capabilities for good."""
    import ctypes  # noqa: PLC0415 - only this process needs it, until it executes the engine

    libc = ctypes.CDLL(None, use_errno=True)

    def set_option(*values: int) -> bool:
        arguments = (*values, *(0,) * (5 - len(values)))
        return bool(libc.prctl(*(ctypes.c_ulong(value) for value in arguments)) == 0)

    if not set_option(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL):
        raise OSError(ctypes.get_errno(), "ambient capabilities cannot be cleared")
    for capability in range(_MOST_CAPABILITIES):
        if not set_option(_CAPBSET_DROP, capability):  # no more capabilities exist, or the agent may not
            break
    os.umask(0o077)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _read_order(file: int) -> bytes:
    """The order; empty if the agent ended before it was complete."""
    length, order = int(_read_line(file) or b"0"), bytearray()
    while len(order) < length and (read := os.read(file, min(65_536, length - len(order)))):
        order += read
    return bytes(order) if len(order) == length else b""


def _read_line(file: int) -> bytes:
    """A short line without its line feed; empty if the other side ended before it was complete."""
    text = b""
    while not text.endswith(b"\n"):
        try:
            read = os.read(file, 1)
        except OSError:
            return b""
        if not read:
            return b""
        text += read
    return text[:-1]


def _read_all(file: int) -> bytes:
    text = b""
    while read := os.read(file, 65_536):
        text += read
    return text


def _write(file: int, text: bytes) -> None:
    """Writes a few bytes. An ended reader does not need them."""
    try:  # noqa: SIM105 - `contextlib` costs memory
        os.write(file, text)
    except OSError:
        pass


if __name__ == "__main__":
    main()
