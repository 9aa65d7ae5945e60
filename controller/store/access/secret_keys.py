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
    """The keys are not valid; the message has the reason and what to do, and never repeats a key."""


class UnreadableSecretError(Exception):
    """A secret's value cannot be opened; the message has the reason and what to do."""


class SecretKeys:
    """The keys of a controller. The first encrypts, all decrypt.

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
        """The id of the key that encrypts; empty without keys: values are then stored plain."""
        return next(iter(self._keys), "")

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def reload(self) -> None:
        """Reads the keys again. Blocks.

        Raises:
            ValueError: they are malformed.
            OSError: they cannot be read.
        """
        self._keys = {_id_of(key): key for key in self._load()}
        for purpose, branch in tuple(self._branches.items()):  # a copy, since another thread may add a branch
            branch._keys = self._derive(purpose)  # noqa: SLF001 - an object of this class

    def branch(self, purpose: bytes) -> "SecretKeys":
        """Keys derived from these for another purpose, each with its own id.

        They do not open values that these keys have sealed, nor the other way round.
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
        """The keys as `parse_keys` reads them, the present key first."""
        return tuple(base64.b64encode(key).decode() for key in self._keys.values())

    async def learn(self, ids: Iterable[str]) -> None:
        """Reads the keys again if any of these is unknown: another controller may have rotated it.

        If they cannot be read, the known keys stay in use.
        """
        if self._keys.keys() >= {id_ for id_ in ids if id_}:
            return
        try:
            await asyncio.to_thread(self.reload)
        except (OSError, ValueError) as error:
            log.warning("the keys of secrets cannot be read again", error=str(error))

    def derived(self, purpose: bytes, key_id: str) -> bytes | None:
        """A key for another purpose, which opens no secret; None if the key of this id is unknown."""
        key = self._keys.get(key_id)
        return None if key is None else HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(key)

    def _derive(self, purpose: bytes) -> Mapping[str, bytes]:
        derived = [HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(key) for key in self._keys.values()]
        return {_id_of(key): key for key in derived}

    def seal(self, name: str, value: str, key_id: str = "") -> bytes:
        """Encrypts the value of the secret `name` under the key of this id, or the current key."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._keys[key_id or self.current]).encrypt(nonce, value.encode(), _bound_to(name))

    def open(self, name: str, key_id: str, sealed: bytes) -> str:
        """Raises UnreadableSecretError if its key is unknown, or the row was changed."""
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
    """Keys separated by commas or lines: the present key first, then earlier keys.

    Raises:
        ValueError: a key is malformed; the message does not repeat it.
    """
    keys = []
    for n, word in enumerate(text.replace(",", " ").split(), 1):
        try:
            key = base64.b64decode(word.translate(str.maketrans("-_", "+/")), validate=True)
        except binascii.Error as error:
            raise ValueError(f"key {n} is not base64; {_FORM}") from error
        if len(key) != KEY_BYTES:
            raise ValueError(f"key {n} has {len(key)} bytes; {_FORM}")
        keys.append(key)
    if not keys:
        raise ValueError(f"it has no key; {_FORM}")
    return tuple(keys)


def new_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _id_of(key: bytes) -> str:
    return hmac.digest(key, b"gpuward secrets key id", hashlib.sha256)[:6].hex()


def _bound_to(name: str) -> bytes:
    return b"gpuward secret\0" + name.encode()


NO_KEYS: Final = SecretKeys()


def without_key(name: str, key_id: str) -> str:
    """The message for a secret whose key this controller does not have."""
    return (
        f"secret {name!r} is encrypted with key {key_id}, which this controller does not have; add that key to "
        f"GPUWARD_SECRETS_KEY_FILE, or set the secret again: gpuward secret set {name}"
    )
