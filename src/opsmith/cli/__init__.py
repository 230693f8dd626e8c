"""The command line: one file per command, found by its file name. No logic here, only arguments in and
tables out. A command file defines `command`, a typer function, and may define `PANEL`, its heading in
`opsmith --help`, and `ORDER`, its place under that heading."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any

import typer

from opsmith._version import __version__
from opsmith.cli import console
from opsmith.errors import OpsmithError

_HELPERS = {"console"}


def _version(value: bool) -> None:
    if value:
        print(f"opsmith {__version__}")
        raise typer.Exit()


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="opsmith",
        help="Forge ONNX models into native code: export, optimize, compile, verify, bench, run.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def top(
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")] = False,
        verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more about each step.")] = False,
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        console.configure(quiet=quiet, verbose=verbose)

    modules = [
        importlib.import_module(f"{__name__}.{m.name}")
        for m in pkgutil.iter_modules(__path__)
        if m.name not in _HELPERS
    ]
    for module in sorted(modules, key=lambda m: (getattr(m, "ORDER", 100), m.__name__)):
        name = module.__name__.rsplit(".", 1)[1].rstrip("_").replace("_", "-")
        panel = getattr(module, "PANEL", "Commands")
        if hasattr(module, "app"):
            for inner in module.app.registered_commands:
                inner.callback = _interruptible(inner.callback)
            app.add_typer(module.app, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(_interruptible(module.command))
    return app


class _Interrupted(OpsmithError):
    def __init__(self, number: int) -> None:
        super().__init__("interrupted; nothing half-written was left behind")
        self.exit_code = 128 + number


def _interruptible(command: Callable[..., Any]) -> Callable[..., Any]:
    """Takes the interrupt to `main` past typer, whose versions each do something else with it."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            raise _Interrupted(stop.args[0] if stop.args else signal.SIGINT) from None

    return run


def _terminate(number: int, frame: object) -> None:
    """A polite kill cleans up as Ctrl-C does."""
    raise KeyboardInterrupt(number)


def main(args: list[str] | None = None) -> Any:
    """Run the command line. A user's mistake is one line on stderr and exit code 2, never a stack trace."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
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
