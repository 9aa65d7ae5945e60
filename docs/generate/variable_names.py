"""schemas/variable_names.py: the variables of all settings, so that each daemon knows those of the others."""

from typing import Final

from pydantic import AliasChoices

from agent.settings import AgentSettings
from controller.settings import ControllerSettings
from gateway.settings import GatewaySettings

# What the command line reads, and what an agent sets for engines.
_OTHERS: Final = (
    "GPUWARD_AGENT_DIR", "GPUWARD_API_KEY", "GPUWARD_CONTEXT", "GPUWARD_EPOCH", "GPUWARD_IMAGE", "GPUWARD_INSTANCE",
    "GPUWARD_RANK", "GPUWARD_URL",
)  # fmt: skip


def page() -> str:
    """The file."""
    names = set(_OTHERS)
    for model in (AgentSettings, ControllerSettings, GatewaySettings):
        prefix = model.model_config.get("env_prefix", "")
        for name, field in model.model_fields.items():
            alias = field.validation_alias
            choices = alias.choices if isinstance(alias, AliasChoices) else [f"{prefix}{name}".upper()]
            names.update(one for one in choices if isinstance(one, str) and one.isupper())
    lines = "\n".join(f'        "{name}",' for name in sorted(names))
    return (
        '"""The environment variables that Gpuward reads. Written by `make reference`: do not edit."""'
        "\n\nfrom typing import Final\n\nVARIABLES: Final = frozenset(\n    {\n" + lines + "\n    }\n)\n"
    )
