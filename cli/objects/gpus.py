"""The names of GPUs, read from the API's map."""

from collections.abc import Mapping

from cli.errors import CliError
from cli.text.gpu_names import GpuNames, names_in_map
from cli.transport.client import Api
from cli.transport.paths import path_of


def gpu_names(api: Api) -> GpuNames:
    """Names that are read once needed. Where the map cannot be read, GPUs have the first block of their UUID."""

    def read() -> Mapping[str, str]:
        try:
            return names_in_map(api.get(path_of("map")))
        except (CliError, KeyError):  # as of a key without the right, or of an older controller
            return {}

    return GpuNames(read)
