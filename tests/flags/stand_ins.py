"""Stand-ins for the large libraries that servers import beside their argument parsers, such as torch.

A parser needs a server's own modules and their dataclasses, but no tensor. Each name of a module that is not installed
stands for a class that takes every call, subclass and index. The server's own Python files are always the real ones.
"""

import abc
import importlib.abc
import importlib.machinery
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Platforms that a server looks for by importing them: a stand-in would make it believe that it runs there.
ABSENT = frozenset(
    {"amdsmi", "habana_frameworks", "intel_extension_for_pytorch", "libtpu", "org", "torch_npu", "torch_tpu",
     "tpu_commons", "tpu_inference"}
)  # fmt: skip
ABSENT_OF_TORCH = frozenset({"npu", "hpu", "musa", "mlu"})
SERVERS = ("vllm", "sglang", "transformers")


def _special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _Kind(abc.ABCMeta):
    """The class of stand-ins, so that a stand-in is a class and stands for an object too."""

    def __getattr__(cls, name: str) -> Any:
        if name == "__class_validators__":  # of Transformers' configurations
            return []
        if _special(name):
            raise AttributeError(name)
        made = _stand_in(name, cls.__module__)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__dict__.get("_bare"):  # a server's own class on top of a stand-in
            return super().__call__(*args, **kwargs)
        decorates = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], _Kind)
        return args[0] if decorates else cls

    def register(cls, *args: Any, **_kwargs: Any) -> Any:  # of abc, and of Transformers' registries
        return args[0] if args else cls

    def __getitem__(cls, _key: Any) -> Any:
        return cls

    def __setitem__(cls, _key: Any, _value: Any) -> None:
        pass

    def __or__(cls, other: Any) -> Any:
        return typing.Union[cls, other]  # noqa: UP007 - the operator itself

    def __ror__(cls, other: Any) -> Any:
        return typing.Union[other, cls]  # noqa: UP007 - as above

    def __iter__(cls) -> Any:
        return iter(())

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *_error: object) -> None:
        pass


def _set_operators() -> None:
    def itself(cls: Any, *_others: Any) -> Any:
        return cls

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "lshift", "rshift"):
        setattr(_Kind, f"__{name}__", itself)
        setattr(_Kind, f"__r{name}__", itself)
    for name in ("neg", "invert"):
        setattr(_Kind, f"__{name}__", itself)
    for name in ("lt", "le", "gt", "ge", "bool", "contains"):
        setattr(_Kind, f"__{name}__", lambda *_: False)
    for name in ("int", "index", "len"):
        setattr(_Kind, f"__{name}__", lambda _: 0)
    _Kind.__float__ = lambda _: 0.0


_set_operators()


class _Anything(metaclass=_Kind):
    def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **_kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if _special(name):
            raise AttributeError(name)
        return getattr(type(self), name)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - only in the parsers' environment

        return core_schema.any_schema()


def _stand_in(name: str, module: str) -> Any:
    return _Kind(name, (_Anything,), {"__module__": module, "_bare": True})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if _special(name) or (self.__name__ == "torch" and name in ABSENT_OF_TORCH):
            raise AttributeError(name)
        made = _stand_in(name, self.__name__)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nothing else has found. Of a server it stands in for compiled modules alone, such as `vllm._C`."""

    def __init__(self) -> None:
        self._tops: set[str] = set()

    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> Any:
        top, _, rest = fullname.partition(".")
        if top in ABSENT or top in sys.stdlib_module_names:
            return None
        compiled = top in SERVERS and fullname.rpartition(".")[2].startswith("_")
        if rest and top not in self._tops and not compiled:
            return None
        if not rest:
            self._tops.add(top)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        module.__version__ = "2.99.0"
        module.__file__ = f"/stand-in/{spec.name}"
        return module

    def exec_module(self, _module: types.ModuleType) -> None:
        pass


class _Library:
    """Torch's library of operators: what servers register at import."""

    def __init__(self, ns: str = "", *_args: Any) -> None:
        self.ns = ns

    def define(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def impl(self, *_args: Any, **_kwargs: Any) -> Callable[[Any], Any]:
        return lambda function: function

    _register_fake = impl


def install() -> None:
    """From now on every module that is not installed has a stand-in."""
    sys.meta_path.append(_Finder())
    import dill  # noqa: PLC0415
    import torch.library  # noqa: PLC0415

    # vLLM 0.33 counts the tensors that an operator returns.
    torch.library.infer_schema = lambda function, **_: f"() -> {inspect.signature(function).return_annotation}"
    torch.library.Library = _Library
    dill.dumps = lambda *_args, **_kwargs: b""
    shown = types.ModuleType("IPython.display")  # SGLang 0.5 asks it whether it runs in a notebook
    shown.HTML = shown.display = shown.clear_output = lambda *_args, **_kwargs: None
    sys.modules["IPython"], sys.modules["IPython.display"] = types.ModuleType("IPython"), shown


def package(name: str, folder: Path) -> None:
    """From now on this package's own modules are the real ones, but what it exports itself is a stand-in."""
    module = _Module(name)
    module.__path__, module.__file__, module.__version__ = [str(folder)], str(folder), "2.99.0"
    sys.modules[name] = module


def transformers(folder: Path) -> None:
    """Of Transformers, in this folder, only the command line is real; it believes that all it needs is installed."""
    package("transformers", folder)
    package("transformers.utils", folder / "utils")
    asked = _Module("transformers.utils.import_utils")
    for name in re.findall(r"\bis_\w+_available\b", (folder / "utils/import_utils.py").read_text()):
        setattr(asked, name, lambda *_args: True)
    sys.modules[asked.__name__] = asked
    for name in ("transformers.models", "transformers.models.auto", "transformers.cli.serving"):
        package(name, Path("/stand-in"))
    for name in ("transformers.models.auto.modeling_auto", "transformers.cli.serving.utils"):
        sys.modules[name] = _Module(name)
