"""Parses agents' messages and refuses values that the database could not hold. Pure; one message at a time."""

import math
import re
from typing import Any, Final

from pydantic import ValidationError

from controller.domain.access.quoted_lines import BEGIN, END
from controller.hub.bounds import MalformedMessageError, read_message
from controller.hub.readings import Doubts, first_problem, forgiven, possible_gpu, takeable
from schemas.wire import (
    CommandResult,
    DeviceFacts,
    Goodbye,
    Heartbeat,
    Hello,
    HostFacts,
    Inventory,
    InventoryChanged,
    ProcessReport,
    ProcessSample,
    Readings,
    SamplePeriod,
    Samples,
    Told,
    agent_message,
)

MAX_NAME: Final = 512
MAX_TEXT: Final = 4_000
MAX_RECEIPT: Final = 2**18  # characters: 256 claims take a quarter of that
_MAX_MESSAGE: Final = 2**20
_MAX_SECONDS: Final = 1e10
_MIN_PERIOD_S: Final = 0.5
_MAX_PERIOD_S: Final = 120.0
_MAX_STOP_S: Final = 60.0  # a period may end late, but nothing is read for so long without a stop
_AHEAD_S: Final = 1.0  # a period may end a moment after the message's own time
_MAX_MODELS: Final = 128  # of one process: its model, a draft model, its adapters
_MAX_INT: Final = 2**31 - 1
_MAX_BIGINT: Final = 2**62
_MAX_COUNT: Final = 2**53  # of what the controller counts on from here
_MAX_MIB: Final = 2**40
_GPU_UUID: Final = re.compile(r"(GPU|MIG)-[\w.:/-]{1,200}")
# What no text of an agent may hold: PostgreSQL's text has no NUL, and only the hub itself marks lines of logs. An
# engine's output can have any of them. Another character stands for each, so that the keys that are known stay so few.
_STRANGE: Final = str.maketrans(dict.fromkeys(("\x00", BEGIN, END), "\ufffd"))
_ESCAPED: Final = re.compile(r"\\u(?:0000|[fF][dD][dD][01])")
_FINGERPRINT: Final = re.compile(r"([0-9a-f]{64})?")

AgentMessage = Hello | Heartbeat | InventoryChanged | ProcessReport | Samples | CommandResult | Goodbye


def parse_message(raw: str, doubts: Doubts | None = None) -> AgentMessage:
    """Parses one message. Impossible readings and periods that cannot be taken are left out, and noted in `doubts`.

    Raises:
        MalformedMessageError: it violates the protocol, or a value is out of bounds.
    """
    doubts = doubts if doubts is not None else Doubts()
    try:
        sent = read_message(raw, doubts)
        message = _possible(_parsed(_without_strange(sent) if _may_hold_strange(raw) else sent, doubts), doubts)
    except RecursionError as error:
        raise MalformedMessageError("message: is nested too deeply") from error
    _check(message)
    return message


def _parsed(sent: dict[str, Any], doubts: Doubts) -> AgentMessage:
    try:
        return _validated(sent)
    except MalformedMessageError:
        if (kept := forgiven(sent, doubts)) == sent:
            raise
        return _validated(kept)


def _validated(sent: dict[str, Any]) -> AgentMessage:
    try:
        message = agent_message.validate_python(sent, strict=False)
    except ValidationError as error:
        raise MalformedMessageError(first_problem(error)) from error
    return message  # type: ignore[no-any-return]  # the adapter is typed Any; it yields one of the union


def _possible(message: AgentMessage, doubts: Doubts) -> AgentMessage:
    match message:
        case Heartbeat(gpus=gpus) if gpus is not None:
            return message.model_copy(update={"gpus": tuple(possible_gpu(gpu, doubts) for gpu in gpus)})
        case Hello(inventory=inventory) | InventoryChanged(inventory=inventory) if inventory.gpus is not None:
            gpus = tuple(possible_gpu(gpu, doubts) for gpu in inventory.gpus)
            return message.model_copy(update={"inventory": inventory.model_copy(update={"gpus": gpus})})
        case Samples():
            _sent(message.sent_s)

            def check(period: SamplePeriod) -> None:
                _period(period, message.sent_s)

            return message.model_copy(update={"periods": takeable(message.periods, check, doubts)})
        case _:
            return message


