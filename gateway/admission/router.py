"""The router: requests for models, for custom servers, for the gateway itself, and all others, for the controller."""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from random import getrandbits
from string import ascii_letters, digits
from typing import Final
from urllib.parse import unquote_to_bytes

import structlog

from controller.live.key_ring import KeyRing, Principal, digest_of
from gateway.admission.app_paths import APPS, app_of, is_listed, path_problem
from gateway.admission.cors import Cors
from gateway.admission.credentials import credentials_of, keys_of, origin_of
from gateway.bodies.form_grammar import FORM, media_type
from gateway.bodies.form_reader import is_form
from gateway.bodies.parameters import BadRequestError, check_charset
from gateway.control_plane.reverse_proxy import BEHIND_PROXY_FIELD, Controller, Passed
from gateway.errors import GatewayError, response, unauthenticated
from gateway.requests.app_upload import PATH, app_upload, for_programs
from gateway.requests.form_upload import FormUpload
from gateway.requests.refusals import model_not_found, not_served
from gateway.requests.request import Admission, Request
from gateway.requests.shared import Shared
from gateway.requests.upload import Upload
from gateway.routing.routing_table import ServedName
from http1.daemon.log_limit import MalformedLog
from http1.forwarded import Origin, TrustedProxies
from http1.protocol.connection_rules import ADMINISTRATOR, KEY
from http1.protocol.framing import MessageError
from http1.protocol.handler import DROPPED, Handler
from http1.protocol.heads import RequestHead, values
from http1.protocol.server_connection import ServerConnection
from schemas.api.models import FORM_PATHS, MODEL_PATHS, MODEL_ROLES, MODELS_PATH, ModelList, ModelState, ModelView
from schemas.api.view import to_json

log = structlog.get_logger(__name__)

_MODELS: Final = b"/v1/"
_LIST: Final = MODELS_PATH.encode()
_ONE: Final = _LIST + b"/"
_FORMS: Final = frozenset(path.encode() for path in FORM_PATHS)
_ENDPOINTS: Final = {path.encode(): path for path in (*MODEL_PATHS, *FORM_PATHS)}  # in usage and metrics
_ALLOWED: Final = {_LIST: b"GET"} | dict.fromkeys(_ENDPOINTS, b"POST")
_NO_SUCH_PATH: Final = (
    "the gateway serves no such path below /v1; /openapi.json lists all paths. Those of the API begin with /api/v1, "
    "so that the address of a Gpuward ends before /v1"
)
_UNUSABLE: Final = re.compile(rb"[\x00-\x1f\x7f]")
_JSON: Final = (b"content-type", b"application/json")
_FORM_TYPES: Final = frozenset((FORM, b"application/json"))
_GIVEN_ONCE: Final = (b"content-type", b"content-encoding")
_CHECKED: Final = object()  # keys of results for heads that are alike
_CREDENTIALS: Final = object()
# What a browser shows of an answer has no rights of the dashboard's origin.
_SANDBOX: Final = b"content-security-policy: sandbox\r\n"
_ID_BYTES: Final = (ascii_letters + digits + "._-").encode()
_LONGEST_ID: Final = 64
Own = Callable[[RequestHead, ServerConnection, str], Handler]


