"""Delivers webhooks, signed by Standard Webhooks, with a limited number of attempts. Lives as long as one term.

The result of each attempt is written to the message's row before the next attempt, so a new leader continues there. A
message whose answer was lost is sent again with the same id, so the receiver can recognize it.

A policy's URL must not make the controller call hosts that only it can reach. Each address is checked when its socket
is made, and the socket connects to that address, so a name cannot resolve to another address after the check.
"""

import asyncio
import base64
import binascii
import errno
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import aiohttp
import structlog
import tenacity

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction, shown_json
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.lease import LEADER_ERRORS, term_transaction
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from controller.store.policies.webhooks import Delivery, read_due, record_delivered, record_failed

log = structlog.get_logger(__name__)
_POLL_S: Final = 1.0
_AT_ONCE: Final = 32
_GONE: Final = 410  # the receiver refuses it for good
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the prefix of secrets whose key is base64
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
SETTING: Final = "GPUWARD_WEBHOOKS_MAY_REACH"
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Attempts per message, their backoff (doubling from `wait_s` to `wait_max_s`) and the deadline of each."""

    attempts: int = 8
    wait_s: float = 1.0
    wait_max_s: float = 300.0
    try_s: float = 10.0


class DeliveryError(Exception):
    """The receiver did not accept the message. `final`: it never will."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


def sign(key: str, id_: str, timestamp: int, payload: str) -> str:
    """The header `webhook-signature`: version 1, HMAC-SHA256 of id, time and payload, in base64."""
    signed = f"{id_}.{timestamp}.{payload}".encode()
    return "v1," + base64.b64encode(hmac.digest(_key_bytes(key), signed, hashlib.sha256)).decode()


def _key_bytes(key: str) -> bytes:
    """The bytes of a key: base64 after the standard's prefix, else the text itself."""
    if key.startswith(_SECRET_PREFIX):
        try:
            return base64.b64decode(key.removeprefix(_SECRET_PREFIX), validate=True)
        except binascii.Error:
            return key.encode()
    return key.encode()


