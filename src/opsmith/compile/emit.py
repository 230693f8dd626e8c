"""Generated C++: one file per region that reads like a program, one file per kernel instance, one that registers them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from opsmith.compile.dims import Dim
from opsmith.compile.lower.program import Call, Instance, Program
from opsmith.compile.partition import plain_symbol
from opsmith.compile.plan import Slot
from opsmith.compile.values import CPP, Buffer, DataType

# ONNX Runtime's element type numbers are those of ONNX's TensorProto.


@dataclasses.dataclass(frozen=True)
class Source:
    """A file to write and compile; headers are written only."""

    name: str
    text: str

    @property
    def compiled(self) -> bool:
        return self.name.endswith(".cpp")


def emit_instances(instances: Sequence[Instance], headers: Collection[str] = ()) -> list[Source]:
    """A header with all declarations, and a file per instance, so that each compiles and caches on its own."""
    header = ["// The kernels this model uses, declared.", "#pragma once", ""]
    header += [f'#include "{h}"' for h in sorted({"elementwise.hpp", *headers})]
    header += ["", "namespace opsmith {", ""]
    files: list[Source] = []
    for instance in sorted(instances, key=lambda i: i.name):
        header.append(f"// {instance.comment}")
        header.append(f"void {instance.name}({instance.parameters});")
        includes = "".join(f'#include "{i}"\n' for i in instance.includes)
        text = (
            f"// {instance.comment}\n{includes}\nnamespace opsmith {{\n\n"
            f"void {instance.name}({instance.parameters}) {{\n  {instance.body}\n}}\n\n}}  // namespace opsmith\n"
        )
        files.append(Source(f"{instance.name}.cpp", text))
    header += ["", "}  // namespace opsmith", ""]
    return [Source("instances.hpp", "\n".join(header)), *files]


def emit_region(program: Program, slots: Sequence[Slot]) -> Source:
    """The region as a function: inputs, sizes, checks, memory, then one call per line."""
    lines = [f"// Region {program.name}: {len(program.calls)} calls.", ""]
    lines += [f'#include "{i}"' for i in sorted(program.headers)]
    lines += ['#include "instances.hpp"', "", "namespace opsmith {", ""]
    lines += [f"OrtStatus* {program.name}(const Kernel& kernel, OrtKernelContext* context) {{"]
    lines += [f'  Run run(kernel, context, "{program.name}");', ""]
    body = [*_inputs(program), *_sizes(program), *_checks(program), *_memory(program, slots), *_calls(program)]
    lines += [f"  {line}" if line else "" for line in body]
    lines += ["  return run.status;", "}", "", "}  // namespace opsmith", ""]
    return Source(f"{program.name}.cpp", "\n".join(lines))


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("%", "%%") + '"'


def _cpp_type(buffer: Buffer) -> str:
    return CPP[buffer.dtype]


def _inputs(program: Program) -> list[str]:
    lines = ["// Inputs, with their sizes"]
    bound: set[str] = set()
    later: list[str] = []
    for i, port in enumerate(program.inputs):
        rank = len(port.facts.dims)
        name, cpp = port.buffer.name, _cpp_type(port.buffer)
        label = quoted(port.value.name or f"input {i}")
        lines.append(f"i64 dims{i}[{max(rank, 1)}];")
        lines.append(
            f"[[maybe_unused]] const {cpp}* {name} = static_cast<const {cpp}*>(run.input({i}, {label}, {int(port.buffer.dtype)}, {rank}, dims{i}));"
        )
    lines.append("if (run.failed()) return run.status;")
    for i, port in enumerate(program.inputs):
        label = quoted(port.value.name or f"input {i}")
        for axis, d in enumerate(port.facts.dims):
            plain = plain_symbol(d)
            if plain is not None and plain not in bound:
                bound.add(plain)
                lines.append(f"[[maybe_unused]] const i64 {plain} = dims{i}[{axis}];")
            else:
                later.append(f'run.check_equal({label}, "size of axis {axis}", dims{i}[{axis}], {d.cpp()});')
    return [*lines, *later, "if (run.failed()) return run.status;", ""]


def _sizes(program: Program) -> list[str]:
    if not program.locals:
        return []
    return ["// Sizes", *(f"const i64 {name} = {atom};" for atom, name in program.locals.items()), ""]


def _checks(program: Program) -> list[str]:
    if not program.checks:
        return []
    unique = dict.fromkeys(program.checks)
    lines = [f"run.check({quoted(node)}, {condition}, {quoted(message)});" for node, condition, message in unique]
    return ["// What must hold for these sizes", *lines, "if (run.failed()) return run.status;", ""]


def _memory(program: Program, slots: Sequence[Slot]) -> list[str]:
    lines = ["// Memory"]
    weights = [b for b in program.buffers if b.place == "weight"]
    for b in weights:
        cpp = _cpp_type(b)
        lines.append(
            f"[[maybe_unused]] const {cpp}* {b.name} = reinterpret_cast<const {cpp}*>(kernel.weights + {b.slot});"
        )
    for i, port in enumerate(program.outputs):
        dims = ", ".join(d.cpp() for d in port.facts.dims) or "0"
        cpp = _cpp_type(port.buffer)
        lines.append(f"const i64 out_dims{i}[] = {{{dims}}};")
        lines.append(
            f"{cpp}* {port.buffer.name} = static_cast<{cpp}*>(run.output({i}, out_dims{i}, {len(port.facts.dims)}));"
        )
    lines.append("if (run.failed()) return run.status;")
    offset = "0"
    for slot in slots:
        sizes = [_bytes(b) for b in slot.buffers]
        unique = list(dict.fromkeys(sizes))
        text = unique[0]
        for other in unique[1:]:
            text = f"max<i64>({text}, {other})"
        lines.append(f"const i64 slot{slot.index} = {offset};")
        lines.append(f"const i64 slot{slot.index}_end = slot{slot.index} + round_up({text}, 64);")
        offset = f"slot{slot.index}_end"
    lines.append(f"const i64 workspace_at = {offset};")
    spaces = list(dict.fromkeys(program.workspaces))
    if spaces:
        lines.append("i64 workspace_bytes = 0;")
        lines += [f"workspace_bytes = max<i64>(workspace_bytes, {s});" for s in spaces]
        lines.append("uint8_t* arena = run.arena(workspace_at + workspace_bytes);")
    else:
        lines.append("uint8_t* arena = run.arena(workspace_at);")
    lines.append("if (run.failed()) return run.status;")
    lines.append("[[maybe_unused]] void* workspace = arena + workspace_at;")
    for b in program.buffers:
        if b.place == "arena" and b.first >= 0:
            cpp = _cpp_type(b)
            lines.append(f"{cpp}* {b.name} = reinterpret_cast<{cpp}*>(arena + slot{b.slot});")
    lines += ["[[maybe_unused]] const Pool pool = run.pool();", f'Stopwatch watch("{program.name}");', ""]
    return lines


def _bytes(buffer: Buffer) -> str:
    """C++ bytes of a buffer, in 128-bit arithmetic."""
    terms = []
    for monomial, coefficient in buffer.elements.terms.items():
        factors = [f"__int128({int(coefficient * buffer.dtype.itemsize)})", *monomial]
        terms.append(" * ".join(factors))
    return f"slot_bytes({' + '.join(terms) or '0'})"


def _calls(program: Program) -> list[str]:
    lines: list[str] = []
    for i, call in enumerate(program.calls):
        lines.append(f"// {call.node}: {call.comment}".replace("\n", " ").rstrip("\\"))
        lines.append(call.text)
        lines.append(_lap(i, call))
        if call.can_fail:
            lines.append("if (run.failed()) return run.status;")
    return lines


def _lap(index: int, call: Call) -> str:
    flops, moved = (_double(d) for d in (call.flops, call.bytes))
    return f"watch.lap({index}, {quoted(call.kernel)}, {quoted(call.node)}, {flops}, {moved});"


def _double(d: Dim) -> str:
    """A size as a double, for the profile only."""
    if d.value is not None:
        return f"{d.value}.0"
    terms = [" * ".join([f"{float(c)}", *m]) for m, c in d.terms.items()]
    return " + ".join(terms)


def emit_registration(domain: str, programs: Sequence[Program], checks: Sequence[int], sizes: Sequence[int]) -> Source:
    """The library's one exported function: it tells ORT about every region."""
    lines = [
        "// Registers the regions of this model with ONNX Runtime.",
        "",
        '#include "ort_abi.hpp"',
        "",
        "namespace opsmith {",
        "",
    ]
    for p in programs:
        lines.append(f"OrtStatus* {p.name}(const Kernel& kernel, OrtKernelContext* context);")
    lines += ["", "namespace {", ""]
    for p, size in zip(programs, sizes):
        inputs = [int(port.buffer.dtype) for port in p.inputs]
        if size:
            inputs.append(int(DataType.UINT8))
        outputs = [int(port.buffer.dtype) for port in p.outputs]
        lines.append(f"const int {p.name}_inputs[] = {{{', '.join(map(str, inputs)) or '0'}}};")
        lines.append(f"const int {p.name}_outputs[] = {{{', '.join(map(str, outputs))}}};")
    lines += ["", "RegionOp regions[] = {"]
    for p, check, size in zip(programs, checks, sizes):
        count = len(p.inputs) + (1 if size else 0)
        lines.append(
            f'    {{{{}}, "{p.name}", {p.name}_inputs, {count}, {p.name}_outputs, {len(p.outputs)}, {p.name}, '
            f"{len(p.inputs)}, {size}, {check}ull, {{}}}},"
        )
    lines += ["};", "", "}  // namespace", "}  // namespace opsmith", ""]
    lines += [
        'extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {',
        f'  return opsmith::register_regions(options, base, "{domain}", opsmith::regions, {len(programs)});',
        "}",
        "",
    ]
    return Source("register.cpp", "\n".join(lines))
