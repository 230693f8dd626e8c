"""The command line: one file per command, found by its file name. No logic here, only arguments in and
tables out. A command file defines `command`, a typer function that ends in `console.answer`, `EXAMPLES`, two lines that its help
ends with, `JSON`, the keys that --json prints and what they mean (docs/json.md), `JSON_WITH`, those that it prints with
certain options, `PANEL`, its heading in `opsmith --help`, and `ORDER`, its place under that heading. --json, --quiet and --verbose are added to every command here. What is slow to import is
imported inside `command`: `opsmith --help` reads all files."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, signature
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any, get_args, get_type_hints

import typer
import typer.core
from typer.models import ArgumentInfo, OptionInfo

from opsmith import settings
from opsmith._version import __version__
from opsmith.cli import console, usage
from opsmith.errors import OpsmithError

_HELPERS = {"console", "options", "usage"}
EXAMPLES = (
    "opsmith demo",
    "opsmith compile model.onnx fast.onnx",
    "opsmith compile --help",
)
_COMMON: dict[str, Any] = {  # of every command
    "as_json": typer.Option("--json", help="Print the result as JSON (docs/json.md)."),
    "quiet": typer.Option("--quiet", "-q", help="Print only what a script needs."),
    "verbose": typer.Option("--verbose", "-v", help="Say more about each step."),
}


def _version(value: bool) -> None:
    if value:
        print(f"opsmith {__version__}")
        raise typer.Exit()


def _without_types(params: list[Any]) -> list[Any]:
    """A flag takes no value; some versions of typer write <bool> behind it. They also write <str> or <list[Path]> behind an
    argument, whose description says what it is, and {} around one in the line of usage."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
            param.get_usage_pieces = functools.partial(_usage_pieces, param)
    return params


def _usage_pieces(param: Any, ctx: Any) -> list[str]:
    name = str(param.metavar or param.name.upper())
    return [(name if param.required else f"[{name}]") + ("..." if param.nargs != 1 else "")]


_WORDS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def _alike(name: str, hint: Any) -> None:
    """Values are written alike in every help: arguments in capitals, options in words instead of Python's types."""
    kind, *infos = get_args(hint)
    # X, X | None, list[X] | None
    kinds = [kind, *get_args(kind), *(inner for outer in get_args(kind) for inner in get_args(outer))]
    word = next((_WORDS[k] for k in kinds if k in _WORDS), None)
    for info in infos:
        if isinstance(info, ArgumentInfo):
            info.metavar = info.metavar or name.upper()
        elif isinstance(info, OptionInfo):
            info.metavar = info.metavar or word
            if isinstance(info.show_default, str):  # a default in words, which typer would put into parentheses
                info.help = f"{info.help} [dim]\\[default: {info.show_default}][/dim]"
                info.show_default = False


_GIVEN = f"{__name__}.given"  # the whole command line


