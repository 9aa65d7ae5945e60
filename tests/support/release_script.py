"""deploy/release.py, which is a script and in no package, as a module."""

import importlib.util
from typing import Any

from support.pages import ROOT


def release_script() -> Any:
    """The script, loaded anew."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
