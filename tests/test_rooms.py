"""The borders between the rooms of src/opsmith, read from the imports: those inside functions count too.

The front, opsmith/__init__.py, imports every verb lazily, so it stands above the rooms. Who calls a verb through it
(`import opsmith`) without being the command line is named here.
"""

from __future__ import annotations

import ast
import dataclasses
import graphlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# From the bottom up: a room may import those before it.
LAYERS = (
    "_version errors later machine nodes progress sizes expressions content",
    "ops dim_names",
    "bounds settings",
    "model_file",
    "model_checks",
    "store starter",
    "session doctor plain",
    "analysis check pipelines",
    "rewriter testing timing",
    "compiler compress",
    "exporter",
    "batch provider studio",
    "measure",
    "demo",
    "cli",
    "__main__",
)
# They export and compile what they are about to run: as the user would, through the verbs.
CALLS_VERBS_THROUGH_THE_FRONT = {
    "opsmith.demo",
    "opsmith.pipelines.accelerate",
    "opsmith.pipelines.create",
    "opsmith.pipelines.diffusion.adapters",
}
# The table of its operators; onnx_to_torch.py imports it inside a function.
IMPORTS_TORCH_AT_THE_TOP = {"opsmith.timing.peers.torch_operators"}
# Beside the exporter: peers of `bench` that are torch, and the swap of parts in a torch pipeline of the user's.
RUNS_TORCH = {
    "opsmith.timing.peers.onnx_to_torch",
    "opsmith.timing.peers.torch",
    "opsmith.timing.peers.torch_operators",
    "opsmith.pipelines.accelerate",
}


@dataclasses.dataclass(frozen=True)
class Import:
    module: str  # the module that imports
    target: str  # what it imports
    inside_function: bool

    @property
    def rooms(self) -> tuple[str, str]:
        return _room(self.module), _room(self.target)


def _room(module: str) -> str:
    """The subpackage or top-level module of opsmith; "" for the front."""
    return (*module.split("."), "")[1]


def _imports() -> list[Import]:
    imports = []
    for path in sorted((SOURCE / "opsmith").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if module == "opsmith":
            continue
        tree = ast.parse(path.read_text())
        at_top = set(map(id, tree.body))
        for node in ast.walk(tree):
            for target in _targets(node):
                imports.append(Import(module, target, id(node) not in at_top))
    return imports


def _targets(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, "imports are absolute"
        return [f"opsmith.{a.name}" for a in node.names] if node.module == "opsmith" else [node.module]
    return []


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return _imports()


@pytest.fixture(scope="module")
def between_rooms(imports: list[Import]) -> list[Import]:
    ours = [i for i in imports if i.target.split(".")[0] == "opsmith"]
    return [i for i in ours if i.rooms[0] != i.rooms[1] and i.rooms[1]]


def test_rooms_form_no_cycle(between_rooms: list[Import]) -> None:
    below: dict[str, set[str]] = {}
    for i in between_rooms:
        below.setdefault(i.rooms[0], set()).add(i.rooms[1])
    assert list(graphlib.TopologicalSorter(below).static_order())  # raises CycleError, which names the rooms


def test_a_room_imports_only_rooms_of_lower_layers(between_rooms: list[Import]) -> None:
    layer = {room: height for height, rooms in enumerate(LAYERS) for room in rooms.split()}
    assert [i for i in between_rooms if layer[i.rooms[1]] >= layer[i.rooms[0]]] == []


def test_every_room_has_its_layer() -> None:
    entries = (SOURCE / "opsmith").iterdir()
    rooms = {e.stem for e in entries if e.suffix == ".py" or (e.is_dir() and list(e.glob("*.py")))} - {"__init__"}
    assert rooms == set(" ".join(LAYERS).split())


def test_nothing_imports_the_command_line(between_rooms: list[Import]) -> None:
    assert {i.module for i in between_rooms if i.rooms[1] == "cli"} == {"opsmith.__main__"}


def test_pipelines_do_not_import_the_compiler(between_rooms: list[Import]) -> None:
    makers = {"compiler", "compress", "exporter", "rewriter"}
    assert [i for i in between_rooms if i.rooms[0] == "pipelines" and i.rooms[1] in makers] == []


def test_few_modules_call_verbs_through_the_front(imports: list[Import]) -> None:
    users = {i.module for i in imports if i.target == "opsmith" and i.rooms[0] != "cli"}
    assert users == CALLS_VERBS_THROUGH_THE_FRONT


def test_only_the_exporter_imports_torch_and_only_inside_functions(imports: list[Import]) -> None:
    torch = [i for i in imports if i.target.split(".")[0] in ("torch", "transformers", "diffusers")]
    assert {i.module for i in torch if i.rooms[0] != "exporter"} == RUNS_TORCH
    assert {i.module for i in torch if not i.inside_function} == IMPORTS_TORCH_AT_THE_TOP
    users = [i for i in imports if i.target in IMPORTS_TORCH_AT_THE_TOP]
    assert users and all(i.inside_function for i in users)