class Router:
    """Decides by a request's head who answers it: the gateway (`own` paths), a model, or else the controller."""

    def __init__(
        self,
        shared: Shared,
        controller: Controller,
        own: dict[bytes, Own],
        proxies: TrustedProxies,
        cors: Cors | None = None,
        hsts_s: float = 0.0,
    ) -> None:
        self._shared = shared
        self._controller = controller
        self._own = own
        self._proxies = proxies
        self._cors = cors
        self._hsts = b"strict-transport-security: max-age=%d\r\n" % hsts_s if hsts_s else b""
        self._malformed = MalformedLog("gateway")
        self._keys: KeyRing = shared.keys
        self._to_models = Admission(self._check_for_model)

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        path, request_id = head.target.partition(b"?")[0], request_id_of(head.named)
        if self._hsts and _scheme(origin_of(self._proxies, connection.address, head.fields)[0], connection) == "https":
            connection.add_lines(self._hsts)
        if path.startswith(_MODELS) or path in _ALLOWED or mistaken_base(path) is not None:
            if self._answers_page(head, connection):
                return DROPPED
            return self._to_model(head, path, connection, request_id)
        app = app_of(path) if path.startswith(APPS) else None
        if app is not None:
            return self._to_app(head, app, connection, request_id)
        own = self._own.get(path)
        if own is not None and head.method == b"GET":
            return own(head, connection, request_id)
        return self._pass_on(head, connection, request_id)

    def malformed(self, error: MessageError) -> bytes:
        self._malformed.note(str(error))
        _, body = response(GatewayError(error.status, error.code, str(error)), b"", "")
        return body

    # Models

    def _answers_page(self, head: RequestHead, connection: ServerConnection) -> bool:
        """Lets a page of another origin read the answer; returns whether it has answered a preflight."""
        if self._cors is None:
            return False
        if lines := self._cors.lines(head.named):
            connection.add_lines(lines)
        fields = self._cors.preflight(head.method, head.named)
        if fields is not None:
            connection.answer(204, fields, b"")
        return fields is not None

    def _to_model(self, head: RequestHead, path: bytes, connection: ServerConnection, request_id: str) -> Handler:
        keys, digests = _credentials(head)
        principal = self._keys.owner(digests[0])
        if principal is None and not any(digests):
            self._fail(unauthenticated(), path, connection, request_id)
            return DROPPED
        admission = self._to_models
        if head.method == b"GET" and (path == _LIST or _names_one(path)):
            answer = partial(self._show, path, connection, request_id)
            admission = Admission(self._check_for_model, answer=answer)
        has_form = path in _FORMS and is_form(head.named.get(b"content-type", b""))
        upload = FormUpload if has_form else Upload
        counted = _ENDPOINTS.get(path, "")  # never a path that a client chose
        request = Request(self._shared, head, connection, request_id, admission, upload=upload, path=counted)
        request.start(principal, keys)
        return request

    def _check_for_model(self, request: Request, principal: Principal) -> None:
        self._admit(principal, request.connection)
        head = request.head
        if _CHECKED not in head.alike:
            _check(head, head.path)
            head.alike[_CHECKED] = True

    # Custom servers

    def _to_app(
        self, head: RequestHead, app: tuple[str, bytes], connection: ServerConnection, request_id: str
    ) -> Handler:
        name, path = app
        known = self._shared.routes.table.model(name)
        apps = known.limits.apps if known is not None else None
        if apps is None or apps.csp != "none":
            connection.add_lines(_SANDBOX)

        def check(_request: Request, principal: Principal) -> None:
            self._admit(principal, connection)
            if apps is None or not principal.limits.allows(name):
                raise GatewayError(404, "not_found", f"no such path: {head.path.decode('latin-1')}")
            _check_characters(head)
            if (problem := path_problem(path)) is not None:
                raise GatewayError(400, "invalid", f"URL: the path {problem}")
            if not is_listed(path, apps.paths):
                listed = ", ".join(apps.paths)
                raise GatewayError(404, "not_found", f"no such path: serving.apps of {name!r} lists {listed}")

        keys = keys_of(head)
        if not any(keys):
            self._fail(for_programs(), head.path, connection, request_id)
            return DROPPED
        target = path + head.target[len(head.path) :]
        admission, upload = Admission(check, for_programs), app_upload(name, target)
        request = Request(self._shared, head, connection, request_id, admission, upload=upload, path=PATH)
        request.start(self._keys.owner(digest_of(keys[0])), keys)
        return request

    @staticmethod
    def _admit(principal: Principal, connection: ServerConnection) -> None:
        refusal = connection.admit(principal.key_id)
        if refusal is not None:
            raise not_served(refusal)
        if principal.role not in MODEL_ROLES:
            allowed = ", ".join(sorted(MODEL_ROLES))
            message = f"role {principal.role} is not allowed here; use a key with one of: {allowed}"
            raise GatewayError(403, "forbidden", message)

    def _show(self, path: bytes, connection: ServerConnection, request_id: str, principal: Principal) -> None:
        """Answers with the list of models that a key may use, or with the model of the path."""
        served = self._shared.routes.table.served_models(principal.limits.allows)
        now = int(time.time())
        if path == _LIST:
            body = to_json(ModelList(data=[_view(name, served_name, now) for name, served_name in served.items()]))
        else:
            name = unquote_to_bytes(path.removeprefix(_ONE)).decode(errors="replace")
            if name not in served:
                self._fail(model_not_found(name), path, connection, request_id)
                return
            body = to_json(_view(name, served[name], now))
        connection.answer(200, [_JSON, (b"x-request-id", request_id.encode())], body)

    def _fail(self, error: GatewayError, path: bytes, connection: ServerConnection, request_id: str) -> None:
        fields, body = response(error, path, request_id)
        connection.answer(error.status, [*fields, (b"x-request-id", request_id.encode())], body)

    # The controller

    def _pass_on(self, head: RequestHead, connection: ServerConnection, request_id: str) -> Handler:
        """Known keys keep their connection; the controller decides what a key may do."""
        _, digests = _credentials(head)
        principal = next((owner for digest in digests if (owner := self._keys.owner(digest)) is not None), None)
        try:
            if principal is not None:
                standing = ADMINISTRATOR if principal.role == "admin" else KEY
                refusal = connection.admit(principal.key_id, standing)
                if refusal is not None:
                    raise not_served(refusal)
        except GatewayError as error:
            self._fail(error, head.path, connection, request_id)
            return DROPPED
        origin, proxied = origin_of(self._proxies, connection.address, head.fields)
        fields = [
            (b"x-forwarded-for", origin.address.encode("latin-1", "replace")),
            (b"x-forwarded-proto", _scheme(origin, connection).encode()),
            (b"x-request-id", request_id.encode()),
        ]
        if proxied:
            fields.append((BEHIND_PROXY_FIELD, b"1"))
        passed = Passed(self._controller, head, connection, fields, known=principal is not None)
        passed.begin()
        return passed