def _may_hold_strange(raw: str) -> bool:
    """Whether a text of the message may hold one of them, written out or escaped."""
    return BEGIN in raw or END in raw or ("\\u" in raw and bool(_ESCAPED.search(raw)))


def _without_strange(value: Any) -> Any:
    if isinstance(value, str):
        return value.translate(_STRANGE)
    if isinstance(value, list):
        return [_without_strange(item) for item in value]
    if isinstance(value, dict):
        return {_without_strange(key): _without_strange(item) for key, item in value.items()}
    return value


def _check(message: AgentMessage) -> None:
    match message:
        case Hello():
            _hello(message)
        case Heartbeat():
            _sent(message.sent_s)
            _text("gpus_error", message.gpus_error, MAX_TEXT)
            _gpus(message.gpus)
        case InventoryChanged():
            _inventory(message.inventory)
        case ProcessReport():
            _report(message)
        case Samples():
            _samples(message)
        case CommandResult():
            _number("command_id", message.command_id, _MAX_BIGINT)
            _text("message", message.message, _MAX_MESSAGE)
        case Goodbye():
            return


def _hello(message: Hello) -> None:
    _text("boot_id", message.boot_id, MAX_NAME)
    _text("agent_version", message.agent_version, MAX_NAME)
    _number("highest_term", message.highest_term, _MAX_COUNT)
    _number("highest_session", message.highest_session, _MAX_COUNT)
    _told(message.told)
    _number("report_seq", message.report_seq or 0, _MAX_BIGINT)
    _sent(message.sent_s)
    _inventory(message.inventory)
    for report in message.processes:
        _report(report)
    for receipt in message.receipts:
        _text("receipts", receipt, MAX_RECEIPT)
    _text("advertise", message.advertise or "", MAX_NAME)
    if not _FINGERPRINT.fullmatch(message.certificate):
        raise MalformedMessageError("certificate: must be a SHA-256 in 64 hexadecimal digits, or empty")


def _told(told: Told | None) -> None:
    if told is not None:
        _number("told.term", told.term, _MAX_COUNT)
        _number("told.session", told.session, _MAX_COUNT)


def _inventory(inventory: Inventory) -> None:
    host = inventory.host
    for field in ("os", "arch", "hostname"):
        _text(field, getattr(host, field), MAX_NAME)
    _text("driver", host.driver or "", MAX_NAME)
    _number("memory_mib", host.memory_mib, _MAX_MIB)
    _number("reserved_mib", host.reserved_mib, _MAX_MIB)
    _number("cpu_milli", host.cpu_milli, _MAX_INT)
    for engine in host.engines or ():
        _text("engines", engine, MAX_NAME)
    _runtimes(host)
    for key, value in host.labels.items():
        _text("labels", key, MAX_NAME)
        _text(f"labels.{key}", value, MAX_NAME)
    _text("gpus_error", inventory.gpus_error, MAX_TEXT)
    _gpus(inventory.gpus)


def _runtimes(host: HostFacts) -> None:
    if len({runtime.name for runtime in host.runtimes}) != len(host.runtimes):
        raise MalformedMessageError("runtimes: the same name appears twice")
    for runtime in host.runtimes:
        _text("runtimes.name", runtime.name, MAX_NAME)
        _text("runtimes.version", runtime.version, MAX_NAME)
        _text("runtimes.reason", runtime.reason, MAX_TEXT)


def _gpus(gpus: tuple[DeviceFacts, ...] | None) -> None:
    if gpus is None:
        return
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise MalformedMessageError("gpus: the same UUID appears twice")
    for gpu in gpus:
        _uuid("gpus.uuid", gpu.uuid)
        if gpu.parent is not None:
            _uuid("gpus.parent", gpu.parent)
        _text("gpus.model", gpu.model, MAX_NAME)
        _text("gpus.health_reason", gpu.health_reason, MAX_TEXT)
        _text("gpus.compute_capability", gpu.compute_capability or "", MAX_NAME)
        _number("gpus.index", gpu.index, _MAX_INT)
        _number("gpus.memory_mib", gpu.memory_mib, _MAX_MIB)
        _number("gpus.reserved_mib", gpu.reserved_mib, _MAX_MIB)
        _number("gpus.used_mib", gpu.used_mib or 0, _MAX_MIB)
        if gpu.utilization is not None:
            _between("gpus.utilization", gpu.utilization, 0, 100)


