"""The health check of an instance."""

from typing import Annotated

from pydantic import Field, field_validator

from schemas.fields import Seconds, Strict, Whole


class Probe(Strict):
    """The health check of an instance: HTTP GET on its port. A 2xx status is healthy."""

    path: Annotated[str, Field(pattern=r"^/[^\s]*$", max_length=1024)] = Field(
        "/health", description="URL path of the health check. It begins with `/`."
    )
    period: Seconds = Field(5.0, description="Time between two health checks, at least 50 ms.")
    timeout: Seconds = Field(3.0, description="Longest time to wait for the answer to one check, at least 50 ms.")
    failures: Annotated[Whole, Field(ge=1, le=1000)] = Field(
        3,
        description="Failed checks in a row after which the instance is unhealthy. "
        "Failures before the first success do not count: the instance is still starting.",
    )

    no_answer_requests: Annotated[Whole, Field(ge=0, le=1000)] = Field(
        3,
        description="Requests without an answer after which the instance is unhealthy, though its health check "
        "succeeds; 0: never. Its engine must count tokens (vLLM, SGLang, llama.cpp), the counts must stand still, and "
        "its GPUs must do nothing. An engine that is slow is not unhealthy.",
    )
    no_answer_after: Seconds = Field(
        120.0, description="How long the engine must be without progress before these requests count, at least 1 s."
    )
    generate: bool = Field(
        default=False,
        description="Ask the engine for one token where nothing else shows that it generates. `failures` such probes "
        "in a row without an answer make the instance unhealthy. An engine without `/v1/completions` is not judged.",
    )
    generate_every: Seconds = Field(
        60.0, description="Time without a sign that the engine generates before it is asked for a token, at least 1 s."
    )
    generate_timeout: Seconds = Field(
        60.0, description="Longest time to wait for that token, at least 1 s. It should exceed a long prefill."
    )

    @field_validator("no_answer_after", "generate_every", "generate_timeout")
    @classmethod
    def _at_least_a_second(cls, value: float) -> float:
        if value < 1:
            raise ValueError(f"must be at least 1s, got {value:g}s")
        return value

    @field_validator("period", "timeout")
    @classmethod
    def _positive(cls, value: float) -> float:
        if value < 0.05:  # noqa: PLR2004 - faster than 20/s the probe is the load
            raise ValueError(f"must be at least 50ms, got {value:g}s")
        return value
