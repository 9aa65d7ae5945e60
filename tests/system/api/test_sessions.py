"""Sessions of browsers: an HttpOnly cookie in place of a key, which ends with its key and counts for this origin."""

import asyncio
import ipaddress
import time
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession, DummyCookieJar

from controller.api.context import KEYS
from controller.api.resources.session import WRONG_KEYS
from controller.store.access.key_reads import SECURE_SESSION_COOKIE, SESSION_COOKIE, hash_secret, session_credential
from controller.store.access.keys import create_key, list_keys, revoke_key
from controller.store.access.sessions import MAX_OF_KEY, open_session
from controller.store.core.database import Database
from http1.forwarded import TrustedProxies
from support.leading.served_api import ROLES, ServedApi, served

ENDS_S = 5.0
KEY = "x" * 22 + "=="
UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": KEY}
SESSION = "/api/v1/session"


async def ask(
    api: ServedApi, method: str, path: str, *, body: Any = None, **headers: str
) -> tuple[int, Any, Mapping[str, str]]:
    """Status, JSON and headers of a request without any credential but what the headers hold."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        ClientSession(cookie_jar=DummyCookieJar()) as client,
        client.request(method, api.url + path, json=body, headers=named) as answer,
    ):
        read = await answer.json() if answer.content_type == "application/json" else None
        return answer.status, read, answer.headers


def own(api: ServedApi) -> str:
    """The origin of the API's own pages."""
    return api.url


async def login(api: ServedApi, role: str = "admin") -> str:
    """The `Cookie` header of a new session."""
    status, body, headers = await ask(api, "POST", SESSION, body={"key": api.keys[role]}, Origin=own(api))
    assert status == 200, body
    cookie = SimpleCookie(headers["Set-Cookie"])[SESSION_COOKIE]
    return f"{SESSION_COOKIE}={cookie.value}"


async def test_the_cookie_is_out_of_reach_of_scripts(api: ServedApi) -> None:
    status, body, headers = await ask(api, "POST", SESSION, body={"key": api.keys["operator"]}, Origin=own(api))
    assert (status, body["role"], body["session"]) == (200, "operator", True)
    assert body["may"] == ["read", "operate", "infer", "logs"]
    assert api.keys["operator"] not in str(body)
    cookie = SimpleCookie(headers["Set-Cookie"])[SESSION_COOKIE]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert int(cookie["max-age"]) == 12 * 3600
    assert not cookie["secure"]
    status, body, _ = await ask(api, "GET", "/api/v1/me", Cookie=f"{SESSION_COOKIE}={cookie.value}")
    assert (status, body["name"], body["session"], body["encrypted"]) == (200, "operator", True, False)


@pytest.mark.parametrize("role", ROLES)
async def test_a_session_may_what_its_role_may(api: ServedApi, role: str) -> None:
    if role == "inference":
        status, body, headers = await ask(api, "POST", SESSION, body={"key": api.keys[role]}, Origin=own(api))
        assert (status, body["error"]["message"]) == (403, "This key may only send requests to models.")
        assert "Set-Cookie" not in headers
        return
    cookie = await login(api, role)
    status, body, _ = await ask(api, "GET", "/api/v1/me", Cookie=cookie)
    assert (status, body["role"]) == (200, role)
    status, _, _ = await ask(api, "GET", "/api/v1/keys", Cookie=cookie)
    assert status == (200 if role == "admin" else 403)


async def test_wrong_keys_are_limited_by_address(api: ServedApi) -> None:
    for _ in range(10):
        status, body, headers = await ask(api, "POST", SESSION, body={"key": "gpw_wrong"})
        assert (status, body["error"]["message"]) == (401, "This key is not known here.")
        assert "Set-Cookie" not in headers
    status, body, headers = await ask(api, "POST", SESSION, body={"key": "gpw_wrong"})
    assert (status, body["error"]["code"]) == (429, "too_many_logins")
    assert 0 < int(headers["Retry-After"]) <= 60
    assert (await api.call("GET", "/api/v1/me"))[0] == 200, "requests with a key go on"
    assert await login(api), "others of this address log in"
    status, _, _ = await ask(api, "POST", SESSION, body={"key": "gpw_wrong"})
    assert status == 429, "a right key does not make up for wrong ones"


async def test_wrong_keys_at_the_same_time_count_too(api: ServedApi) -> None:
    tries = await asyncio.gather(*(ask(api, "POST", SESSION, body={"key": f"gpw_wrong{n}"}) for n in range(40)))
    assert sorted(status for status, _, _ in tries) == [401] * 10 + [429] * 30


