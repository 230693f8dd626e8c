"""What products of rows with packed weights have in common: how such a kernel is declared, how it is called, and the rows it reads.

a (rows, K) @ b (K, N) -> c (rows, N), in floats, halves, bytes or blocks of few bits
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opsmith.compiler.kernel import EPILOGUE, Kernel, Micro, Parameter, Struct, size, sizes, struct, write
from opsmith.compiler.lower.builder import Builder
from opsmith.compiler.program import Argument, Epilogue, StructValue, Tunable, View, even
from opsmith.compiler.task import Candidate
from opsmith.sizes import ONE, Size, product

BLOCKING = Struct("Blocking", "gemm_micro.hpp", ("rows", "panels"))


def rows_kernel(
    name: str,
    header: str,
    a: Sequence[Parameter],
    b: Sequence[Parameter],
    comment: str,
    *,
    shape: Sequence[str] = ("m", "n", "k"),
    tuned: bool = False,
    micros: tuple[Micro, ...] = (),
) -> Kernel:
    """A kernel whose rows and packed weights are the parameters A and B. TUNED: it takes the limits of its loops."""
    limits = [struct("blocking", BLOCKING, optional=True)] if tuned else []
    rest = [write("c"), size("ldc"), EPILOGUE, size("rows_per_item"), *limits]
    return Kernel(name, header, [*sizes(*shape), *a, *b, *rest], comment, micros=micros)


def rows_product(
    builder: Builder,
    kernel: Kernel,
    rows: Size,
    k: int,
    n: int,
    given: Mapping[str, Argument],
    target: View,
    epilogue: Epilogue,
    *,
    stored: str = "",
    **about: Any,
) -> None:
    """target (rows, N) = epilogue(a (rows, K) @ b (K, N)) by any kernel over packed weights; `given` are its a and b, `stored`
    says how b lies."""
    builder.call(
        kernel,
        given,
        m=rows,
        n=n,
        k=k,
        c=target,
        ldc=n,
        epilogue=epilogue,
        rows_per_item=product(target.dims[1:-1]),
        comment=with_epilogue(f"({rows}, {k}) @ {stored}({k}, {n})", epilogue),
        flops=rows * (2 * k * n),
        **about,
    )


def blocking(tunable: Tunable | None) -> StructValue | None:
    """The limits that the tuner found, where they differ from the kernel's own choice."""
    return None if tunable is None or tunable.limits is None else blocking_of(tunable.limits)


def blocking_of(limits: Candidate) -> StructValue:
    return StructValue(BLOCKING, {"rows": limits.rows, "panels": limits.panels})


def with_epilogue(text: str, epilogue: Epilogue) -> str:
    return f"{text}; {epilogue.comment}" if epilogue.comment else text


def even_rows(left: View, builder: Builder) -> View:
    """Rows that one stride walks over, contiguous inside."""
    if left.strides[-1] == 1 or left.dims[-1] == 1:
        dims, strides = left.dims[:-1], left.strides[:-1]
        if even(strides, dims):
            step = next((s for s, d in zip(reversed(strides), reversed(dims)) if d != 1), left.dims[-1])
            return left.with_(left.dims, [*strides[:-1], *([step] if strides else []), ONE])
    return builder.dense(left)


def row_stride(view: View) -> Size:
    return view.strides[-2] if len(view.dims) > 1 else view.dims[-1]
