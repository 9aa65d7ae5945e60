"""docs/settings.md: the settings of controller, gateway and agent, from their pydantic models."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from agent.settings import AgentSettings
from controller.settings import ControllerSettings
from fields import default_of, described, limits_of, type_of
from gateway.settings import GatewaySettings
from tables import code, sentence, table

HEAD: Final = """\
# Settings

<!-- Written by `make reference` from the files `settings.py` of controller, gateway and agent. Do not edit. -->

A setting comes from the command line, else from the environment, else it has its default. The options stand in
[Command line](cli.md). `gpuward up` reads the same variables for its controller. A controller passes what concerns
requests on to the gateway that it starts. A daemon warns at its start of each variable `GPUWARD_...` that none of them
knows.
"""
# A settings class that describes a field itself has the last word.
MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "ControllerSettings": {
        "host": "Address that the API listens on",
        "port": "Port of the API; 0 takes any free one",
        "data_dir": "Folder of the controller's state",
        "database_url": "PostgreSQL to use; without it the controller runs its own in the data folder",
        "log_format": "How logs are written",
        "log_level": "Least level that is logged",
        "lease_ttl_s": "Seconds after which a silent leader loses its lease",
        "restart_backoff_s": "Seconds before the first restart after a failure; they double with each further failure",
        "unreachable_after_s": "Seconds of silence after which a connected worker is `unreachable`",
        "lost_after_s": "Seconds of silence after which a worker is `lost` and its instances are replaced",
        "reserve_after_s": "Seconds after which capacity is reserved for a pending instance",
        "reserve_for_s": "Longest time in seconds for which capacity is reserved that servers hold; then the next "
        "pending instance has its turn",
        "relocations_at_once": "Instances that are relocated at the same time",
        "audit_every_s": "Seconds between two checks of the ledger's invariants",
        "keep_events_days": "Days for which events are kept",
        "keep_audit_log_days": "Days for which the audit log is kept",
        "sample_every_s": "Seconds of the agents' sampling period",
        "keep_samples_h": "Hours for which samples are kept; a policy's window cannot be longer",
        "rollup_every_s": "Seconds by which the history lags behind",
        "operators_may": "What operators may write in deployments beside what each may: any of `command`, `code`, "
        "`host_files`, `environment`, separated by commas; see [Access](access.md)",
        "viewers_read_logs": "Whether keys of the role `viewer` may read the logs of engines, which print requests, "
        "paths and what they like; see [Access](access.md)",
        "engine_images": "Images of engines with `runtime: docker`, in place of the default ones: `ENGINE=IMAGE`, "
        "separated by commas; see [Manifests](manifests.md)",
        "bodies_in_flight": "Memory that all requests' bodies may hold at once; one more gets 503 `overloaded`",
        "bodies_in_flight_per_key": "Memory that one key's bodies may hold; one more gets 429 `too_much_in_flight`",
        "gateway": "Whether it runs a gateway as a child, which owns the port. Without one it serves its API alone, "
        "and models are served by the gateways that reach it",
        "socket_only": "With `GPUWARD_GATEWAY=false`: serve the API on the socket in the data folder alone. "
        "A gateway service of this host owns host and port",
        "gateway_processes": "Processes of the gateway that it runs; about one for each core that requests may use",
        "gateway_secret": "By which it believes what a gateway on another host says of clients; both need the same",
        "secrets_key_file": "File with the keys that encrypt secrets, in base64, one a line: the first one encrypts, "
        "all decrypt; see [Access](access.md)",
        "secrets_key": "The same keys, separated by commas, in place of the file",
        "webhooks_may_reach": "Networks that webhooks may reach though they are not public, separated by commas",
        "cors_origins": "Origins whose pages may read the answers of models, such as `https://chat.example.org`, "
        "separated by commas; `*`: any",
        "hsts": "For how long browsers shall use this host by TLS alone, such as `365d` "
        "(`Strict-Transport-Security`); 0: no answer has that header",
        "trusted_labels": "Keys of workers' labels, separated by commas, that join tokens and administrators state and "
        "hosts do not; `*` stands for any characters; see [Access](access.md)",
        "advertise_networks": "Networks, separated by commas, within which agents may advertise another address than "
        "the one that they connect from",
        "trusted_proxy": "Networks of the proxies whose `X-Forwarded-*` counts, separated by commas",
        "keep_history_days": "Days for which one-minute history and spans of claims are kept",
        "gpu_hour_prices": "What an hour of a GPU costs, by words of its model: `MODEL=PRICE`, separated by commas, "
        "such as `H100=2.50, A100 80GB=1.80, *=1`; see [Policies](policies.md#in-money)",
        "currency": "Currency of the prices, such as `EUR`; required with them",
        "rotate_credentials_days": "Days after which an agent's credential is replaced; see [TLS](tls.md)",
        "tls_cert": "Certificate of the public port, in PEM; without it that of `gpuward ca init`, if there is one",
        "tls_key": "Key of the certificate, in PEM without a passphrase",
        "tls_ca": "Authority of the certificate, which join tokens and `client.env` name; leave it out where systems "
        "know it",
    },
    "GatewaySettings": {"drain": "Longest time after SIGTERM for which answers of models go on"},
    "AgentSettings": {},
}
_DATA_DIR: Final = "`/var/lib/gpuward{0}` for root, else `~/.local/share/gpuward{0}`"
_DEFAULTS: Final = {
    ("ControllerSettings", "data_dir"): _DATA_DIR.format(""),
    ("AgentSettings", "data_dir"): _DATA_DIR.format("/agent"),
}
_SECTIONS: Final = (("Controller", ControllerSettings), ("Gateway", GatewaySettings), ("Agent", AgentSettings))


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for heading, model in _SECTIONS:
        rows = [_row(model, name) for name in model.model_fields]
        lines += [f"## {heading}", "", *table(("variable", "type", "default", "limits", "meaning"), rows)]
    return "\n".join(lines).rstrip() + "\n"


def texts_of(model: type[BaseSettings]) -> dict[str, str]:
    """Each setting's meaning; empty where none is written."""
    own, here = described(model), MEANINGS[model.__name__]
    return {name: own[name] or sentence(here.get(name, "")) for name in model.model_fields}


def _row(model: type[BaseSettings], name: str) -> list[str]:
    field = model.model_fields[name]
    whole = model.model_json_schema(by_alias=False)
    schema = whole["properties"][name]
    if (ref := schema.get("items", {}).get("$ref")) is not None:  # a list of names: the names themselves
        schema = schema | {"items": whole["$defs"][ref.rpartition("/")[2]]}
    default = _DEFAULTS.get((model.__name__, name)) or default_of(field, schema)
    return [
        ", ".join(code(one) for one in _variables(model, name)),
        "path" if _is_path(schema) else type_of(schema, {}),
        default,
        limits_of(schema),
        texts_of(model)[name],
    ]


def _is_path(schema: Mapping[str, Any]) -> bool:
    return "path" in (schema.get("format"), *(one.get("format") for one in schema.get("anyOf", ())))


def _variables(model: type[BaseSettings], name: str) -> list[str]:
    alias = model.model_fields[name].validation_alias
    if isinstance(alias, AliasChoices):
        return [str(one) for one in alias.choices if str(one).isupper()]
    return [f"{model.model_config['env_prefix']}{name.upper()}"]
