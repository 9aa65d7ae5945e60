"""A group of commands that knows their names and short help, and imports the module of the one that is called."""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from typer import Context, Typer
from typer._click.exceptions import NoSuchOption
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from cli.verb_table import VERBS, Verb

_GLOBAL = {"--url": "URL", "--api-key": "KEY", "--context": "NAME"}  # options before the verb, and what follows each


def commands_of(app: Typer) -> Mapping[str, Any]:
    """The commands of a module's application, by name, as a part of ours."""
    plain = Typer(rich_markup_mode=None)  # it hands that on
    plain.add_typer(app)
    return get_group(plain).commands


class _Imported(MutableMapping[str, Any]):
    """The commands by name. Names cost nothing; a command costs the import of its module."""

    def __init__(self) -> None:
        self._verbs: dict[str, Verb] = {verb.name: verb for verb in VERBS}
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            self._commands |= commands_of(import_module(self._verbs[name].module).app)
        return self._commands[name]

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError(f"{name}: write it into cli/verb_table.py")

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{name}: take it out of cli/verb_table.py")

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)


class Verbs(TyperGroup):
    """The verbs of `gpuward`. Its help and its completion import none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Imported()
        self._listed = TyperGroup(commands=[TyperCommand(verb.name, help=verb.help) for verb in VERBS])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As any group. A kind in the place of a verb: the error names the call that lists the kind."""
        if args and args[0] not in self.commands:
            from cli.objects.kinds import KINDS  # noqa: PLC0415 - slow, and only errors need it

            if any(args[0].lower() in kind.words for kind in KINDS):
                ctx.fail(f"No such command '{args[0]}'. List these objects by: gpuward get {args[0].lower()}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As any group. A global option after the verb: the error says where it belongs."""
        try:
            return super().invoke(ctx)
        except NoSuchOption as error:
            of_all = error.option_name in _GLOBAL
            if of_all and error.ctx is not None:
                _, _, verb = error.ctx.command_path.partition(" ")
                word = f"{error.option_name} {_GLOBAL[error.option_name]}"
                error.possibilities = None
                error.message += f"; write it before the verb: gpuward {word} {verb}"
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the names and the short help."""
        self._listed.format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The names that begin so; or the options."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return self._listed.shell_complete(Context(self._listed), incomplete)
