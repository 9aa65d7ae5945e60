"""As which account models are fetched: never as root, where the agent can choose.

The answers of a hub or a mirror may be anything. So an agent of root has them read as an account that owns the models'
folders and nothing else, as which no engine runs.
"""

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.model_cache.beneath import OpenFolder, not_too_deep
from agent.processes.account import Account
from agent.processes.privileges import become, missing_for_fetches

FETCH_UID: Final = (
    65_520  # which neither distributions nor systemd give to anything, outside of the engines' usual range
)

_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_NAME_FILES: Final = (*_CERTIFICATES, "HF_XET_")  # a deployment's variables by which root would read or write files


def can_fetch_as_another(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether this agent is root and may start something as `FETCH_UID`."""
    if os.geteuid() != 0 or missing_for_fetches():
        return False
    ranges = [tuple(map(int, line.split())) for line in uid_map.read_text(encoding="ascii").splitlines()]
    return any(first <= FETCH_UID < first + count for first, _, count in ranges)


def fetch_account(model: OpenFolder) -> Account | None:
    """The account that fetches into a model's folder; None: the agent's own. Blocks for a walk.

    It is the owner of the folder. Folders that root has made in it are handed over: to `FETCH_UID`, or to the account
    that the model's folder belongs to already. Files keep their owners: to replace them needs the folder alone.

    Raises:
        OSError: it cannot be handed over.
    """
    if not can_fetch_as_another():
        return None
    status = os.fstat(model.fd)
    account = Account(status.st_uid, status.st_gid) if status.st_uid else Account(FETCH_UID, FETCH_UID)
    _hand_over(model, account, status.st_dev)
    return account


def _hand_over(model: OpenFolder, account: Account, device: int) -> None:
    """Gives root's folders to the account, the model's own last, whose owner the next fetch takes.

    It is done before each fetch, since programs that root runs, such as the hub's own, may have added some. Each is
    opened without following links, and it is what was opened that changes hands. Other file systems are left.
    """
    with not_too_deep():
        for _, _, _, place in os.fwalk(".", topdown=False, onerror=_raise, dir_fd=model.fd):
            status = os.fstat(place)
            if status.st_uid == 0 and status.st_dev == device:
                _give(place, account)


def _give(place: int, account: Account) -> None:
    try:
        os.fchown(place, account.uid, account.gid)
    except OSError as error:  # such as on a file system without owners
        text = f"the model's folder cannot be given to uid {account.uid}, which fetches ({error.strerror})"
        fix = f"mount the file system with uid={account.uid}, or set --cache-dir"
        raise OSError(error.errno, f"{text}; {fix}") from error


def _raise(error: OSError) -> None:
    raise error


def give_up_root(account: Account) -> None:
    """Makes this process the account. Before that it loads what a fetch needs, and reads nothing that a hub has sent.

    Python's own folders may be closed to the account, such as below `/root`.

    Raises:
        ImportError: huggingface_hub is not installed.
        OSError: it may not become the account.
    """
    import encodings.idna  # noqa: F401, PLC0415 - hub and codec are for the child alone, and slow to import

    from huggingface_hub import close_session, get_session  # noqa: PLC0415

    import agent.model_cache.download  # noqa: F401, PLC0415

    held_back = {name: value for name, value in os.environ.items() if name.startswith(_NAME_FILES)}
    for name in held_back:
        del os.environ[name]
    get_session()  # loads what it needs
    close_session()
    with suppress(ImportError):
        importlib.import_module("hf_xet")
    if not held_back.keys() & set(_CERTIFICATES):
        held_back |= _certificates(account)
    os.environ.update(held_back)
    become(account.uid, account.gid)


def _certificates(account: Account) -> dict[str, str]:
    """The file of authorities that the library brings, as an open one, where the account cannot get to it."""
    certifi = sys.modules.get("certifi")  # later versions of the library read the system's
    if certifi is None or account.stopped_at(Path(certifi.where())) is None:
        return {}
    return {_CERTIFICATES[0]: f"/proc/self/fd/{os.open(certifi.where(), os.O_RDONLY)}"}
