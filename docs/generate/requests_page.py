"""docs/requests.md: paths, errors and bounds of requests, from gateway and API. What an error means is data here."""

from importlib import import_module
from typing import Any, Final

from controller.api.errors import DATABASE_UNAVAILABLE
from gateway.bodies import engine_controls
from gateway.settings import GatewaySettings
from http1.protocol.connection_rules import limits_for
from schemas.api.models import FORM_PATHS, MODEL_PATH, MODEL_PATHS, MODEL_SUMMARY, MODELS_PATH, MODELS_SUMMARY
from schemas.manifest.serving import ServingLimits
from tables import code, duration, sentence, table

HEAD: Final = """\
# Requests: paths, errors, bounds

<!-- Written by `make reference` from the gateway and the API. Do not edit. -->

[Gateway](gateway.md) describes how a request finds its model, and [Live data](live.md) how to follow changes. The API
itself is in `/openapi.json`.
"""
# Errors of requests to models, by status and code.
ERRORS: Final[dict[tuple[int, str], str]] = {
    (400, "invalid"): "the body is not a JSON object in UTF-8 with exactly one `model`, or is not a valid form",
    (400, "malformed"): "the request is not valid HTTP",
    (400, "model_too_late"): "the first MiB of a form has no field `model`; write it before the file",
    (401, "unauthenticated"): "the key is missing or unknown",
    (403, "forbidden"): "the role of the key does not allow this",
    (404, "model_not_found"): "no deployment has this name, or this key may not request it",
    (404, "not_found"): "no such path; the message names a base URL that lacks `/v1` or has it twice",
    (405, "method_not_allowed"): "the path takes another method",
    (408, "body_timed_out"): "the body did not arrive in time, or too little of a form came in its last window",
    (413, "too_large"): "the body exceeds its bound, below",
    (415, "unsupported_encoding"): "the body is compressed; send it as it is",
    (415, "unsupported_type"): "a path of forms takes `multipart/form-data` and `application/json`",
    (422, "crashes_engine"): "this request was in flight when engines crashed, and is refused for 5 minutes; change it",
    (429, "rate_limited"): "the requests or tokens of this minute are used, or fewer are left than it may use",
    (429, "too_many_parallel"): "as many requests as the key may have are in flight",
    (429, "quota_used_up"): "the tokens of this day are used, until 00:00 UTC",
    (429, "too_much_in_flight"): "requests of this key hold too many bytes, incomplete bodies or connections",
    (431, "head_too_large"): "the head of the request is longer than 64 KiB",
    (431, "too_many_fields"): "the request has more header fields than are read",
    (500, "internal"): "a defect of the gateway; its log has the request's id",
    (502, "engine_died"): "the engine ended before it answered; the request is not repeated",
    (502, "engine_error"): "the engine answered with an error after its stream had started with comments",
    (503, "stopped"): "a user stopped the deployment, or its replicas are 0; the message has the command to start it",
    (503, "stopped_by_policy"): "a utilization policy stopped the deployment; `gpuward start` starts it",
    (503, "queue_full"): "as many requests wait as may, by `serving.queue.length`",
    (503, "waited_too_long"): "the request waited for `serving.queue.wait`",
    (503, "no_capacity"): "the model cannot be placed, and no capacity is being freed for it",
    (503, "start_failed"): "its start failed three times in a row; operators' keys get the reason in `details.why`",
    (503, "engine_busy"): "each replica answered 503, after the stream had started with comments",
    (503, "model_not_running"): "no instance answers now, and the deployment has `queue: {length: 0}`",
    (503, "overloaded"): "all requests in flight hold too many bytes, or the gateway can open no more connections",
    (503, "unavailable"): "the database is away and the key or the model is unknown here; or the gateway stops",
    (504, "timed_out"): "the engine gave no answer in time; the request is not repeated",
}
# Further codes of the API that a client can act on.
OF_API: Final[dict[str, str]] = {
    "last_admin_key": "409: it is the only valid key of an administrator; create another one first",
    "already_rotated": "409: the key has a successor; use that, or rotate it",
    "no_secrets_key": "409: this controller has no key that encrypts secrets; set `GPUWARD_SECRETS_KEY_FILE`",
    "not_recorded": "503: the change is made, and its entry in the audit log is not stored yet",
    DATABASE_UNAVAILABLE: "503: the database is away; requests to running models are still answered",
    "database_full": "503: the disk of the database is full",
    "too_many_topics": "429: more topics than one socket may have open",
    "too_many_live": "429 or 503: more live sockets of the key or the controller",
    "too_many_watches": "429 or 503: more watches of the key or the controller",
    "too_many_merged_logs": "429 or 503: more merged logs of the key or the controller",
    "too_many_followed_logs": "429 or 503: more followed logs of the key or the controller",
}
_LIVE: Final = "controller.api.live_socket.handler"
_LOGS: Final = "controller.api.resources.logs"
_SOURCE: Final = "controller.api.merged_logs.source"
_AUDIT: Final = "controller.api.audit_trail"


