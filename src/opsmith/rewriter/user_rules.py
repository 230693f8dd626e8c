"""`--rules my_rules.py`: a user's own rules. The file defines RULES, and FUNCTIONS for ops of its own."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from opsmith.errors import OpsmithError
from opsmith.rewriter.functions import LIBRARY, Function
from opsmith.rewriter.rule import Rule


@dataclasses.dataclass(frozen=True)
class UserRules:
    rules: tuple[Rule, ...] = ()
    functions: dict[str, Function] = dataclasses.field(default_factory=dict)


def load(path: str | os.PathLike[str]) -> UserRules:
    """Read a rule file; what is wrong with it is said in one line."""
    file = Path(path)
    if not file.is_file():
        raise OpsmithError(f"rule file {file} does not exist")
    spec = importlib.util.spec_from_file_location(f"opsmith_user_rules_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise OpsmithError(f"rule file {file} is not a Python file", "it must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OpsmithError(f"rule file {file} fails: {type(error).__name__}: {error}") from error
    rules = getattr(module, "RULES", None)
    if not isinstance(rules, Sequence) or not rules or not all(isinstance(r, Rule) for r in rules):
        raise OpsmithError(f"rule file {file} defines no list RULES of rules", "see docs/rules.md for an example")
    functions = dict(getattr(module, "FUNCTIONS", {}))
    if taken := sorted(set(functions) & set(LIBRARY)):
        raise OpsmithError(f"rule file {file}: the function name {taken[0]} is Opsmith's own", "choose another")
    return UserRules(tuple(rules), functions)
