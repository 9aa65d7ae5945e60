"""The agent's proxy: paths and headers. Every request carries Authorization: Bearer <proxy_secret>."""

from typing import Final

PROXY_ENGINE_PREFIX: Final = "/engines"  # /engines/{instance}/{path...}
PROXY_LOGS_PREFIX: Final = "/logs"  # /logs/{instance}?tail=N&follow=1&previous=1
PROXY_REFUSAL_HEADER: Final = "X-Gpuward-Refusal"  # only on the proxy's own answers, never on an engine's
