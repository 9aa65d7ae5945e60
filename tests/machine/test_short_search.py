"""A short search of the ledger's machine, for each change. `make test-cases` runs the scenarios and a longer search."""

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from machine.examples import Bench
from machine.rules import LedgerMachine
from support.database.postgres import PostgresServer
from support.profiles import short_settings

EXAMPLES = 3


def test_the_ledger_holds_in_a_short_search(postgres: PostgresServer) -> None:
    bench = Bench(postgres)
    LedgerMachine.bench = bench
    try:
        run_state_machine_as_test(LedgerMachine, settings=settings(short_settings(), max_examples=EXAMPLES))
    finally:
        bench.close()
    assert bench.tally
