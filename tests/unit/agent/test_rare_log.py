"""Log lines of one cause come once a minute."""

from typing import Any

from agent.gpus.child_reader import RareLog


class Lines(list[dict[str, Any]]):
    def warning(self, event: str, **context: Any) -> None:
        self.append({"event": event, **context})


def test_lines_of_one_cause_come_once_a_minute() -> None:
    lines, now = Lines(), [0.0]
    log = RareLog(lines, lambda: now[0])
    for second in range(125):
        now[0] = float(second)
        log.warning("GPU not healthy", cause="a", gpu="a")
        if second == 5:
            log.warning("GPU not healthy", cause="b", gpu="b")
    assert [(line["gpu"], line.get("repeated")) for line in lines] == [("a", None), ("b", None), ("a", 59), ("a", 59)]