def _report(report: ProcessReport) -> None:
    _text("instance", report.instance, MAX_NAME)
    _text("message", report.message, _MAX_MESSAGE)
    _text("log_line", report.log_line or "", _MAX_MESSAGE)
    _number("epoch", report.epoch, _MAX_INT)
    _number("rank", report.rank, _MAX_INT)
    _number("seq", report.seq, _MAX_BIGINT)
    _number("pid", report.pid or 0, _MAX_INT)
    _number("exit_code", abs(report.exit_code or 0), _MAX_INT)
    _text("image_digest", report.image_digest or "", MAX_NAME)
    _text("image_repository", report.image_repository or "", MAX_NAME)
    _number("model_commits", len(report.model_commits), _MAX_MODELS)
    for model, commit in report.model_commits.items():
        _text("model_commits", model, MAX_NAME)
        _text("model_commits", commit, MAX_NAME)


def _sent(sent_s: float | None) -> None:
    if sent_s is not None:
        _between("sent_s", sent_s, 0, _MAX_SECONDS)


def _samples(samples: Samples) -> None:
    _sent(samples.sent_s)


def _period(period: SamplePeriod, sent_s: float) -> None:
    _number("periods.seq", period.seq, _MAX_BIGINT)
    _between("periods.sampled_s", period.sampled_s, 0, sent_s + _AHEAD_S)
    _between("periods.period_s", period.period_s, _MIN_PERIOD_S, _MAX_PERIOD_S)
    _between("periods.read_s", period.read_s or 0.0, 0, _MAX_PERIOD_S + _MAX_STOP_S)
    _period_gpus(period)
    for process in period.processes:
        _process_sample(process)


def _period_gpus(period: SamplePeriod) -> None:
    if len({gpu.uuid for gpu in period.gpus}) != len(period.gpus):
        raise MalformedMessageError("periods.gpus: the same UUID appears twice")
    for gpu in period.gpus:
        _uuid("periods.gpus.uuid", gpu.uuid)
        _readings("periods.gpus", gpu)
        _number("periods.gpus.used_mib", gpu.used_mib or 0, _MAX_MIB)


def _process_sample(process: ProcessSample) -> None:
    _text("periods.processes.instance", process.instance, MAX_NAME)
    _number("periods.processes.epoch", process.epoch, _MAX_INT)
    _number("periods.processes.rank", process.rank, _MAX_INT)
    _number("periods.processes.requests", process.requests or 0, _MAX_INT)
    for uuid, own in process.utilization.items():
        _uuid("periods.processes.utilization", uuid)
        if own is not None:
            _readings("periods.processes.utilization", own)


def _readings(field: str, readings: Readings) -> None:
    _between(f"{field}.mean", readings.mean, 0, 100)
    _between(f"{field}.max", readings.max, 0, 100)


def _uuid(field: str, uuid: str) -> None:
    if not _GPU_UUID.fullmatch(uuid):
        raise MalformedMessageError(f"{field}: must be a GPU's UUID, such as GPU-8f2c..., got {uuid[:80]!r}")


def _text(field: str, value: str, limit: int) -> None:
    if len(value) > limit:
        raise MalformedMessageError(f"{field}: must be at most {limit} characters, got {len(value)}")
    if limit == MAX_NAME and not value.isprintable():  # longer ones are texts, which are shown escaped
        raise MalformedMessageError(f"{field}: must not contain control characters, got {value[:80]!r}")


def _number(field: str, value: int, limit: int) -> None:
    if not 0 <= value <= limit:
        raise MalformedMessageError(f"{field}: must be 0 to {limit}, got {value}")


def _between(field: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise MalformedMessageError(f"{field}: must be {low:g} to {high:g}, got {value}")
