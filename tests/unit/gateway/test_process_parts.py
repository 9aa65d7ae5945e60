"""Parts of a gateway of several processes: joined metrics, bounds on bodies, parent pipes."""

import os
import socket

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.lifecycle.parent_pipe import Holder, holder_of
from gateway.reporting.health import joined
from gateway.settings import part_of
from http1.protocol.listening import open_listeners


def exposition(count: int) -> str:
    registry = CollectorRegistry()
    Counter("taken", "Taken.", ["status"], registry=registry).labels('2"x\n').inc(count)
    Gauge("held_bytes", "Held.", registry=registry).set(count)
    Histogram("took_seconds", "Took.", buckets=[1, 2], registry=registry).observe(count)
    return generate_latest(registry).decode()


def test_joined_metrics_keep_each_process_apart() -> None:
    text = joined({"1": exposition(1), "2": exposition(5)}).decode()
    assert text.count("# TYPE taken_total counter") == 1
    assert text.count("# HELP held_bytes Held.") == 1
    samples = {
        (
            sample.name,
            sample.labels.get("process"),
            sample.labels.get("status") or sample.labels.get("le"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["taken_total", "1", '2"x\n'] == 1
    assert samples["taken_total", "2", '2"x\n'] == 5
    assert samples["held_bytes", "2", None] == 5
    assert samples["took_seconds_bucket", "1", "1.0"] == 1
    assert samples["took_seconds_bucket", "2", "+Inf"] == 1
    assert samples["took_seconds_sum", "2", None] == 5


@pytest.mark.parametrize(("all_mib", "processes", "mib"), [(512, 1, 512), (512, 4, 128), (256, 8, 64), (64, 64, 64)])
def test_each_process_has_its_part_of_the_bodies(all_mib: int, processes: int, mib: int) -> None:
    assert part_of(all_mib, processes) == mib * 2**20, "one body of the largest size always fits"


def test_a_lifeline_tells_several_readers_of_its_holder() -> None:
    reading, writing = os.pipe()
    try:
        assert holder_of(reading) is Holder.LIVES
        os.write(writing, b"x")
        assert [holder_of(reading), holder_of(reading)] == [Holder.REPLACED] * 2
        os.close(writing)
        writing = -1
        assert holder_of(reading) is Holder.ENDED
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def test_sockets_share_a_port_with_one_another_alone() -> None:
    opened = open_listeners("127.0.0.1", 0, 3)
    try:
        port = opened[0].getsockname()[1]
        assert {one.getsockname()[1] for one in opened} == {port}
        with pytest.raises(OSError, match="in use"):
            open_listeners("127.0.0.1", port, 2)
        clients = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(60)]
        taken = [accepted(one) for one in opened]
        for client in clients:
            client.close()
        assert sum(taken) == 60
        assert all(taken), f"the kernel spreads connections: {taken}"
    finally:
        for one in opened:
            one.close()


def accepted(listening: socket.socket) -> int:
    listening.setblocking(False)
    count = 0
    try:
        while True:
            listening.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count


@pytest.mark.parametrize("count", [1, 2])
def test_a_socket_that_a_process_has_shut_down_serves_its_port_again(count: int) -> None:
    """As where a serving process alone gets SIGTERM: its successor listens on the same socket."""
    opened = open_listeners("127.0.0.1", 0, count)
    try:
        port = opened[0].getsockname()[1]
        for one in opened:
            one.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        for one in opened:
            one.listen(8)
        socket.create_connection(("127.0.0.1", port), 5).close()
    finally:
        for one in opened:
            one.close()