class Webhooks:
    """Reads due messages once a second and sends several at once."""

    def __init__(
        self,
        database: Database,
        term: int,
        clock: Clock,
        settings: WebhookSettings | None = None,
        *,
        quote_logs: bool = False,
        keys: SecretKeys = NO_KEYS,
        may_reach: Sequence[Network] = (),
        redaction: Callable[[], Redaction] = lambda: NOTHING_REDACTED,
    ) -> None:
        """A service of one term.

        Args:
            database: of the messages.
            term: the leader's.
            clock: for waits and time stamps.
            settings: of attempts; None: the defaults.
            quote_logs: messages keep the lines of logs that they quote.
            keys: open the signing secrets.
            may_reach: networks that webhooks may reach although they are not public.
            redaction: values that no message shows.
        """
        self._redaction = redaction
        self._keys = keys
        self._may_reach = may_reach
        self._database = database
        self._term = term
        self._clock = clock
        self._settings = settings or WebhookSettings()
        self._quote_logs = quote_logs
        self._under_way: set[str] = set()

    def http(self) -> aiohttp.ClientSession:
        """A session that checks the addresses to which it connects, and uses no proxy."""
        connector = aiohttp.TCPConnector(socket_factory=checked_sockets(self._may_reach), use_dns_cache=False)
        return aiohttp.ClientSession(connector=connector, trust_env=False)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with self.http() as http, asyncio.TaskGroup() as group:
            while True:
                try:
                    async with self._database.connection() as connection:
                        free = _AT_ONCE - len(self._under_way)
                        due = (
                            await read_due(connection, but=self._under_way, limit=free, keys=self._keys) if free else []
                        )
                except DATABASE_ERRORS as error:
                    log.warning("webhooks could not be read", error=str(error) or type(error).__name__)
                    due = []
                for delivery in due:
                    self._under_way.add(delivery.id)
                    group.create_task(self._deliver(http, delivery), name=f"webhook-{delivery.id}")
                await self._clock.sleep(_POLL_S)

    async def _deliver(self, http: aiohttp.ClientSession, delivery: Delivery) -> None:
        try:
            await self.attempt(http, delivery)
        except LEADER_ERRORS as error:
            log.warning(
                "webhook attempt not recorded, retried later", id=delivery.id, error=str(error) or type(error).__name__
            )
        finally:
            self._under_way.discard(delivery.id)

    async def attempt(self, http: aiohttp.ClientSession, delivery: Delivery) -> None:
        """Sends the message once, and records the result."""
        try:
            await self._post(http, delivery)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, DeliveryError) as error:
            text = str(error) or type(error).__name__
            retry_after_s = self._retry_after_s(delivery, error)
            log.warning(
                "webhook attempt failed", id=delivery.id, url=delivery.url, error=text, retry_after_s=retry_after_s
            )
            async with term_transaction(self._database, self._term) as connection:
                await record_failed(connection, delivery, text, retry_after_s)
            return
        async with term_transaction(self._database, self._term) as connection:
            await record_delivered(connection, delivery)

    def _retry_after_s(self, delivery: Delivery, error: Exception) -> float | None:
        """Seconds until the next attempt, if any. Computed by tenacity from the attempts in the row."""
        tried = tenacity.RetryCallState(tenacity.AsyncRetrying(), None, (), {})
        tried.attempt_number = delivery.attempts + 1
        if isinstance(error, DeliveryError) and error.final:
            return None
        if tenacity.stop_after_attempt(self._settings.attempts)(tried):
            return None
        first_s = self._settings.wait_s
        doubling = tenacity.wait_exponential(multiplier=first_s, max=self._settings.wait_max_s)
        return (doubling + tenacity.wait_random(0, first_s / 4))(tried)

    async def _post(self, http: aiohttp.ClientSession, delivery: Delivery) -> None:
        if delivery.key_problem:
            raise DeliveryError(delivery.key_problem)
        if delivery.key is None:
            raise DeliveryError(
                f"secret {delivery.secret!r} not found; set it with `gpuward secret set {delivery.secret}`"
            )
        timestamp = int(self._clock.now().timestamp())
        payload = self._redaction().shown(shown_json(delivery.payload.encode(), logs=self._quote_logs))
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(delivery.key, delivery.id, timestamp, payload.decode()),
        }
        async with (
            asyncio.timeout(self._settings.try_s),
            http.post(delivery.url, data=payload, headers=headers, allow_redirects=False) as answer,
        ):
            if not answer.ok or answer.status >= 300:  # noqa: PLR2004 - redirects are not followed
                raise DeliveryError(f"the receiver answered {answer.status}", final=answer.status == _GONE)


class RefusedTargetError(OSError):
    """The address may not be reached; the message names it and the setting that permits it."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EACCES, message)


def refusal(address: str, allowed: Sequence[Network]) -> str:
    """The reason why a webhook may not reach this IP address; empty if it may."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"{address[:80]!r} is not a valid address"
    judged = (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip
    if any(judged in network or ip in network for network in allowed) or _is_public(judged):
        return ""
    return (
        f"{address} is not a public address, so webhooks may not reach it; "
        f"an administrator may allow it on the controller: {SETTING}={judged}/{judged.max_prefixlen}"
    )


def checked_sockets(allowed: Sequence[Network]) -> Callable[[Any], socket.socket]:
    """A factory of aiohttp's sockets that permits only public addresses and `allowed` networks."""
    networks = tuple(allowed)

    def make(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, address = info
        if why := refusal(str(address[0]), networks):
            raise RefusedTargetError(why)
        return socket.socket(family, kind, protocol)

    return make


def _is_public(ip: Address) -> bool:
    if not ip.is_global or ip.is_multicast or (ip.is_reserved and ip not in _NAT64):
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return True
    if ip in _NAT64:
        return _is_public(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    carried = [ip.sixtofour, *(ip.teredo or ())]  # IPv4 addresses that it carries
    return ip in _UNICAST and all(address is None or _is_public(address) for address in carried)
