"""The account that fetches models: not root, where the agent can choose.

A hub's answers are untrusted. So an agent of root fetches as an account that owns the models' folders and nothing else,
and as which no engine runs.
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

FETCH_UID: Final = 65_520  # unassigned by distributions and systemd, outside of the engines' usual range

_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_NAME_FILES: Final = (*_CERTIFICATES, "HF_XET_")  # variables of a deployment by which root would read or write files


def can_fetch_as_another(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether this agent is root and may start processes as `FETCH_UID`."""
    if os.geteuid() != 0 or missing_for_fetches():
        return False
    ranges = [tuple(map(int, line.split())) for line in uid_map.read_text(encoding="ascii").splitlines()]
    return any(first <= FETCH_UID < first + count for first, _, count in ranges)


def fetch_account(model: OpenFolder) -> Account | None:
    """The account that fetches into a model's folder; None: the agent's own. Blocks for a walk.

    It is the folder's owner, or `FETCH_UID` for a folder of root, and gets root's folders within. Files keep their
    owners, since replacing them requires only the folder. Raises OSError.
    """
    if not can_fetch_as_another():
        return None
    status = os.fstat(model.fd)
    account = Account(status.st_uid, status.st_gid) if status.st_uid else Account(FETCH_UID, FETCH_UID)
    _hand_over(model, account, status.st_dev)
    return account


def _hand_over(model: OpenFolder, account: Account, device: int) -> None:
    """Gives root's folders to the account, the model's own last: its owner decides for the next fetch."""
    # Before each fetch, since root's programs, such as the hub's, may have added folders. No link is followed, the
    # opened folder changes hands, and other file systems are left alone.
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
    """Makes this process the account, before it reads a hub's answers. Raises ImportError or OSError.

    It imports the libraries of a fetch first: Python's folders may be closed to the account, such as below `/root`.
    """
    import encodings.idna  # noqa: F401, PLC0415 - only the child needs hub and codec, which are slow to import

    from huggingface_hub import close_session, get_session  # noqa: PLC0415

    import agent.model_cache.download  # noqa: F401, PLC0415

    held_back = {name: value for name, value in os.environ.items() if name.startswith(_NAME_FILES)}
    for name in held_back:
        del os.environ[name]
    get_session()  # imports its dependencies
    close_session()
    with suppress(ImportError):
        importlib.import_module("hf_xet")
    if not held_back.keys() & set(_CERTIFICATES):
        held_back |= _certificates(account)
    os.environ.update(held_back)
    become(account.uid, account.gid)


def _certificates(account: Account) -> dict[str, str]:
    """The library's own file of authorities, as an open descriptor, if the account cannot read its path."""
    certifi = sys.modules.get("certifi")  # later versions of the library use the system's file
    if certifi is None or account.stopped_at(Path(certifi.where())) is None:
        return {}
    return {_CERTIFICATES[0]: f"/proc/self/fd/{os.open(certifi.where(), os.O_RDONLY)}"}
