"""What typer finds wrong with a command line, said as every other mistake is: in one line, with what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from opsmith.errors import OpsmithError, near

# The class of all of them. Some versions of typer carry a click of their own, so it is not always click's.
_UsageError: Any = typer.BadParameter.__base__


@contextlib.contextmanager
def as_one_line(args: Sequence[str]) -> Iterator[None]:
    """What is wrong with ARGS is raised as an error of ours. A command without arguments still answers with its help."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        raise OpsmithError(*_said(error, list(args))) from None


def no_command(name: str, known: Sequence[str], path: str) -> OpsmithError:
    return OpsmithError(f"there is no command {name!r}", f"{near(name, list(known))}`{path} --help` lists them")


def _said(error: Any, args: list[str]) -> tuple[str, str]:
    """What is wrong, and what to do next."""
    command = args[0] if args and not args[0].startswith("-") else ""
    path = error.ctx.command_path if error.ctx is not None else f"opsmith {command}".rstrip()
    help_of = f"`{path} --help`"
    param = getattr(error, "param", None)
    if type(error).__name__ == "NoSuchOption":
        return _no_option(str(error.option_name), error.ctx, args, help_of)
    if param is None:
        return _small(error.format_message()), help_of
    name = param.opts[0] if param.param_type_name == "option" else param.metavar or param.name.upper()
    if type(error).__name__ == "MissingParameter":
        arguments = [" ".join(p.get_usage_pieces(error.ctx)) for p in error.ctx.command.get_params(error.ctx)]
        return f"{name} is missing", f"{' '.join([path, *filter(None, arguments)])}; {help_of}"
    return _wrong_value(name, param, error.message), help_of


def _wrong_value(name: str, param: Any, message: str) -> str:
    number = {"N": "a whole number", "X": "a number"}.get(str(param.metavar))
    if number is None:
        return f"{name}: {_small(message.removeprefix('Value error, '))}"
    least, most = (getattr(param, end, getattr(getattr(param, "type", None), end, None)) for end in ("min", "max"))
    if least is None:
        return f"{name} is {number}"
    return f"{name} is {number}, {least} or more" if most is None else f"{name} is {number} from {least} to {most}"


def _no_option(option: str, ctx: Any, args: list[str], help_of: str) -> tuple[str, str]:
    known = [name for param in ctx.command.get_params(ctx) for name in param.opts if name.startswith("--")]
    for arg in args:  # -model.onnx is read as the options -m, -o, ...
        if arg.startswith(option) and not arg.startswith("--") and Path(arg).exists():
            return f"{arg} begins with a dash, as options do", f"write ./{arg}"
    return f"there is no option {option}", f"{near(option, known)}{help_of} lists them"


def _small(message: str) -> str:
    """As the rest of a line: no capital, no full stop."""
    return message[:1].lower() + message[1:].rstrip(".")