def _of(module: str, name: str) -> Any:
    """A constant of the code, private ones too: a bound is private to its module, and not to its reader."""
    return vars(import_module(module))[name]


def _size(bytes_: float) -> str:
    """Bytes as people write them."""
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if bytes_ >= unit and bytes_ % unit == 0:
            return f"{bytes_ / unit:g} {name}"
    return f"{bytes_:g} bytes"


def _setting(field: str) -> str:
    """A setting of the gateway: its default and its variable."""
    value = GatewaySettings.model_fields[field].default
    text = duration(value) if isinstance(value, float) else f"{value} MiB"
    return f"{text} (`GPUWARD_{field.upper()}`)"


def _limit(field: str) -> str:
    """A duration of `serving` in a manifest: its default and its name."""
    return f"{duration(ServingLimits.model_fields[field].default)} (`serving.{field}`)"


def _pair(module: str, of_key: str, total: str) -> str:
    return f"{_of(module, of_key)}, {_of(module, total)}"


def _paths() -> list[str]:
    listed = [("GET", MODELS_PATH, MODELS_SUMMARY), ("GET", MODEL_PATH, MODEL_SUMMARY)]
    listed += [("POST", path, text) for path, text in MODEL_PATHS.items()]
    listed += [("POST, form", path, text) for path, text in FORM_PATHS.items()]
    rows = [(method, code(path), sentence(text)) for method, path, text in listed]
    return ["## Paths", "", *table(("method", "path", "does"), rows)]


def _errors() -> list[str]:
    rows = [(str(status), code(name), sentence(text)) for (status, name), text in ERRORS.items()]
    api = [(code(name), sentence(text)) for name, text in OF_API.items()]
    return [
        "## Errors",
        "",
        *table(("status", "code", "meaning"), rows),
        "Further codes of the API:",
        "",
        *table(("code", "meaning"), api),
    ]


def _refused() -> list[str]:
    advice = _of(engine_controls.__name__, "_ADVICE")
    intro = (
        "Fields at the top level by which a client would reach beyond its own request. Values without effect pass: "
        "`null`, `false`, `-1`, an empty text or list, and as `background` the values that images have."
    )
    return [
        "## Refused fields",
        "",
        intro,
        "",
        *table(("field", "instead"), ((code(a), sentence(advice[a])) for a in sorted(advice))),
    ]


def _names(module: str, *constants: str) -> str:
    """Names in constants of bytes; those that only begin so end with `*`."""
    found = sorted(
        f"{text.decode()}{'*' if constant.endswith('PREFIXES') else ''}"
        for constant in constants
        for text in _of(module, constant)
    )
    return ", ".join(map(code, found))