async def test_right_keys_are_limited_by_key(db: Database, api: ServedApi) -> None:
    tries = await asyncio.gather(*(ask(api, "POST", SESSION, body={"key": api.keys["viewer"]}) for _ in range(35)))
    assert sorted(status for status, _, _ in tries) == [200] * 30 + [429] * 5
    async with db.connection() as connection:
        assert len(await connection.fetch("select 1 from events where reason = 'session_opened'")) == 30
    refused = next(body for status, body, _ in tries if status == 429)
    assert refused["error"]["message"].startswith(
        "this key has logged in too many times within a minute; try again in "
    )
    assert await login(api, "operator"), "another key"


async def test_a_login_that_its_client_gives_up_does_not_count(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Semaphore(0)

    async def stuck(_key: str) -> None:
        asked.release()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(api.app[KEYS], "authenticate", stuck)
        for _ in range(12):
            asking = asyncio.create_task(ask(api, "POST", SESSION, body={"key": "gpw_slow"}))
            async with asyncio.timeout(ENDS_S):
                await asked.acquire()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(ENDS_S):
            while len(api.app[WRONG_KEYS]):  # noqa: ASYNC110 - the server notices the end of the connection
                await asyncio.sleep(0.02)
    assert (await ask(api, "POST", SESSION, body={"key": "gpw_wrong"}))[0] == 401


@pytest.mark.parametrize("key", ["", "x" * 300, "session\0gps_x", "gps_x", 7, None])
async def test_what_cannot_be_a_key(api: ServedApi, key: object) -> None:
    status, _, headers = await ask(api, "POST", SESSION, body={"key": key})
    assert status in (400, 401)
    assert "Set-Cookie" not in headers


def _but_used(keys: Any) -> list[Any]:
    return [{**key, "used_at": None} for key in keys["items"]]


async def test_pages_of_other_origins_change_nothing(api: ServedApi) -> None:
    cookie = await login(api)
    path = "/api/v1/keys"
    before = _but_used(await api.get(path))
    other: tuple[dict[str, str], ...] = (
        {}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": own(api)},
    )  # fmt: skip
    for headers in other:
        status, body, _ = await ask(api, "POST", path, body={"role": "admin"}, Cookie=cookie, **headers)
        assert (status, body["error"]["code"]) == (403, "cross_origin"), headers
        status, _, _ = await ask(api, "GET", "/api/v1/watch", Cookie=cookie, **headers, **UPGRADE)
        assert status == 403, headers
    assert _but_used(await api.get(path)) == before
    status, _, _ = await ask(api, "POST", SESSION, body={"key": api.keys["admin"]}, Origin="https://evil.example")
    assert status == 403, "a page elsewhere cannot log the browser in"
    status, _, _ = await ask(api, "POST", path, body={"role": "viewer"}, Cookie=cookie, Origin=own(api))
    assert status == 201
    status, _, _ = await ask(api, "POST", path, body={"role": "viewer"}, Authorization=f"Bearer {api.keys['admin']}")
    assert status == 201, "a key needs no origin"


async def test_a_key_counts_before_a_cookie(api: ServedApi) -> None:
    cookie = await login(api, "admin")
    status, body, _ = await ask(api, "GET", "/api/v1/me", Cookie=cookie, Authorization=f"Bearer {api.keys['viewer']}")
    assert (status, body["role"], body["session"]) == (200, "viewer", False)
    status, _, _ = await ask(api, "GET", "/api/v1/me", Cookie=cookie, Authorization="Bearer gpw_wrong")
    assert status == 401


async def test_a_session_serves_as_no_key_and_a_key_as_no_session(api: ServedApi) -> None:
    token = (await login(api)).partition("=")[2]
    for bearer in (token, session_credential(token).replace("\0", "")):
        status, _, _ = await ask(api, "GET", "/api/v1/me", Authorization=f"Bearer {bearer}")
        assert status == 401
    status, _, _ = await ask(api, "GET", "/api/v1/me", Cookie=f"{SESSION_COOKIE}={api.keys['admin']}")
    assert status == 401


async def test_logging_out_ends_the_session_and_its_streams_but_no_other(api: ServedApi) -> None:
    first, second = await login(api), await login(api)
    async with (
        ClientSession(cookie_jar=DummyCookieJar()) as client,
        client.get(api.url + "/api/v1/watch", headers={"Cookie": first}) as one,
        client.get(api.url + "/api/v1/watch", headers={"Cookie": second}) as other,
    ):
        assert (await one.content.readline(), await other.content.readline()) == (b"event: snapshot\n",) * 2
        status, _, headers = await ask(api, "DELETE", SESSION, Cookie=first, Origin=own(api))
        assert (status, "Max-Age=0" in headers["Set-Cookie"]) == (204, True)
        with pytest.raises(aiohttp.ClientPayloadError):
            async with asyncio.timeout(ENDS_S):
                await one.content.read()
        status, _, _ = await ask(api, "GET", "/api/v1/me", Cookie=first)
        assert status == 401
        status, _, _ = await ask(api, "GET", "/api/v1/me", Cookie=second)
        assert status == 200
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await other.content.read()


async def test_a_session_ends_with_its_key_on_another_controller_too(db: Database, api: ServedApi) -> None:
    made = await create_key(db, "operator", name="ann")
    api.keys["ann"] = made.key
    cookie = await login(api, "ann")
    async with served(db) as other:
        status, _, _ = await ask(other, "GET", "/api/v1/me", Cookie=cookie)
        assert status == 200, "sessions are the database's"
        async with ClientSession(cookie_jar=DummyCookieJar()) as client:
            watching = await client.get(other.url + "/api/v1/watch", headers={"Cookie": cookie})
            assert await watching.content.readline() == b"event: snapshot\n"
            await revoke_key(db, made.id)
            began = time.monotonic()
            with pytest.raises(aiohttp.ClientPayloadError):
                async with asyncio.timeout(ENDS_S):
                    await watching.content.read()
            assert time.monotonic() - began < ENDS_S
        status, _, _ = await ask(other, "GET", "/api/v1/me", Cookie=cookie)
        assert status == 401


async def test_models_take_a_session_of_a_page_of_this_origin(api: ServedApi) -> None:
    cookie = await login(api, "operator")
    body = {"model": "none", "messages": []}
    for headers, expected in (({}, 401), ({"Origin": "https://evil.example"}, 401), ({"Origin": own(api)}, 404)):
        status, _, _ = await ask(api, "POST", "/v1/chat/completions", body=body, Cookie=cookie, **headers)
        assert status == expected, headers
    status, _, _ = await ask(api, "GET", "/v1/models", Cookie=cookie)
    assert status == 200
    viewer = await login(api, "viewer")
    status, _, _ = await ask(api, "POST", "/v1/chat/completions", body=body, Cookie=viewer, Origin=own(api))
    assert status == 403


async def test_behind_tls_the_cookie_is_of_this_host_alone(db: Database) -> None:
    async with served(db, proxies=TrustedProxies([ipaddress.ip_network("127.0.0.1")])) as api:
        https = {"X_Forwarded_Proto": "https", "X_Forwarded_For": "192.0.2.1"}
        plain = await login(api)
        body = {"key": api.keys["viewer"]}
        status, me, headers = await ask(api, "POST", SESSION, body=body, Cookie=plain, **https)
        assert (status, me["encrypted"]) == (200, True)
        cookies = SimpleCookie("\r\n".join(headers.getall("Set-Cookie")))
        kept, old = cookies[SECURE_SESSION_COOKIE], cookies[SESSION_COOKIE]
        assert (kept["secure"], kept["httponly"], kept["samesite"], kept["path"]) == (True, True, "Strict", "/")
        assert (kept["domain"], old["max-age"]) == ("", "0"), "one cookie is left"
        secure = f"{SECURE_SESSION_COOKIE}={kept.value}"
        await over(api, plain)
        other = await login(api)
        for cookie, role in ((secure, "viewer"), (f"{other}; {secure}", "viewer"), (other, "admin")):
            status, me, _ = await ask(api, "GET", "/api/v1/me", Cookie=cookie, **https)
            assert (status, me["role"]) == (200, role), cookie
        status, _, headers = await ask(api, "DELETE", SESSION, Cookie=secure, Origin=own(api), **https)
        assert (status, "Max-Age=0" in headers["Set-Cookie"], "Secure" in headers["Set-Cookie"]) == (204, True, True)


async def test_logging_out_of_what_is_over(api: ServedApi) -> None:
    cookie = await login(api)
    for _ in range(2):
        status, _, headers = await ask(api, "DELETE", SESSION, Cookie=cookie, Origin=own(api))
        assert (status, "Max-Age=0" in headers["Set-Cookie"]) == (204, True)
    status, _, headers = await ask(api, "DELETE", SESSION)
    assert (status, "Set-Cookie" in headers) == (204, False)
    status, _, _ = await ask(api, "DELETE", SESSION, Cookie=await login(api), Origin="https://evil.example")
    assert status == 403


async def test_every_session_that_a_browser_forgets_is_over(api: ServedApi) -> None:
    """Also one beside a cookie that counts first and is over, and one that a new login replaces."""
    plain = await login(api)
    both = f"{SECURE_SESSION_COOKIE}=stale; {plain}"
    assert (await ask(api, "DELETE", SESSION, Cookie=both, Origin=own(api)))[0] == 204
    await over(api, plain)
    plain = await login(api)
    body = {"key": api.keys["viewer"]}
    assert (await ask(api, "POST", SESSION, body=body, Cookie=plain, Origin=own(api)))[0] == 200
    await over(api, plain)


@pytest.mark.parametrize("path", ["/api/v1/me", "/api/v1/workers", "/v1/models"])
async def test_a_cookie_that_is_over_hides_no_valid_one(api: ServedApi, path: str) -> None:
    stale = "gps_stale"
    valid = (await login(api, "operator")).partition("=")[2]
    ended = (await login(api, "operator")).partition("=")[2]
    cookie = f"{SESSION_COOKIE}={ended}"
    assert (await ask(api, "DELETE", SESSION, Cookie=cookie, Origin=own(api)))[0] == 204
    await over(api, cookie)
    for secure, plain, expected in (
        (stale, valid, 200), (ended, valid, 200), (valid, stale, 200), (valid, ended, 200), ("no", valid, 200),
        (stale, ended, 401), ("", valid, 200),
    ):  # fmt: skip
        for both in (f"{SECURE_SESSION_COOKIE}={secure}", f"{SESSION_COOKIE}={plain}"), (
            f"{SESSION_COOKIE}={plain}", f"{SECURE_SESSION_COOKIE}={secure}"
        ):  # fmt: skip
            assert (await ask(api, "GET", path, Cookie="; ".join(both)))[0] == expected, (secure, plain)


async def test_a_request_to_a_model_takes_the_valid_cookie_of_two(api: ServedApi) -> None:
    cookie = f"{SECURE_SESSION_COOKIE}=gps_stale; {await login(api, 'operator')}"
    body = {"model": "none", "messages": []}
    status, answer, _ = await ask(api, "POST", "/v1/chat/completions", body=body, Cookie=cookie, Origin=own(api))
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    status, _, _ = await ask(api, "POST", "/v1/chat/completions", body=body, Cookie=cookie)
    assert status == 401, "of no origin"


async def over(api: ServedApi, cookie: str) -> None:
    """Waits until the session counts no longer: the keys in memory follow the database."""
    async with asyncio.timeout(10):
        while (await ask(api, "GET", "/api/v1/me", Cookie=cookie))[0] != 401:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("path", ["/api/v1/me", "/v1/models"])
async def test_what_a_proxy_adds_for_itself_does_not_count(api: ServedApi, path: str) -> None:
    cookie = await login(api, "operator")
    for authorization in ("", "Basic dTpw", "Negotiate abc"):
        assert (await ask(api, "GET", path, Cookie=cookie, Authorization=authorization))[0] == 200, authorization
    for authorization in ("Bearer", "Bearer ", "bearer gpw_wrong"):
        assert (await ask(api, "GET", path, Cookie=cookie, Authorization=authorization))[0] == 401, authorization
    assert (await ask(api, "GET", path, X_Api_Key=api.keys["operator"], Authorization="Basic dTpw"))[0] == 200


async def test_only_hashes_are_stored_and_few_of_a_key(db: Database, api: ServedApi) -> None:
    token = (await login(api)).partition("=")[2]
    owner = next(key for key in await list_keys(db) if key.role == "admin")
    for _ in range(MAX_OF_KEY):
        assert await open_session(db, owner.id, owner.name) is not None
    async with db.connection() as connection:
        rows = await connection.fetch("select hash from browser_sessions")
    hashes = {bytes(row["hash"]) for row in rows}
    assert len(hashes) == MAX_OF_KEY
    assert hash_secret(session_credential(token)) not in hashes, "the oldest ended"
    assert not any(token.encode() in one for one in hashes)


async def test_a_session_of_an_expired_key_is_over(db: Database, api: ServedApi) -> None:
    made = await create_key(db, "viewer", name="short", expires_s=1.5)
    api.keys["short"] = made.key
    cookie = await login(api, "short")
    status, _, _ = await ask(api, "GET", "/api/v1/me", Cookie=cookie)
    assert status == 200
    await asyncio.sleep(1.6)
    status, _, _ = await ask(api, "GET", "/api/v1/me", Cookie=cookie)
    assert status == 401
