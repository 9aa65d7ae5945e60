"""The readers of untrusted bytes that are fuzzed, each by the module here of its name."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Attributes:
        packages: whose coverage guides the search.
        longest: bytes of an input.
        quick_runs: inputs of about two seconds.
        least_reached: branches that any search reaches.
    """

    packages: tuple[str, ...]
    longest: int
    quick_runs: int
    least_reached: int = 100


TARGETS: Final = {
    "http1_messages": Target(("http1",), 512, 5_000),
    "wire_messages": Target(("schemas.wire", "controller.hub"), 4096, 25_000),
    "gguf_headers": Target(
        ("controller.model_files", "controller.engines", "controller.domain.model_facts"), 1024, 8_000
    ),
    "manifests": Target(("schemas", "controller.engines"), 1024, 10_000),
    "forms": Target(("gateway",), 1024, 3_000),
}
