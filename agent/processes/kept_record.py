"""The record of one process: each change is journalled, then reported if the controller needs it."""

from collections.abc import Callable

import structlog
from msgspec.structs import replace

from agent.logs.redaction import Redactor, secrets_of
from agent.state.journal import Journal
from agent.state.process_records import ProcessKey, ProcessRecord

log = structlog.get_logger()


class KeptRecord:
    """The journalled record of one process."""

    def __init__(self, record: ProcessRecord, journal: Journal, report: Callable[[ProcessRecord], None]) -> None:
        self.now = record
        self.redactor = Redactor(() if record.order is None else secrets_of(record.order))
        self._journal = journal
        self._report = report
        self._lasting: str | None = None  # the message that a temporary one hides

    @property
    def key(self) -> ProcessKey:
        return self.now.key

    @property
    def lasting_message(self) -> str:
        """The message without a temporary one of `report_for_now`."""
        return self.now.message if self._lasting is None else self._lasting

    def amend(self, **changes: object) -> None:
        """Journals a change without a report of its own."""
        self.now = replace(self.now, **changes)
        self._journal.amend(self.now)

    def write(self, **changes: object) -> None:
        """Journals and reports."""
        if "message" in changes:
            self._lasting = None
            changes["message"] = self.redactor.redact_text(str(changes["message"]))
        before = self.now.state
        self.now = self._journal.record(replace(self.now, **changes))
        record = self.now
        if record.state != before:
            log.info(
                "process state changed",
                instance=record.instance,
                epoch=record.epoch,
                rank=record.rank,
                state=record.state,
                reason=record.reason,
                exit_code=record.exit_code,
            )
        self._report(record)

    def report_progress(self, message: str) -> None:
        """Reports a new message, unless the process is to be stopped."""
        if self.now.stop is None and self.redactor.redact_text(message) != self.now.message:
            self.write(message=message)

    def report_for_now(self, message: str) -> bool:
        """Reports a temporary message, such as what delays a stop; returns whether it is new."""
        if self.redactor.redact_text(message) == self.now.message:
            return False
        lasting = self.lasting_message
        self.write(message=message)
        self._lasting = lasting
        return True