class _Command(typer.core.TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class _Group(typer.core.TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        given = list(args)  # typer takes from the list what it has read
        with usage.as_one_line(given):
            ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta.setdefault(_GIVEN, given)
        return ctx

    def invoke(self, ctx: Any) -> Any:
        with usage.as_one_line(ctx.meta[_GIVEN]):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise usage.no_command(args[0], list(self.commands), ctx.command_path)
        return super().resolve_command(ctx, args)


def _examples(lines: Iterable[str]) -> str:
    return "\n\n".join(["[bold]Examples[/]", *map(console.escape, lines)])


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="opsmith",
        cls=_Group,
        help="Forge ONNX models into native code: export, optimize, compile, verify, bench, run.",
        epilog=_examples(EXAMPLES),
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def top(
        quiet: Annotated[bool, _COMMON["quiet"]] = False,
        verbose: Annotated[bool, _COMMON["verbose"]] = False,
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        console.configure(quiet=quiet, verbose=verbose)

    for name, module in modules():
        panel = getattr(module, "PANEL", "Commands")
        if hasattr(module, "app"):
            group = typer.Typer(
                help=module.app.info.help, no_args_is_help=True, callback=module.app.registered_callback.callback
            )
            for inner in module.app.registered_commands:
                epilog = _examples(module.EXAMPLES[inner.name])
                group.command(inner.name, cls=_Command, epilog=epilog)(_common(_interruptible(inner.callback)))
            first = _examples(lines[0] for lines in module.EXAMPLES.values())
            app.add_typer(group, name=name, cls=_Group, rich_help_panel=panel, epilog=first)
        else:
            register = app.command(name, cls=_Command, rich_help_panel=panel, epilog=_examples(module.EXAMPLES))
            register(_common(_interruptible(module.command)))
    return app


def modules() -> Iterator[tuple[str, ModuleType]]:
    """(name of the command, its module), in the order of `opsmith --help`."""
    found = [
        importlib.import_module(f"{__name__}.{m.name}")
        for m in pkgutil.iter_modules(__path__)
        if m.name not in _HELPERS
    ]
    for module in sorted(found, key=lambda m: (getattr(m, "ORDER", 100), m.__name__)):
        yield module.__name__.rsplit(".", 1)[1].rstrip("_").replace("_", "-"), module


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options that all of them have."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        wanted = {name: kwargs.pop(name) for name in _COMMON}
        # --quiet and --verbose may stand before the command, too
        if command.__module__ != f"{__name__}.doctor":  # which tells about them
            settings.get()  # a wrong key or variable is an error everywhere
        console.configure(**{name: on or (name != "as_json" and getattr(console, name)) for name, on in wanted.items()})
        return command(*args, **kwargs)

    own = signature(command)
    hints = get_type_hints(command, include_extras=True)
    for name in own.parameters:
        _alike(name, hints[name])
    params = [p.replace(annotation=hints[p.name]) for p in own.parameters.values()]
    common = {name: Annotated[bool, option] for name, option in _COMMON.items()}
    keyword = Parameter.KEYWORD_ONLY
    params += [Parameter(name, keyword, default=False, annotation=kind) for name, kind in common.items()]
    run.__signature__ = own.replace(parameters=params)  # type: ignore[attr-defined]
    run.__annotations__ = hints | common
    return run


class _Interrupted(OpsmithError):
    def __init__(self, number: int) -> None:
        super().__init__("interrupted; nothing half-written was left behind")
        self.exit_code = 128 + number


def _interruptible(command: Callable[..., Any]) -> Callable[..., Any]:
    """Takes the interrupt to `main` past typer, whose versions each do something else with it."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            _listen()
            return command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            raise _Interrupted(stop.args[0] if stop.args else signal.SIGINT) from None

    return run


def _listen() -> None:
    """From here on a command may have begun something: signals unwind it. Before, the handler of `__main__` just ends."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            earlier = signal.getsignal(number)
            if getattr(earlier, "func", None) is _unwind:
                continue
            signal.signal(number, functools.partial(_unwind, earlier if callable(earlier) else None))


def _unwind(earlier: Callable[[int, FrameType | None], Any] | None, number: int, frame: FrameType | None) -> None:
    """A polite kill cleans up as Ctrl-C does. Modules that are being imported may turn an interrupt into an error of theirs:
    there the EARLIER handler decides."""
    if earlier is not None and earlier is not signal.default_int_handler and _importing(frame):
        earlier(number, frame)
    raise KeyboardInterrupt(number)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def main(args: list[str] | None = None) -> Any:
    """Run the command line. A user's mistake is one line on stderr and exit code 2, never a stack trace."""
    try:
        return build_app()(args=args, prog_name="opsmith")
    except OpsmithError as error:
        console.error(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        console.error(f"{error.strerror or error}{where}")
        sys.exit(2)
    except MemoryError:
        console.error("out of memory; try a smaller shape or close other programs")
        sys.exit(2)
    except KeyboardInterrupt as stop:  # before the command began
        console.error("interrupted")
        sys.exit(128 + (stop.args[0] if stop.args else signal.SIGINT))
    except Exception as error:  # a bug, or a model that is broken in a way nobody thought of
        if console.verbose:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        console.error(f"{type(error).__name__}: {error} ({where}); opsmith -v shows the whole trace; please report it")
        sys.exit(2)