def _scheme(origin: Origin, connection: ServerConnection) -> str:
    return origin.scheme or ("https" if connection.secure else "http")


def request_id_of(named: Mapping[bytes, bytes]) -> str:
    """The client's request id in a request's fields if it is valid, else a new one."""
    given = named.get(b"x-request-id")
    if given and len(given) <= _LONGEST_ID and not given.translate(None, _ID_BYTES):
        return given.decode()
    return f"{getrandbits(64):016x}"  # an id, not a secret


def _names_one(path: bytes) -> bool:
    """Whether a path is that of one model. Its name may have slashes."""
    return path.startswith(_ONE) and len(path) > len(_ONE)


def mistaken_base(path: bytes) -> str | None:
    """The mistake in the base URL of a client that requests this path; None if no mistake is known.

    Clients append a path such as `/chat/completions` to their base URL.
    """
    parts = [part for part in path.split(b"/") if part]
    end = len(parts)
    while parts and parts[0] == b"v1":
        del parts[0]
    meant = b"/v1/" + b"/".join(parts)
    if not parts or path == meant or not (meant in _ALLOWED or meant.startswith(_ONE)):
        return None
    versions = end - len(parts)
    if versions != 1:
        wrong = "without /v1" if not versions else f"with /v1 {versions} times"
    elif b"//" in path:
        wrong = "with //"
    else:
        wrong = "with / at its end"
    requested, right = path.decode("latin-1"), meant.decode("latin-1")
    return f"no such path: {requested}, which is {right} {wrong}; set the client's base URL to http(s)://HOST:PORT/v1"


def _view(name: str, served: ServedName, now: int) -> ModelView:
    state = ModelState(state=served.state, adapter_of=served.adapter_of or None)
    return ModelView(id=name, created=now, gpuward=state)


def _credentials(head: RequestHead) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
    """The credentials in a head, and their digests: at least one."""
    credentials: tuple[tuple[str, ...], tuple[bytes, ...]] | None = head.alike.get(_CREDENTIALS)
    if credentials is None:
        keys = credentials_of(head) or ("",)
        credentials = head.alike[_CREDENTIALS] = (keys, tuple(map(digest_of, keys)))
    return credentials


def _check(head: RequestHead, path: bytes) -> None:
    """Refuses a request that no body could make valid."""
    allowed = b"GET" if _names_one(path) else _ALLOWED.get(path)
    _check_characters(head)
    if allowed is None:
        raise GatewayError(404, "not_found", mistaken_base(path) or _NO_SUCH_PATH)
    if head.method != allowed:
        names = allowed.decode()
        message = f"method {head.method.decode('latin-1')} is not allowed here; allowed: {names}"
        raise GatewayError(405, "method_not_allowed", message, headers={"Allow": names})
    _check_type(head, path)


def _check_characters(head: RequestHead) -> None:
    if head.target.find(b"%") >= 0 and _UNUSABLE.search(unquote_to_bytes(head.target)):
        raise GatewayError(400, "invalid", "URL: contains control characters; remove them")


def _check_type(head: RequestHead, path: bytes) -> None:
    """Refuses a body that an engine might read otherwise than the gateway does."""
    for name in _GIVEN_ONCE:
        if len(head.named) < len(head.fields) and len(values(head.fields, name)) > 1:
            raise GatewayError(400, "invalid", f"{name.decode().title()}: must be given once; leave out the others")
    encoding = head.named.get(b"content-encoding", b"").lower()
    if encoding and encoding != b"identity":
        text = encoding.decode("latin-1")
        message = f"Content-Encoding: {text} is not supported here; send the body uncompressed"
        raise GatewayError(415, "unsupported_encoding", message)
    kind = head.named.get(b"content-type", b"")
    if path in _FORMS and media_type(kind) not in _FORM_TYPES:
        message = "Content-Type: must be multipart/form-data here, or application/json; set it to what the body is"
        raise GatewayError(415, "unsupported_type", message)
    if kind.find(b";") < 0:
        return
    try:
        check_charset(kind.decode("latin-1"))
    except BadRequestError as error:
        raise GatewayError(400, "invalid", str(error), param=error.param or None) from error
