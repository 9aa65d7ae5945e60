"""Encrypts the values of secrets with AES-GCM, under keys that the database does not hold.

Each row names its key by an id, and its value is bound to its name: a value that was moved to another row does not
open.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FORM: Final = "write 32 bytes in base64, such as of: head -c 32 /dev/urandom | base64"


log = structlog.get_logger(__name__)


class SecretsKeyError(Exception):
    """The keys cannot be used; the message says why and what to do. It never repeats a key."""


class UnreadableSecretError(Exception):
    """The value of a secret does not open; the message says why and what to do."""


class SecretKeys:
    """The keys of one controller. The first one encrypts, all decrypt.

    Args:
        load: reads them again, such as after a rotation. It blocks.

    Raises:
        ValueError: they are malformed.
        OSError: they cannot be read.
    """

    def __init__(self, load: Callable[[], Sequence[bytes]] = tuple) -> None:
        self._load = load
        self._keys: Mapping[str, bytes] = {}
        self._branches: dict[bytes, SecretKeys] = {}
        self.reload()

    @property
    def current(self) -> str:
        """The id of the key that encrypts; empty: there is none, and values are stored as they are."""
        return next(iter(self._keys), "")

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all keys."""
        return tuple(self._keys)

    def reload(self) -> None:
        """Reads the keys again. Blocks.

        Raises:
            ValueError: they are malformed.
            OSError: they cannot be read.
        """
        self._keys = {_id_of(key): key for key in self._load()}
        for purpose, branch in tuple(self._branches.items()):  # another thread may ask for one
            branch._keys = self._derive(purpose)  # noqa: SLF001 - an object of this class

    def branch(self, purpose: bytes) -> "SecretKeys":
        """The keys that are derived from these for another purpose, each with an id of its own; kept like these.

        They open nothing that these have sealed, and the other way round.
        """
        if purpose not in self._branches:

            def load() -> Sequence[bytes]:
                self.reload()
                return tuple(self._derive(purpose).values())

            branch = SecretKeys()
            branch._load, branch._keys = load, self._derive(purpose)
            self._branches[purpose] = branch
        return self._branches[purpose]

    def texts(self) -> tuple[str, ...]:
        """The keys as `parse_keys` reads them, the present one first."""
        return tuple(base64.b64encode(key).decode() for key in self._keys.values())

    async def learn(self, ids: Iterable[str]) -> None:
        """Reads the keys once more where one of these is not among them: another controller may have rotated it.

        Keys that cannot be read leave the known ones in use.
        """
        if self._keys.keys() >= {id_ for id_ in ids if id_}:
            return
        try:
            await asyncio.to_thread(self.reload)
        except (OSError, ValueError) as error:
            log.warning("the keys of secrets cannot be read again", error=str(error))

    def derived(self, purpose: bytes, key_id: str) -> bytes | None:
        """A key for another purpose, which opens no secret; None: the key of this id is not here."""
        key = self._keys.get(key_id)
        return None if key is None else HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(key)

    def _derive(self, purpose: bytes) -> Mapping[str, bytes]:
        derived = [HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(key) for key in self._keys.values()]
        return {_id_of(key): key for key in derived}

    def seal(self, name: str, value: str, key_id: str = "") -> bytes:
        """The value of the secret of this name, encrypted under the key of this id, or under the current one."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._keys[key_id or self.current]).encrypt(nonce, value.encode(), _bound_to(name))

    def open(self, name: str, key_id: str, sealed: bytes) -> str:
        """The value.

        Raises:
            UnreadableSecretError: its key is not here, or the row was changed.
        """
        key = self._keys.get(key_id)
        if key is None:
            raise UnreadableSecretError(without_key(name, key_id))
        try:
            return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound_to(name)).decode()
        except (InvalidTag, ValueError) as error:
            raise UnreadableSecretError(
                f"the stored value of secret {name!r} is damaged; set it again: gpuward secret set {name}"
            ) from error


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Keys that are parted by commas or lines: the present one first, then earlier ones.

    Raises:
        ValueError: one is malformed; its text is not repeated.
    """
    found = []
    for n, word in enumerate(text.replace(",", " ").split(), 1):
        try:
            key = base64.b64decode(word.translate(str.maketrans("-_", "+/")), validate=True)
        except binascii.Error as error:
            raise ValueError(f"key {n} is not base64; {_FORM}") from error
        if len(key) != KEY_BYTES:
            raise ValueError(f"key {n} has {len(key)} bytes; {_FORM}")
        found.append(key)
    if not found:
        raise ValueError(f"it has no key; {_FORM}")
    return tuple(found)


def new_key() -> str:
    """A key as text."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _id_of(key: bytes) -> str:
    return hmac.digest(key, b"gpuward secrets key id", hashlib.sha256)[:6].hex()


def _bound_to(name: str) -> bytes:
    return b"gpuward secret\0" + name.encode()


NO_KEYS: Final = SecretKeys()


def without_key(name: str, key_id: str) -> str:
    """What is wrong where a secret's key is not among those of this controller, and what to do."""
    return (
        f"secret {name!r} is encrypted with key {key_id}, which this controller does not have; add that key to "
        f"GPUWARD_SECRETS_KEY_FILE, or set the secret again: gpuward secret set {name}"
    )