def _headers() -> list[str]:
    module = "gateway.requests.heads"
    rows = [
        ("of a request, not passed to engines", _names(module, "_KEPT_HERE", "_KEPT_PREFIXES")),
        ("of an answer, passed to clients", _names(module, "_RETURNED_NAMES", "_RETURNED_PREFIXES")),
        ("of these, not passed to clients", _names(module, "_NOT_RETURNED_PREFIXES")),
        (
            "of answers below `/apps`, passed too",
            f"{_names(module, '_RETURNED_OF_APPS')}, `location`, `sec-websocket-*`",
        ),
    ]
    intro = "`*` is any end of a name. Each `X-Request-ID` of a client reaches its engine with random digits behind it."
    return ["## Headers", "", intro, "", *table(("headers", "names"), rows)]


def _forms() -> list[str]:
    part = ", ".join(code(name.decode().title()) for name in sorted(_of("gateway.bodies.form_grammar", "_FIELDS")))
    rows = [
        (code("Content-Type"), "one `boundary` of 1 to 70 characters, which no part contains; at most `charset=utf-8`"),
        ("around the parts", "nothing before the first boundary, line ends after the last; CRLF ends each line"),
        ("the head of a part", f"each once at most: {part}"),
        (code("Content-Disposition"), '`form-data; name="NAME"`, of a file with `; filename="FILE"`'),
        ("NAME", 'printable ASCII without `"`, `;`, `=` and a backslash'),
        ("FILE", "no line breaks; a quote as `%22` or behind a backslash; with a quote or `;` in it no `name=`"),
        (
            code("Content-Transfer-Encoding"),
            ", ".join(code(name.decode()) for name in sorted(_of("gateway.bodies.form_grammar", "_PLAIN"))),
        ),
        ("fields", "one `model`, a text in UTF-8; none that another parser may read as it, and no `_charset_`"),
    ]
    intro = "The grammar of forms (`multipart/form-data`). What browsers, curl and the usual clients send is in it."
    return ["## Forms", "", intro, "", *table(("part", "takes"), rows)]


def _of_requests() -> list[tuple[str, str]]:
    form = "gateway.requests.form_upload"
    window, least = _of(form, "_WINDOW_S"), _of(form, "_LEAST_BYTES")
    upload = duration(_of("gateway.requests.states", "UPLOAD_LIMIT_S"))
    return [
        ("body", _size(_of("gateway.requests.upload", "MAX_BODY_BYTES"))),
        ("a number in a body", f"{_size(_of('gateway.bodies.json_body', '_LONGEST_NUMBER'))} of digits"),
        ("levels of a body, one in the other", str(_of("gateway.bodies.json_body", "MOST_DEPTH"))),
        ("part of a form that must name the model", f"the first {_size(_of(form, 'MOST_HELD_BYTES'))}"),
        ("bodies in flight, of one key", _setting("bodies_in_flight_per_key")),
        ("bodies in flight, of all keys", _setting("bodies_in_flight")),
        ("time to send a body; of a form as much again from when an engine takes it", upload),
        ("what a form must bring while an engine takes it", f"{_size(least)}, or its end, each {duration(window)}"),
        ("wait for the first byte of an answer", _limit("first_token_timeout")),
        ("silence between two pieces of an answer", _limit("silence_timeout")),
        ("a client that takes nothing of its answer", _setting("client_stall")),
        ("instances that are tried for one request", str(_of("gateway.requests.dispatch", "_MOST_TRIES"))),
        ("characters of a client's `X-Request-ID`", str(_of("gateway.admission.router", "_LONGEST_ID"))),
    ]


