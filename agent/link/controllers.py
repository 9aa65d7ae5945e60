"""The controllers to which an agent may connect, and the authority of their certificates."""

import random
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agent.errors import RefusedError, RejectedError, UnreachableError
from agent.link.failure import read_at_most, why_unreachable
from http1.tls.authority import write_private
from http1.tls.issue import public_key_hash
from http1.tls.pinned import any_certificate, trusting
from schemas.wire import CA_PATH

LEARNED_FILE: Final = "controller-ca.crt"  # in the data folder
_LIMIT_S: Final = 15.0
_MOST_BYTES: Final = 65_536
_NOT_FOUND: Final = 404
_OK: Final = 200


class Controllers:
    """Starts with a random controller, so that agents spread, and stays with one that answers.

    `authority` is the file with the authority of their certificates; None: see `learn`, which keeps it in `data_dir`.
    """

    def __init__(
        self, urls: tuple[str, ...], authority: Path | None, data_dir: Path, rng: random.Random | None = None
    ) -> None:
        self._urls = urls
        self._given = authority
        self._learned = data_dir / LEARNED_FILE
        self._at = (rng or random.Random()).randrange(len(urls))  # noqa: S311 - spreads agents, keeps no secret
        self._context: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return self._urls[self._at]

    def __len__(self) -> int:
        return len(self._urls)

    def move_on(self) -> None:
        """Chooses the next controller, after a failure or a refusal."""
        self._at = (self._at + 1) % len(self._urls)

    def tls(self) -> ssl.SSLContext:
        """Verifies certificates. Raises RefusedError if the authority's file cannot be used."""
        if self._context is None:
            file = self._given or (self._learned if self._learned.exists() else None)
            try:
                self._context = trusting(file)
            except OSError as error:
                raise RefusedError(f"--ca: {file} cannot be used: {error.strerror or error}") from error
        return self._context

    async def learn(self, session: aiohttp.ClientSession, key_hash: str) -> None:
        """Fetches and keeps the authority whose public key has this SHA-256, which came with the join token.

        The controller is not trusted yet, but cannot choose another authority. Raises RefusedError, RejectedError (it
        has another authority, or none) or UnreachableError.
        """
        if urlsplit(self.url).scheme != "https":
            raise RefusedError(
                f"the join token is for TLS: write --controller {self.url.replace('http:', 'https:', 1)}"
            )
        if self._given is not None:
            return
        certificate = _certificate_of(await self._fetch(session), key_hash)
        if certificate is None:
            raise RejectedError(
                f"{self.url} shows another certificate authority than the join token names: it is not the controller, "
                "or something stands between; nothing was sent to it"
            )
        try:
            write_private(self._learned, certificate)
        except OSError as error:
            raise RefusedError(f"{self._learned} cannot be written: {error.strerror or error}") from error
        self._context = None

    async def _fetch(self, session: aiohttp.ClientSession) -> bytes:
        try:
            async with session.get(
                self.url + CA_PATH,
                ssl=any_certificate(),
                timeout=aiohttp.ClientTimeout(total=_LIMIT_S),
                allow_redirects=False,
            ) as answer:
                if answer.status == _NOT_FOUND:
                    raise RejectedError(
                        f"{self.url} has no certificate authority of its own, but the join token has one"
                    )
                if answer.status != _OK:
                    raise UnreachableError(f"{self.url} answers {answer.status}")
                return await read_at_most(answer, _MOST_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(str(why_unreachable(self.url, error))) from error


def _certificate_of(content: bytes, key_hash: str) -> bytes | None:
    """The certificate, in PEM, with this public key; None if it is missing."""
    try:
        certificates = [known.public_bytes(Encoding.PEM) for known in x509.load_pem_x509_certificates(content)]
    except ValueError:
        return None
    return next((certificate for certificate in certificates if public_key_hash(certificate) == key_hash), None)
