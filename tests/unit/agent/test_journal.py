import gc
import sqlite3
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from agent.errors import DataFolderError
from agent.state import journal as journal_module
from agent.state.journal import Journal
from agent.state.process_records import ProcessKey, ProcessRecord


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "data")
    yield opened
    opened.close()


def _record(instance: str, epoch: int = 1, **fields: object) -> ProcessRecord:
    return msgspec.convert(
        {"instance": instance, "epoch": epoch, "rank": 0, "state": "running", "boot_id": "b", **fields}, ProcessRecord
    )


def test_the_journal_is_the_same_after_it_is_reopened(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.remember(worker="w", credential="c", highest_term=7)
    kept = first.record(_record("i-1", 4, pid=12, port=900))
    first.amend(replace(kept, pid=13))
    first.close()
    again = Journal(tmp_path)
    assert again.host_state == first.host_state
    assert again.host_state.highest_term == 7
    assert again.live() == (replace(kept, pid=13),)
    assert again.epochs == {"i-1": 4}
    again.close()


def test_the_database_is_durable_at_every_write(journal: Journal) -> None:
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_sequence_rises_and_epochs_only_rise(journal: Journal) -> None:
    numbers = [journal.record(_record(name, epoch)).seq for name, epoch in (("a", 5), ("a", 3), ("b", 1))]
    assert numbers == [1, 2, 3]
    assert journal.epochs == {"a": 5, "b": 1}


def test_only_exited_processes_up_to_the_number_are_acknowledged(journal: Journal) -> None:
    live = journal.record(_record("live"))
    old = journal.record(_record("old", state="exited", reason="exit"))
    new = journal.record(_record("new", state="exited", reason="exit"))
    journal.acknowledge(old.seq)
    assert journal.unacknowledged() == (live, new)
    assert journal.processes[old.key].acked


def test_ended_processes_are_bounded_and_their_epochs_stay(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "ENDED_KEPT", 3)
    for number in range(6):
        ended = journal.record(_record(f"i-{number}", state="exited", reason="exit"))
        journal.acknowledge(ended.seq)
    assert [record.instance for record in journal.processes.values()] == ["i-3", "i-4", "i-5"]
    assert [journal.of(f"i-{number}") == () for number in range(6)] == [True] * 3 + [False] * 3
    assert len(journal.epochs) == 6
    rows = journal._db.execute("SELECT count(*) FROM processes").fetchone()
    assert rows == (3,)


def test_a_failed_write_changes_nothing(journal: Journal) -> None:
    before = journal.record(_record("i-1"))
    journal._db.execute("CREATE TRIGGER full BEFORE INSERT ON processes BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(sqlite3.IntegrityError, match="disk full"):
        journal.record(replace(before, state="unhealthy"))
    assert journal.live() == (before,)
    assert journal.host_state.report_seq == before.seq


@pytest.mark.usefixtures("journal")
def test_one_agent_per_folder(tmp_path: Path) -> None:
    with pytest.raises(DataFolderError, match="another agent"):
        Journal(tmp_path / "data")


def test_an_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderError, match="--data-dir"):
        Journal(tmp_path / "file")


def test_a_newer_agents_journal_is_an_error(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.record(_record("i-1"))
    first._db.execute("""UPDATE processes SET body = '{"from_the_future": 1}'""")
    first.close()
    with pytest.raises(DataFolderError, match="newer"):
        Journal(tmp_path)


def test_what_has_ended_is_found_and_takes_no_memory(tmp_path: Path) -> None:
    journal = Journal(tmp_path)

    def end(numbers: range) -> None:
        for number in numbers:
            running = journal.record(_record(f"i-{number}", 2, port=900, message="x" * 200))
            ended = journal.record(replace(running, state="exited", reason="exit"))
            journal.acknowledge(ended.seq)

    end(range(100))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    end(range(100, 400))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 50_000, "less than the names of 300 processes"
    journal.record(_record("i-7", 3))
    refused = journal.record(_record("r", state="exited", reason="gone", refusal="claim_conflict", acked=True))
    for _ in range(2):
        key = ProcessKey("i-7", 2, 0)
        assert journal.processes[key].reason == "exit"
        assert journal.processes[refused.key].refusal == "claim_conflict"
        assert journal.processes.get(ProcessKey("i-7", 1, 0)) is None
        assert (journal.epochs["i-7"], journal.epochs["i-8"], journal.epochs.get("no")) == (3, 2, None)
        assert [one.port for one in journal.of("i-8")] == [900]
        assert [one.epoch for one in journal.of("i-7")] == [3], "the one that lives"
        assert [one.epoch for one in journal.live()] == [3]
        assert journal.unacknowledged() == journal.live()
        assert len(journal.processes) == 402
        journal.close()
        journal = Journal(tmp_path)
    journal.close()


def test_epochs_are_bounded_and_the_last_used_stay(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "EPOCHS_KEPT", 3)
    for name in ("a", "b", "c", "a", "d", "e"):
        journal.acknowledge(journal.record(_record(name, state="exited", reason="exit")).seq)
    assert list(journal.epochs) == ["a", "d", "e"]
