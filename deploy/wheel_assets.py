"""Puts the files of `gpuward assets` into the wheel, in `cli/assets`. hatchling runs it."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelAssets(BuildHookInterface[Any]):
    """An editable installation reads them from the sources: a folder `cli` next to its packages would hide `cli`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            asset_files = runpy.run_path(str(Path(self.root, "cli", "local", "asset_files.py")))["asset_files"]
            for name, file in asset_files(Path(self.root)).items():
                build_data["force_include"][str(file)] = f"cli/assets/{name}"
