"""Generated C++: one file per region that reads like a program, one file per kernel instance, one that registers them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opsmith.analysis.values import DataType
from opsmith.compiler.convert import Blob, library_id, weight_inputs
from opsmith.compiler.cpp import (
    CPP,
    Scope,
    body_lambda,
    declared,
    epilogue_lambda,
    fixed_text,
    quoted,
    remark,
    template_text,
    value_type,
)
from opsmith.compiler.geometry import GENERIC, NATIVE, InstructionSet
from opsmith.compiler.kernel import Kind, Micro, Parameter
from opsmith.compiler.lower.builder import identifier
from opsmith.compiler.partition import Region
from opsmith.compiler.plan import Slot
from opsmith.compiler.program import Body, Buffer, Call, Epilogue, Port, Program, StructValue, View
from opsmith.sizes import Size

# ONNX Runtime's element type numbers are those of ONNX's TensorProto.


NAMESPACE = "opsmith"


@dataclass(frozen=True)
class Source:
    """A file to write and compile; headers are written only."""

    name: str
    text: str
    isa: InstructionSet | None = None  # to compile it for; None: as the rest of the library
    namespace: str = NAMESPACE  # instead of the kernels' own: two forms of a kernel must not meet when they are linked

    @property
    def compiled(self) -> bool:
        return self.name.endswith(".cpp")


# --- instances: one instantiation of a kernel template, in a file of its own ---


@dataclass(frozen=True)
class Instance:
    """Shared by all calls that need it, by all regions, and through the build cache by all models."""

    name: str
    declaration: str
    body: str
    includes: tuple[str, ...]  # of its own file
    headers: frozenset[str]  # that declare the types of its signature
    comment: str
    micros: tuple[SharedMicro, ...]  # compiled elsewhere


@dataclass(frozen=True)
class SharedMicro:
    """A microkernel in a file of its own, and how the instances that use it declare that."""

    rows: str
    panels: str
    blocked: bool

    @property
    def source(self) -> Source:
        name = "_".join(["micro", self.rows, self.panels, *(["blocked"] if self.blocked else [])])
        text = (
            '// the microkernel of products, for all kernels that share it\n#include "gemm_micro.hpp"\n#include "types.hpp"\n\n'
            f"namespace opsmith {{\n\n{self.template}\n\n}}  // namespace opsmith\n"
        )
        return Source(f"{name}.cpp", text)

    @property
    def template(self) -> str:
        types = f"{self.rows}, {self.panels}"
        return f"template MicroFn<{types}> pick_micro<gemm_mr, {types}, {str(self.blocked).lower()}>(i64, i64);"


def instance_of(call: Call) -> Instance:
    kernel, epilogue = call.kernel, call.epilogue
    parameters = ["const Pool& pool"] if kernel.pool else []
    parameters += [declared(call, p) for p in _passed(call) if p.kind is not Kind.FIXED]
    for o in epilogue.operands:
        parameters += [f"const {CPP[o.view.dtype]}* {o.name}_at", f"i64 {o.name}_ld"]
    body = call.arguments.get("body")
    scalars = body.scalars if isinstance(body, Body) else epilogue.scalars
    parameters += [f"{value_type(s.dtype, vector=False)} {s.name}_value" for s in scalars]
    inner = [*(["pool"] if kernel.pool else []), *(_inner(call, p) for p in kernel.parameters if _given(call, p))]
    text = f"{kernel.name}{template_text(call.templates)}({', '.join(inner)});"
    includes = (kernel.header, "elementwise.hpp") if kernel.of(Kind.EPILOGUE) else (kernel.header,)
    declaration = ", ".join(parameters)
    digest = hashlib.sha256(f"{declaration}|{text}|{includes}".encode()).hexdigest()[:6]
    name = "_".join(x for x in (call.label, epilogue.slug) if x)
    comment = body.comment if isinstance(body, Body) else kernel.comment or kernel.name.replace("_", " ")
    then = f"; then {epilogue.comment}" if epilogue.comment else ""
    return Instance(
        f"{identifier(name)}_{digest}",
        declaration,
        text,
        includes,
        frozenset(_type_headers(call)),
        comment + then,
        tuple(_shared(call, m) for m in kernel.micros),
    )


def _shared(call: Call, micro: Micro) -> SharedMicro:
    def cpp(name: str) -> str:
        if all(p.name != name for p in call.kernel.parameters):
            return name
        argument = call.arguments[name]
        assert isinstance(argument, (View, Buffer))
        return CPP[argument.dtype]

    return SharedMicro(cpp(micro.rows), cpp(micro.panels), micro.blocked)


def _given(call: Call, parameter: Parameter) -> bool:
    return not parameter.optional or call.arguments.get(parameter.name) is not None


def _passed(call: Call) -> list[Parameter]:
    """What the region hands to the instance."""
    inside = (Kind.EPILOGUE, Kind.BODY)
    return [p for p in call.kernel.parameters if p.kind not in inside and _given(call, p)]


def _inner(call: Call, parameter: Parameter) -> str:
    """What the instance hands to the kernel."""
    argument = call.arguments.get(parameter.name)
    if isinstance(argument, Epilogue):
        return epilogue_lambda(argument)
    if isinstance(argument, Body):
        return body_lambda(argument, call.writes()[0].dtype)
    return fixed_text(argument) if parameter.kind is Kind.FIXED else parameter.name  # type: ignore[arg-type]


def _type_headers(call: Call) -> set[str]:
    headers = {a.struct.header for a in call.arguments.values() if isinstance(a, StructValue)}
    return headers | ({"sizes.hpp"} if call.kernel.of(Kind.SIZES) else set())


def instances(programs: Sequence[Program]) -> list[Instance]:
    """Every instance that these programs need, once."""
    by_name = {i.name: i for p in programs for c in p.calls if not c.kernel.inline for i in [instance_of(c)]}
    return sorted(by_name.values(), key=lambda i: i.name)


def emit_instances(needed: Sequence[Instance]) -> list[Source]:
    """A header with all declarations, and a file per instance and shared microkernel, so that each compiles and caches on its own."""
    headers = sorted({"elementwise.hpp", *(h for i in needed for h in i.headers)})
    header = ["// The kernels this model uses, declared.", "#pragma once", ""]
    header += [f'#include "{h}"' for h in headers]
    header += ["", "namespace opsmith {", ""]
    files: list[Source] = []
    for instance in needed:
        header.append(remark(instance.comment))
        header.append(f"void {instance.name}({instance.declaration});")
        includes = "".join(f'#include "{i}"\n' for i in instance.includes)
        elsewhere = "".join(f"extern {m.template}  // {m.source.name}\n" for m in instance.micros)
        elsewhere += "\n" if elsewhere else ""
        text = (
            f"{remark(instance.comment)}\n{includes}\nnamespace opsmith {{\n\n{elsewhere}"
            f"void {instance.name}({instance.declaration}) {{\n  {instance.body}\n}}\n\n}}  // namespace opsmith\n"
        )
        files.append(Source(f"{instance.name}.cpp", text))
    header += ["", "}  // namespace opsmith", ""]
    micros = dict.fromkeys(m for i in needed for m in i.micros)
    return [Source("instances.hpp", "\n".join(header)), *files, *(m.source for m in micros)]


# --- regions ---


def emit_region(program: Program, slots: Sequence[Slot]) -> Source:
    """The region as a function: inputs, sizes, checks, memory, then one call per line."""
    scope = Scope(program)
    calls, spaces = _calls(program, scope), _workspaces(program, scope)  # these decide which sizes become locals
    headers = {"ort_abi.hpp", "memory.hpp"} | {
        c.kernel.header for c in program.calls if c.kernel.inline or c.kernel.space
    }
    lines = [f"// Region {program.name}: {len(program.calls)} calls.", ""]
    lines += [f'#include "{h}"' for h in sorted(headers)]
    lines += ['#include "instances.hpp"', "", "namespace opsmith {", ""]
    lines += [f"OrtStatus* {program.name}(const Kernel& kernel, OrtKernelContext* context) {{"]
    lines += [f'  Run run(kernel, context, "{program.name}");', ""]
    definitions = scope.local_definitions()
    sizes = ["// Sizes", *definitions, ""] if definitions else []
    body = [*_inputs(program, scope), *sizes, *_checks(program, scope), *_memory(program, slots, scope, spaces), *calls]
    lines += [f"  {line}" if line else "" for line in body]
    lines += ["  return run.status;", "}", "", "}  // namespace opsmith", ""]
    return Source(f"{program.name}.cpp", "\n".join(lines))


def _inputs(program: Program, scope: Scope) -> list[str]:
    lines = ["// Inputs, with their sizes"]
    bound: set[str] = set()
    later: list[str] = []
    for i, port in enumerate(program.inputs):
        rank = len(port.facts.dims)
        name, cpp = scope.buffer(port.buffer), CPP[port.buffer.dtype]
        label = quoted(port.value.name or f"input {i}")
        lines.append(f"i64 dims{i}[{max(rank, 1)}] = {{}};")
        lines.append(
            f"[[maybe_unused]] const {cpp}* {name} = static_cast<const {cpp}*>(run.input({i}, {label}, {int(port.buffer.dtype)}, {rank}, dims{i}));"
        )
    lines.append("if (run.failed()) return run.status;")
    for i, port in enumerate(program.inputs):
        label = quoted(port.value.name or f"input {i}")
        for axis, d in enumerate(port.facts.dims):
            if d.name is not None and d.name not in bound:
                bound.add(d.name)
                lines.append(f"[[maybe_unused]] const i64 {scope.full(d)} = dims{i}[{axis}];")
            else:
                later.append(f'run.check_equal({label}, "size of axis {axis}", dims{i}[{axis}], {scope.full(d)});')
    return [*lines, *later, "if (run.failed()) return run.status;", ""]


def _checks(program: Program, scope: Scope) -> list[str]:
    if not program.checks:
        return []
    lines = dict.fromkeys(
        f"run.check({quoted(node)}, {scope.condition(condition)}, {quoted(message)});"
        for node, condition, message in program.checks
    )
    return ["// What must hold for these sizes", *lines, "if (run.failed()) return run.status;", ""]


def _memory(program: Program, slots: Sequence[Slot], scope: Scope, spaces: Sequence[str]) -> list[str]:
    lines = ["// Memory"]
    for b in (b for b in program.buffers if b.place == "weight"):
        cpp, name = CPP[b.dtype], scope.buffer(b)
        lines.append(
            f"[[maybe_unused]] const {cpp}* {name} = reinterpret_cast<const {cpp}*>(kernel.weights + {b.slot});"
        )
    counted = {c.binds for c in program.calls if c.binds is not None}
    for port in program.outputs:
        if counted.isdisjoint(port.facts.dims):
            lines += _output(program, port, scope)
    lines.append("if (run.failed()) return run.status;")
    offset = "0"
    for slot in slots:
        unique = list(dict.fromkeys(_bytes(b, scope) for b in slot.buffers))
        text = unique[0]
        for other in unique[1:]:
            text = f"max<i64>({text}, {other})"
        lines.append(f"const i64 slot{slot.index} = {offset};")
        lines.append(f"const i64 slot{slot.index}_end = slot{slot.index} + round_up({text}, 64);")
        offset = f"slot{slot.index}_end"
    lines.append(f"const i64 workspace_at = {offset};")
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
            lines.append(
                f"{CPP[b.dtype]}* {scope.buffer(b)} = reinterpret_cast<{CPP[b.dtype]}*>(arena + slot{b.slot});"
            )
    lines += ["[[maybe_unused]] const Pool pool = run.pool();", f'Stopwatch watch("{program.name}");', ""]
    return lines


def _output(program: Program, port: Port, scope: Scope) -> list[str]:
    """Ask ORT for the memory of an output."""
    i = program.outputs.index(port)
    dims = ", ".join(scope.full(d) for d in port.facts.dims) or "0"
    cpp, name = CPP[port.buffer.dtype], scope.buffer(port.buffer)
    ask = "squeezed_output" if port.facts.squeezed else "output"
    return [
        f"const i64 out_dims{i}[] = {{{dims}}};",
        f"{cpp}* {name} = static_cast<{cpp}*>(run.{ask}({i}, out_dims{i}, {len(port.facts.dims)}));",
    ]


def _workspaces(program: Program, scope: Scope) -> list[str]:
    """The bytes that calls need, as C++; one shared piece of memory holds the largest."""
    spaces: dict[str, None] = {}
    for call in program.calls:
        for p in call.kernel.of(Kind.SPACE):
            if (space := call.kernel.space) is not None:
                arguments = ", ".join(scope.argument(call, call.kernel.parameter(n)) for n in space.arguments)
                templates = template_text(call.templates) if space.templated else ""
                spaces[f"{space.function}{templates}({arguments})"] = None
            elif isinstance(count := call.arguments.get(p.name), Size):
                spaces[scope.size(count)] = None
    return list(spaces)


def _bytes(buffer: Buffer, scope: Scope) -> str:
    """The bytes of a buffer as C++, in 128-bit arithmetic."""
    terms = [
        " * ".join([f"__int128({int(coefficient * buffer.dtype.itemsize)})", *atoms])
        for coefficient, atoms in scope.factors(buffer.elements)
    ]
    return f"slot_bytes({' + '.join(terms) or '0'})"


# --- calls ---


def _calls(program: Program, scope: Scope) -> list[str]:
    lines: list[str] = []
    for i, call in enumerate(program.calls):
        lines.append(remark(f"{call.node}: {call.comment}"))
        lines.append(call_text(call, scope))
        if call.binds is not None:
            lines += [
                x for port in program.outputs if call.binds in port.facts.dims for x in _output(program, port, scope)
            ]
            lines.append("if (run.failed()) return run.status;")
        lines.append(_lap(i, call, scope))
        if call.kernel.check:
            lines.append("if (run.failed()) return run.status;")
    return lines


def kernel_label(call: Call) -> str:
    """What profiles call it: the instance, or the kernel that is called directly."""
    return call.label if call.kernel.inline else instance_of(call).name


def call_text(call: Call, scope: Scope) -> str:
    kernel = call.kernel
    arguments = [*(["pool"] if kernel.pool else [])]
    arguments += [scope.argument(call, p) for p in _passed(call) if p.kind is not Kind.FIXED or kernel.inline]
    for o in call.epilogue.operands:
        arguments += [scope.pointer(o.view), scope.size(o.step)]
    body = call.arguments.get("body")
    for s in body.scalars if isinstance(body, Body) else call.epilogue.scalars:
        arguments.append(f"({value_type(s.dtype, vector=False)})({scope.scalar(s.value)})")
    name = f"{kernel.name}{template_text(call.templates)}" if kernel.inline else instance_of(call).name
    text = f"{name}({', '.join(arguments)})"
    if kernel.check:
        text = f"run.check({quoted(call.node)}, {text}, {quoted(kernel.check)})"
    if call.binds is not None:
        text = f"const i64 {scope.full(call.binds)} = {text}"
    loops = ""
    for loop, count in call.loops:
        variable = scope.dim(loop)
        loops += f"for (i64 {variable} = 0; {variable} < {scope.size(count)}; ++{variable}) "
    return f"{loops}{text};"


def _lap(index: int, call: Call, scope: Scope) -> str:
    flops, moved = (_double(d, scope) for d in (call.flops, call.bytes()))
    in_json = json.dumps(call.node)[1:-1]  # the profile is written as it stands
    return f"watch.lap({index}, {quoted(kernel_label(call))}, {quoted(in_json)}, {flops}, {moved});"


def _double(size: Size, scope: Scope) -> str:
    """A size as a double, for the profile only."""
    if size.value is not None:
        return f"{size.value}.0"
    return " + ".join(" * ".join([f"{float(c)}", *atoms]) for c, atoms in scope.factors(size))


# --- the library's doors ---


@dataclass(frozen=True)
class Form:
    """The code of all regions for one CPU, and the weights as it wants them packed."""

    programs: Sequence[Program]
    blobs: Sequence[Blob]
    cpu: str = NATIVE
    features: Sequence[str] = ()  # that the CPU must have
    namespace: str = NAMESPACE


def emit_registration(
    domain: str, regions: Sequence[Region], forms: Sequence[Form], renamed: Mapping[str, str] | None = None
) -> Source:
    """The library's two doors: a function that tells ORT about every region as a custom op, and their table for the provider.

    Both lead to the first of the FORMS that the CPU can run, so the file itself is compiled for any. The table has the names of the
    model's file: RENAMED gives those of values that have another one here.
    """
    in_file = renamed or {}
    lines = [
        "// Registers the regions of this model with ONNX Runtime.",
        "",
        '#include "forms.hpp"',
        "",
    ]
    for form in forms:
        lines += [f"namespace {form.namespace} {{", "struct Kernel;"]
        lines += [f"OrtStatus* {p.name}(const Kernel& kernel, OrtKernelContext* context);" for p in form.programs]
        lines += [f"}}  // namespace {form.namespace}", ""]
    lines += [f"namespace {NAMESPACE} {{", "namespace {", ""]
    weights = weight_inputs([form.blobs for form in forms])
    for r, p, packed in zip(regions, forms[0].programs, weights):
        inputs = [*(int(port.buffer.dtype) for port in p.inputs), *(int(DataType.UINT8) for _ in packed)]
        outputs = [int(port.buffer.dtype) for port in p.outputs]
        lines.append(f"const int {p.name}_inputs[] = {{{', '.join(map(str, inputs)) or '0'}}};")
        lines.append(f"const int {p.name}_outputs[] = {{{', '.join(map(str, outputs))}}};")
        for side, values in (("reads", r.inputs), ("writes", r.outputs)):
            names = ", ".join(quoted(in_file.get(v.name or "", v.name or "")) for v in values)
            lines.append(f"const char* const {p.name}_{side}[] = {{{names or 'nullptr'}}};")
    for i, form in enumerate(forms):
        lines += ["", f"RegionOp regions{i}[] = {{  // {form.cpu}"]
        for r, p, blob, packed in zip(regions, form.programs, form.blobs, weights):
            lines.append(f"    {_region_row(r, p, blob, packed, form, domain, in_file)},")
        lines.append("};")
    lines += ["", "const Form forms[] = {"]
    for i, form in enumerate(forms):
        table = f"{{kRegionsVersion, {len(form.programs)}, regions{i}}}"
        lines.append(f'    {{"{form.cpu}", "{" ".join(form.features)}", regions{i}, {table}}},')
    lines += [
        "};",
        "",
        "}  // namespace",
        f"}}  // namespace {NAMESPACE}",
        "",
        f"{_EXPORTED} OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {{",
        f'  return opsmith::register_best(options, base, "{domain}", opsmith::forms);',
        "}",
        f"{_EXPORTED} const opsmith::Regions* OpsmithRegions() {{ return opsmith::best_regions(opsmith::forms); }}",
        "",
    ]
    return Source("register.cpp", "\n".join(lines), isa=GENERIC)


def _region_row(
    r: Region, p: Program, blob: Blob, packed: Sequence[Blob], form: Form, domain: str, in_file: Mapping[str, str]
) -> str:
    """A RegionOp."""
    count = len(p.inputs) + len(packed)
    place = len(p.inputs) + packed.index(blob) if blob.bytes else count
    body = "".join(f"{in_file.get(step.gives, step.gives)}\n{step.attribute}\n" for step in r.path)
    compute = f"reinterpret_cast<Compute>({form.namespace}::{p.name})"
    return (
        f'{{{{}}, "{p.name}", {p.name}_inputs, {count}, {p.name}_outputs, {len(p.outputs)}, {compute}, '
        f"{place}, {blob.bytes}, {blob.offset}, {library_id(domain)}ull, {p.name}_reads, {p.name}_writes, {quoted(body)}}}"
    )


_EXPORTED = "OPSMITH_EXPORT"