def _of_connections() -> list[tuple[str, str]]:
    limits = limits_for(2**16)
    share = limits.most
    return [
        ("a head that is not complete", f"closed after {duration(limits.head_s)}"),
        ("a connection that is kept for its next request", f"closed after {duration(limits.idle_s)}"),
        ("a connection without a valid key that awaits an answer", f"closed after {duration(limits.answer_s)}"),
        ("connections of one address without a valid key", f"{limits.most_unknown_per_address}, or half of all"),
        ("connections that are kept for new heads and agents", f"1/{share // limits.reserved}"),
        ("connections that are kept for administrators' keys", f"1/{share // limits.for_administrators}"),
        ("connections that are kept for keys with fewer than others", f"1/{share // limits.for_fewer}"),
        ("incomplete bodies of one key", f"1/{round(share / limits.most_bodies_per_client)} of the connections"),
        ("open files below which a daemon warns", str(_of("http1.daemon.open_files", "LOW_LIMIT"))),
    ]


def _of_live() -> list[tuple[str, str]]:
    watches = "controller.api.resources.watch"
    burst, rate = (_size(_of(_SOURCE, name)) for name in ("_BURST_BYTES", "_BYTES_PER_S"))
    quiet = _of(_LIVE, "PING_S") * _of(_LIVE, "_MOST_QUIET")
    return [
        ("topics of one socket", str(_of(_LIVE, "MAX_TOPICS"))),
        ("sockets of one key, of one controller", _pair(_LIVE, "MAX_OF_KEY", "MAX_SOCKETS")),
        (
            "watches of one key, of one controller; topics `objects` count",
            _pair(watches, "_WATCHES_OF_KEY", "_MOST_WATCHES"),
        ),
        ("merged logs of one key, of one controller", _pair(_LOGS, "_MERGES_OF_KEY", "_MOST_MERGES")),
        (
            "followed logs of single instances, of one key, of one controller",
            _pair(_LOGS, "_FOLLOWED_OF_KEY", "_MOST_FOLLOWED"),
        ),
        ("logs in one merge", str(_of("controller.api.merged_logs.merge", "MOST_LOGS"))),
        (
            "a log of a merge that its client reads slowly",
            f"{_size(_of(_SOURCE, 'HELD_BYTES'))} are held, then its agent waits",
        ),
        ("a log of a merge, however fast its agent sends", f"{burst} at once, then {rate} a second"),
        ("a message of the client", f"{_size(_of(_LIVE, 'MAX_MESSAGE_BYTES'))} (closed with 1009)"),
        ("messages of the client", f"{1 / _of(_LIVE, '_SPACING_S'):g} a second; more wait"),
        (
            "`open` of one socket",
            f"{_of(_LIVE, 'OPENS_AT_ONCE')} at once, then {_of(_LIVE, 'OPENS_PER_S'):g} a second; more wait",
        ),
        ("what waits for a client to read", f"{_size(_of(_LIVE, 'MAX_WAITING_BYTES'))} and one message more"),
        (
            "a client that takes nothing of what waits",
            f"cut after {duration(_of('controller.api.streams', 'SLOW_CLIENT_S'))}",
        ),
        ("a client that neither takes anything nor answers pings", f"cut after {duration(quiet)}"),
    ]


def _of_audit_log() -> list[tuple[str, str]]:
    return [
        (
            "entries of refused requests, of one key",
            f"{_of(_AUDIT, '_REFUSED_A_MINUTE')} a minute; the next entry counts the rest",
        ),
        ("entries of refused requests without a valid key", f"{_of(_AUDIT, '_STRANGERS_A_MINUTE')} a minute"),
        ("entries of logs that one key reads", f"{_of(_AUDIT, '_READS_A_MINUTE')} a minute"),
        ("wait for an entry that must be stored before the answer", duration(_of(_AUDIT, "_RECORD_LIMIT_S"))),
    ]


def page() -> str:
    """The whole page."""
    groups = (
        ("Bounds of a request", _of_requests()),
        ("Bounds of connections", _of_connections()),
        ("Bounds of live data and logs", _of_live()),
        ("Bounds of the audit log", _of_audit_log()),
    )
    bounds = [line for title, rows in groups for line in (f"## {title}", "", *table(("bound", "value"), rows))]
    return "\n".join([HEAD, *_paths(), *_errors(), *_refused(), *_headers(), *_forms(), *bounds]).rstrip() + "\n"
