"""Random graphs of about 150 operators, opsets 11 to 24, for benchmarks/fuzz.py.

A node is drawn with operands that probably fit; ONNX's own inference says whether they do and what comes out, so that a step of
the generator says only what is peculiar to its operator. Sizes are numbers or the dims n and m.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

Dim = int | str | None
FLOATS = (T.FLOAT, T.FLOAT16, T.DOUBLE, T.BFLOAT16)
INTEGERS = (T.INT64, T.INT32, T.INT8, T.UINT8)

UNARY = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu
Log Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu IsNaN
IsInf""".split()
REDUCE = """ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd ReduceLogSum ReduceLogSumExp
ReduceSumSquare""".split()
COMPARE = "Less Greater Equal LessOrEqual GreaterOrEqual".split()
CAST_TO = (T.FLOAT, T.FLOAT, T.FLOAT16, T.DOUBLE, T.BFLOAT16, T.INT64, T.INT32, T.BOOL)
OFTEN = {
    "draw_unary": 5,
    "draw_binary": 3,
    "draw_constant": 3,
    "draw_linear": 3,
    "draw_conv": 3,
    "draw_norm": 3,
    "draw_reduce": 3,
}
OFTEN |= {
    "draw_quantize": 2,
    "draw_recurrent": 2,
    "draw_scan": 2,
    "draw_images": 2,
    "draw_resize": 2,
    "draw_einsum": 2,
    "draw_softmax": 2,
}


@dataclasses.dataclass(frozen=True)
class Value:
    name: str
    kind: int  # element type
    dims: tuple[Dim, ...]

    @property
    def known(self) -> bool:
        return all(isinstance(d, int) for d in self.dims)


class Graphs:
    """Draws models; the same seed gives the same model."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.rng.randint(11, 24)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.values: list[Value] = []
        self.count = 0

    def draw(self, nodes: int) -> onnx.ModelProto:
        kind = self.rng.choices(FLOATS, [14, 2, 2, 0])[0]
        self.inputs = [Value("x0", kind, ("n", 3, "m")), Value("x1", kind, ("n", 3, "m")), Value("x2", kind, (3, "m"))]
        extra = [
            Value("image", T.FLOAT, ("n", 4, 6, 5)),
            Value("row", T.FLOAT, ("n", 8)),
            Value("k", self.rng.choice(INTEGERS), ("n", 3, "m")),
            Value("b", T.BOOL, (3, "m")),
            Value("half", T.FLOAT16, ("n", 3, "m")),
            Value("one", T.FLOAT, ()),
        ]
        self.inputs += self.rng.sample(extra, self.rng.randint(0, 3))
        self.values = list(self.inputs)
        steps = [name for name in dir(self) if name.startswith("draw_")]
        often = [OFTEN.get(name, 1) for name in steps]
        for _ in range(nodes * 6):
            getattr(self, self.rng.choices(steps, often)[0])(self.rng.choice(self.values[-6:]))
            if len(self.nodes) >= nodes:
                break
        read = {i for n in self.nodes for i in n.input}
        written = {o for n in self.nodes for o in n.output}
        outputs = [v for v in self.values if v.name not in read and v.name in written]
        outputs += [v for v in self.values if v.name in written and v not in outputs and self.rng.random() < 0.15]
        if self.rng.random() < 0.1 or not outputs:
            outputs.append(self.inputs[0])
        return self.model(outputs)

    def model(self, outputs: Sequence[Value], nodes: Sequence[onnx.NodeProto] | None = None) -> onnx.ModelProto:
        graph = h.make_graph(
            self.nodes if nodes is None else nodes,
            "fuzz",
            [h.make_tensor_value_info(v.name, v.kind, v.dims) for v in self.inputs],
            [h.make_tensor_value_info(v.name, v.kind, [None if d is None else d for d in v.dims]) for v in outputs],
            self.constants,
        )
        opsets = [h.make_opsetid("", self.opset), *([h.make_opsetid("local", 1)] if self.functions else [])]
        return h.make_model(graph, opset_imports=opsets, ir_version=9, functions=self.functions)

    # --- building blocks ---

    def op(
        self, kind: str, inputs: Sequence[Value | str], outputs: int = 1, like: Sequence[Value] = (), **attributes: Any
    ) -> list[Value]:
        """Add a node if ONNX finds it valid; gives the values it writes, or nothing. LIKE: what its inference does not say."""
        names = [v if isinstance(v, str) else v.name for v in inputs]
        written = [f"v{self.count}_{i}" if i else f"v{self.count}" for i in range(outputs)]
        self.count += 1
        domain = "local" if any(f.name == kind for f in self.functions) else ""
        node = h.make_node(kind, names, written, domain=domain, **attributes)
        inferred = self._inferred(node)
        if inferred is None or not (domain or onnx.defs.has(kind, self.opset)):
            return []
        said = [dataclasses.replace(value, name=name) for value, name in zip(like, written)]
        made = [v or w for v, w in itertools.zip_longest(inferred, said)]
        if any(v is None or any(isinstance(d, int) and d < 0 for d in v.dims) for v in made):
            return []
        self.nodes.append(node)
        values = [v for v in made if v is not None]
        self.values += values
        return values

    def _inferred(self, node: onnx.NodeProto) -> list[Value | None] | None:
        """What ONNX infers of the values that a node writes; None if the node is not valid."""
        known = {v.name: v for v in self.values}
        captured = {i for a in node.attribute for n in a.g.node for i in n.input}
        # Only what the node reads is inferred again: the whole graph each time would be quadratic.
        names = {*node.input, *captured}
        graph = h.make_graph(
            [node],
            "one",
            [h.make_tensor_value_info(v.name, v.kind, v.dims) for v in (known[n] for n in names if n in known)],
            [onnx.ValueInfoProto(name=n) for n in node.output],
            [c for c in self.constants if c.name in names],
        )
        local = bool(node.domain)
        opsets = [h.make_opsetid("", self.opset), *([h.make_opsetid("local", 1)] if local else [])]
        model = h.make_model(graph, opset_imports=opsets, ir_version=9, functions=self.functions if local else [])
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            if not local and not captured:
                onnx.checker.check_node(node, _context(self.opset))
        except Exception:  # not valid: another one is drawn
            return None
        return [_value(v) for v in inferred.graph.output]

    def tensor(self, array: Any, kind: int | None = None) -> str:
        array = np.asarray(array)
        if kind is not None:
            array = array.astype(h.tensor_dtype_to_np_dtype(kind))
        content = nh.from_array(array)
        for other in self.constants:  # equal ones are shared now and then
            same = other.data_type == content.data_type and other.dims == content.dims
            if same and other.raw_data == content.raw_data and self.rng.random() < 0.7:
                return str(other.name)
        content.name = f"c{len(self.constants)}"
        self.constants.append(content)
        return str(content.name)

    def weights(self, *shape: int, kind: int = T.FLOAT) -> str:
        return self.tensor(self.numbers.standard_normal(shape) * 0.5, kind)

    def ints(self, *numbers: int) -> str:
        return self.tensor(np.array(numbers, np.int64))

    def like(self, x: Value) -> Value:
        return self.rng.choice([v for v in self.values if v.dims == x.dims and v.kind == x.kind])

    def axis(self, x: Value) -> int:
        return self.rng.randrange(len(x.dims)) - self.rng.choice([0, len(x.dims)])

    def floats(self, x: Value) -> Value | None:
        """X, or another value, that is a float."""
        if x.kind in FLOATS:
            return x
        choices = [v for v in self.values if v.kind in FLOATS]
        return self.rng.choice(choices) if choices else None

    def since(self, version: int) -> bool:
        return self.opset >= version

    # --- elementwise ---

    def draw_unary(self, x: Value) -> None:
        if x.kind == T.BOOL:
            self.op("Not", [x])
        elif x.kind in INTEGERS:
            self.op(self.rng.choice(["Abs", "Sign", "Identity", "BitwiseNot"]), [x], like=[x])
        else:
            kind = self.rng.choice(UNARY)
            alpha = {"alpha": self.rng.choice([0.0, 0.1, 1.0, 1.5])}
            alpha = alpha if kind in ("LeakyRelu", "Elu", "ThresholdedRelu", "HardSigmoid") else {}
            self.op(kind, [x], like=[] if kind in ("IsNaN", "IsInf") else [x], **alpha)

    def draw_binary(self, x: Value) -> None:
        kinds = "Add Sub Mul Div Max Min Pow Mod PRelu Sum Mean".split()
        if x.kind == T.BOOL:
            kinds = ["And", "Or", "Xor", "Equal"]
        elif x.kind in INTEGERS:
            kinds = "Add Sub Mul Max Min BitwiseAnd BitwiseOr BitwiseXor Equal".split()
        kind = self.rng.choice(kinds)
        self.op(kind, [x, self.like(x)], **({"fmod": 1} if kind == "Mod" else {}))

    def draw_broadcast(self, x: Value) -> None:
        same = [v for v in self.values if v.kind == x.kind and v.dims != x.dims]
        if same and x.kind != T.BOOL:
            self.op(self.rng.choice("Add Sub Mul Max Min".split()), self.rng.sample([x, self.rng.choice(same)], 2))

    def draw_constant(self, x: Value) -> None:
        if x.kind in FLOATS:
            number = self.rng.choice([0.0, -0.0, 1.0, 1e-12, -1.0, 0.5, 3.0, float(self.numbers.standard_normal())])
            number = 1e30 if self.rng.random() < 0.05 and x.kind == T.FLOAT else number
            kinds = "Add Sub Mul Div Max Min Pow".split()
        elif x.kind in INTEGERS:
            number, kinds = self.rng.randint(1, 5), "Add Sub Mul Div Max Min Mod".split()
        else:
            return
        shape = self.rng.choice([(), (1,), (1, 1)]) if len(x.dims) >= 2 else ()
        pair = [x, self.tensor(np.full(shape, number), x.kind)]
        kind = self.rng.choice(kinds)
        turn = self.rng.random() < 0.3 and kind not in ("Div", "Mod") and x.kind in FLOATS
        self.op(kind, pair[::-1] if turn else pair)

    def draw_choose(self, x: Value) -> None:
        other = self.like(x)
        if x.kind != T.BOOL and (found := self.op(self.rng.choice(COMPARE), [x, other])):
            self.op("Where", [found[0], x, self.rng.choice([other, x])])

    def draw_cast(self, x: Value) -> None:
        to = self.rng.choice(CAST_TO)
        if x.kind in FLOATS and to in INTEGERS:  # only what fits: the rest is not defined
            found = self.op("Clip", [x, self.tensor(-100, x.kind), self.tensor(100, x.kind)]) if self.since(12) else []
            x = found[0] if found else x
            if not found:
                return
        self.op("Cast", [x], to=to)

    def draw_clip(self, x: Value) -> None:
        if x.kind in (T.FLOAT, T.DOUBLE, T.FLOAT16):
            low, high = self.tensor(-1, x.kind), self.tensor(self.rng.choice([1, 6]), x.kind)
            # Of an infinite half, ONNX Runtime clips to the range of half or of float, as the opset says.
            forms = [[x, low, high]] if x.kind == T.FLOAT16 else [[x, low, high], [x, "", high], [x, low]]
            self.op("Clip", self.rng.choice(forms))

    def draw_dropout(self, x: Value) -> None:
        if x.kind in FLOATS:
            self.op(
                "Dropout", [x], outputs=self.rng.choice([1, 2]) if self.since(12) else 1
            )  # ORT leaves an older mask unset

    # --- reductions, norms ---

    def draw_reduce(self, x: Value) -> None:
        if not x.dims or x.kind == T.BOOL:
            return
        kind, axis, keep = self.rng.choice(REDUCE), self.axis(x), self.rng.randint(0, 1)
        if self.since(13 if kind == "ReduceSum" else 18):
            inputs = self.rng.choice([[x, self.ints(axis)], [x, self.ints(*range(len(x.dims)))], [x]])
            self.op(kind, inputs, keepdims=keep)
        else:
            self.op(kind, [x], keepdims=keep, **self.rng.choice([{"axes": [axis]}, {}]))

    def draw_argmax(self, x: Value) -> None:
        if x.dims and x.kind in FLOATS:
            last = {"select_last_index": 1} if self.since(12) and self.rng.random() < 0.3 else {}
            kind = self.rng.choice(["ArgMax", "ArgMin"])
            self.op(kind, [x], axis=self.axis(x), keepdims=self.rng.randint(0, 1), **last)

    def draw_cumsum(self, x: Value) -> None:
        if x.dims and x.kind in (T.FLOAT, T.DOUBLE, T.INT64, T.INT32):
            flags = {"exclusive": self.rng.randint(0, 1), "reverse": self.rng.randint(0, 1)}
            self.op("CumSum", [x, self.tensor(np.int64(self.axis(x)))], **flags)

    def draw_softmax(self, x: Value) -> None:
        if x.dims and x.kind in FLOATS:
            self.op(self.rng.choice(["Softmax", "LogSoftmax", "Hardmax"]), [x], axis=self.axis(x))

    def draw_norm(self, x: Value) -> None:
        if x.kind != T.FLOAT or not x.dims:
            return
        if len(x.dims) >= 3 and isinstance(x.dims[1], int) and self.rng.random() < 0.7:
            c = x.dims[1]
            scale, bias, mean = (self.weights(c) for _ in range(3))
            choices: list[tuple[str, list[Any], dict[str, Any]]] = [
                ("InstanceNormalization", [x, scale, bias], {}),
                ("BatchNormalization", [x, scale, bias, mean, self.tensor(np.full(c, 0.7), T.FLOAT)], {}),
                ("GroupNormalization", [x, scale, bias], {"num_groups": 1 if c % 2 else 2}),
                ("MeanVarianceNormalization", [x], {"axes": [0, 2]}),
                ("LRN", [x], {"size": 3}),
            ]
            kind, inputs, attributes = self.rng.choice(choices)
            if kind == "GroupNormalization" and self.opset < 21:
                inputs = [x, *(self.weights(attributes["num_groups"]) for _ in range(2))]
            self.op(kind, inputs, like=[x], **attributes)
        elif isinstance(x.dims[-1], int):
            kind = self.rng.choice(["LayerNormalization", "RMSNormalization"])
            self.op(kind, [x, self.weights(x.dims[-1])], like=[x], axis=-1)
        else:
            self.op("LpNormalization", [x], axis=self.axis(x), p=self.rng.choice([1, 2]))

    # --- views and movement ---

    def draw_transpose(self, x: Value) -> None:
        if x.dims:
            self.op("Transpose", [x], perm=self.rng.sample(range(len(x.dims)), len(x.dims)))

    def draw_squeeze(self, x: Value) -> None:
        ones = [i for i, d in enumerate(x.dims) if d == 1]
        kind = "Squeeze" if ones and self.rng.random() < 0.7 else "Unsqueeze"
        axis = self.rng.choice(ones) if kind == "Squeeze" else self.rng.randint(0, len(x.dims))
        if kind == "Unsqueeze" and len(x.dims) > 3:
            return
        if self.since(13):
            self.op(kind, [x, self.ints(axis)])
        else:
            self.op(kind, [x], axes=[axis])

    def draw_there_and_back(self, x: Value) -> None:
        """Flat, then the shape that a Shape node says."""
        flat, shape = self.op("Reshape", [x, self.ints(-1)]), self.op("Shape", [x])
        if flat and shape:
            back = self.op("Reshape", [flat[0], shape[0]])
            if back:  # inference may not follow the shape, and it is known here
                self.values[-1] = dataclasses.replace(back[0], dims=x.dims)

    def draw_reshape(self, x: Value) -> None:
        numbers = [d for d in x.dims if isinstance(d, int)]
        targets = [[0, -1], [-1], [*numbers, -1], [0] * len(x.dims), [-1, 1], [1, -1, *numbers[-1:]]]
        self.op("Reshape", [x, self.ints(*self.rng.choice(targets))])

    def draw_flatten(self, x: Value) -> None:
        self.op("Flatten", [x], axis=self.rng.randint(0, len(x.dims)))

    def draw_expand(self, x: Value) -> None:
        if len(x.dims) < 4:
            self.op("Expand", [x, self.ints(self.rng.choice([1, 2]), *[1] * len(x.dims))])

    def draw_expand_to(self, x: Value) -> None:
        other = self.rng.choice(self.values)
        if other.dims and (shape := self.op("Shape", [other])):
            self.op("Expand", [x, shape[0]])

    def draw_tile(self, x: Value) -> None:
        if x.dims:
            self.op("Tile", [x, self.ints(*(self.rng.choice([1, 1, 2]) for _ in x.dims))])

    def draw_concat(self, x: Value) -> None:
        if x.dims:
            self.op("Concat", [x, self.like(x), x][: self.rng.choice([1, 2, 3])], axis=self.axis(x))

    def draw_split(self, x: Value) -> None:
        places = [i for i, d in enumerate(x.dims) if isinstance(d, int) and d >= 2]
        if not places:
            return
        axis = self.rng.choice(places)
        size = x.dims[axis]
        assert isinstance(size, int)
        parts = [1, size - 1]
        if self.since(13):
            self.op("Split", [x, self.ints(*parts)], outputs=2, axis=axis)
        else:
            self.op("Split", [x], outputs=2, axis=axis, split=parts)

    def draw_slice(self, x: Value) -> None:
        if not x.dims:
            return
        axis = self.axis(x)
        start, end, step = self.rng.choice(
            [(1, 2**62, 1), (-1, -(2**62), -1), (0, -1, 1), (0, 4, 2), (-2, 2**62, 1), (3, 1, 1)]
        )
        self.op("Slice", [x, self.ints(start), self.ints(end), self.ints(axis), self.ints(step)])

    def draw_pad(self, x: Value) -> None:
        if x.kind in FLOATS and x.dims:
            mode = self.rng.choice(["constant", "constant", "edge", "reflect", "wrap"])
            amounts = [
                self.rng.choice([0, 0, 1, 2, *([-1] if mode == "constant" else [])]) for _ in range(2 * len(x.dims))
            ]
            more = [self.tensor(0.5, x.kind)] if mode == "constant" and self.rng.random() < 0.5 else []
            self.op("Pad", [x, self.ints(*amounts), *more], mode=mode)

    def draw_gather(self, x: Value) -> None:
        places = [i for i, d in enumerate(x.dims) if isinstance(d, int) and d > 0]
        if places:
            axis = self.rng.choice(places)
            size = x.dims[axis]
            assert isinstance(size, int)
            indices = self.numbers.integers(-size, size, self.rng.choice([(), (2,), (2, 2)]))
            self.op("Gather", [x, self.tensor(indices)], axis=axis)

    def draw_gather_others(self, x: Value) -> None:
        if x.known and x.dims and all(d for d in x.dims) and len(x.dims) <= 3:
            dims = [d for d in x.dims if isinstance(d, int)]
            kind = self.rng.choice(["GatherElements", "GatherND", "ScatterElements", "ScatterND"])
            if kind.endswith("Elements"):
                indices = self.tensor(self.numbers.permutation(dims[0]).reshape(-1, *[1] * (len(dims) - 1)))
                update = [self.weights(dims[0], *[1] * (len(dims) - 1), kind=x.kind)] if kind[0] == "S" else []
                self.op(kind, [x, indices, *update], axis=0)
            else:
                indices = self.tensor(self.numbers.permutation(dims[0])[:2].reshape(-1, 1))
                update = [self.weights(min(2, dims[0]), *dims[1:], kind=x.kind)] if kind[0] == "S" else []
                self.op(kind, [x, indices, *update])

    def draw_images(self, x: Value) -> None:
        if len(x.dims) == 4 and x.kind == T.FLOAT:
            kind = self.rng.choice(["DepthToSpace", "SpaceToDepth"])
            self.op(kind, [x], blocksize=2)

    def draw_trilu(self, x: Value) -> None:
        if len(x.dims) >= 2:
            self.op("Trilu", [x, self.tensor(np.int64(self.rng.randint(-2, 2)))], upper=self.rng.randint(0, 1))

    def draw_shape(self, x: Value) -> None:
        """A number computed from sizes joins the values."""
        if not x.dims or x.kind not in (T.FLOAT, T.DOUBLE):
            return
        size = self.op("Size", [x]) if self.rng.random() < 0.3 else self.op("Shape", [x])
        if size and size[0].dims:
            size = self.op("Gather", [size[0], self.tensor(np.int64(self.rng.choice([0, -1])))])
        if size and (number := self.op("Cast", [size[0]], to=x.kind)):
            self.op(self.rng.choice(["Add", "Mul"]), [x, number[0]])

    def draw_range(self, x: Value) -> None:
        if (
            x.dims
            and (shape := self.op("Shape", [x]))
            and (size := self.op("Gather", [shape[0], self.tensor(np.int64(0))]))
        ):
            self.op("Range", [self.tensor(np.int64(0)), size[0], self.tensor(np.int64(self.rng.choice([1, 2])))])

    def draw_filled(self, x: Value) -> None:
        if x.dims and (shape := self.op("Shape", [x])):
            self.op("ConstantOfShape", [shape[0]], value=h.make_tensor("v", T.FLOAT, [1], [0.5]))

    def draw_eye(self, x: Value) -> None:
        if len(x.dims) == 2:
            self.op("EyeLike", [x], k=self.rng.randint(-1, 1))

    def draw_one_hot(self, x: Value) -> None:
        if x.kind in (T.INT64, T.INT32):
            depth, values = self.tensor(np.int64(4)), self.tensor(np.array([0.0, 1.0], np.float32))
            self.op("OneHot", [x, depth, values], axis=self.rng.choice([-1, 0]))

    def draw_nonzero(self, x: Value) -> None:
        if x.dims and self.rng.random() < 0.4:
            self.op("NonZero", [x])

    def draw_compress(self, x: Value) -> None:
        if x.dims and x.dims[0] == 3:
            self.op("Compress", [x, self.tensor(np.array([True, False, True]))], axis=0)

    def draw_topk(self, x: Value) -> None:
        places = [i for i, d in enumerate(x.dims) if isinstance(d, int) and d >= 2]
        if places and x.kind in (T.FLOAT, T.DOUBLE):
            self.op("TopK", [x, self.ints(2)], outputs=2, axis=self.rng.choice(places), largest=self.rng.randint(0, 1))

    # --- products, windows, quantized ---

    def draw_matmul(self, x: Value) -> None:
        if len(x.dims) >= 2 and x.kind in (T.FLOAT, T.DOUBLE):
            perm = [*range(len(x.dims) - 2), len(x.dims) - 1, len(x.dims) - 2]
            if turned := self.op("Transpose", [x], perm=perm):
                self.op("MatMul", [x, turned[0]])

    def draw_linear(self, x: Value) -> None:
        if x.kind == T.FLOAT and x.dims and isinstance(x.dims[-1], int) and x.dims[-1] > 0:
            width = self.rng.choice([1, 4, 17])
            if len(x.dims) == 2 and self.rng.random() < 0.5:
                bias = self.rng.choice([[], [self.weights(width)], [self.weights(1)]])
                self.op("Gemm", [x, self.weights(width, x.dims[-1]), *bias], transB=1, alpha=0.5, beta=2.0)
            elif made := self.op("MatMul", [x, self.weights(x.dims[-1], width)]):
                self.op("Add", [made[0], self.weights(width)])

    def draw_einsum(self, x: Value) -> None:
        if x.kind == T.FLOAT and len(x.dims) == 3:
            self.op(
                "Einsum",
                [x, self.like(x)],
                equation=self.rng.choice(["abc,abd->acd", "abc,adc->abd", "abc,abc->ac", "bij,bik->bjk"]),
            )

    def draw_conv(self, x: Value) -> None:
        if x.kind != T.FLOAT or len(x.dims) not in (3, 4) or not isinstance(x.dims[1], int) or x.dims[1] < 1:
            return
        spatial, c = len(x.dims) - 2, x.dims[1]
        k = self.rng.choice([1, 2, 3])
        common: dict[str, Any] = {"kernel_shape": [k] * spatial, "strides": [self.rng.choice([1, 2])] * spatial}
        if self.rng.random() < 0.3:
            common["auto_pad"] = self.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        else:
            common["pads"] = [self.rng.choice([0, 1]) for _ in range(2 * spatial)] if k > 1 else [0] * 2 * spatial
        kind = self.rng.choice(["Conv", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"])
        if kind == "Conv":
            groups = self.rng.choice([1, c])
            out = self.rng.choice([c, 2 * c, 16 // c * c or c])
            dilations = {"dilations": [self.rng.choice([1, 1, 2])] * spatial} if "auto_pad" not in common else {}
            self.op("Conv", [x, self.weights(out, c // groups, *[k] * spatial), *self.rng.choice([[], [self.weights(out)]])],
                    group=groups, **common, **dilations)  # fmt: skip
        elif kind == "ConvTranspose":
            self.op("ConvTranspose", [x, self.weights(c, 2, *[k] * spatial)], **common)
        elif kind == "AveragePool":
            self.op(kind, [x], count_include_pad=self.rng.randint(0, 1), ceil_mode=self.rng.randint(0, 1), **common)
        else:
            self.op(kind, [x], **common, **({"ceil_mode": self.rng.randint(0, 1)} if kind == "MaxPool" else {}))

    def draw_pool(self, x: Value) -> None:
        if x.kind == T.FLOAT and len(x.dims) >= 3:
            self.op(self.rng.choice(["GlobalAveragePool", "GlobalMaxPool"]), [x])

    def draw_resize(self, x: Value) -> None:
        if x.kind == T.FLOAT and len(x.dims) == 4:
            scales = self.tensor(np.array([1, 1, *self.rng.choice([(2, 2), (1.5, 2), (0.5, 1)])], np.float32))
            mode = self.rng.choice(["nearest", "linear", "cubic"])
            how = self.rng.choice(["half_pixel", "asymmetric", "align_corners"])
            self.op("Resize", [x, "", scales], mode=mode, coordinate_transformation_mode=how)

    def draw_quantize(self, x: Value) -> None:
        if x.kind != T.FLOAT:
            return
        zero = self.rng.choice([np.uint8(128), np.int8(0)])
        scale = self.tensor(np.float32(self.rng.choice([0.05, 0.013])))
        if self.rng.random() < 0.6:
            if made := self.op("QuantizeLinear", [x, scale, self.tensor(zero)]):
                self.op("DequantizeLinear", [made[0], scale, self.tensor(zero)])
        elif made := self.op("DynamicQuantizeLinear", [x], outputs=3):
            q, s, z = made
            if q.dims and isinstance(q.dims[-1], int) and len(q.dims) >= 2 and q.dims[-1] > 0:
                weights = self.tensor(self.numbers.integers(-127, 128, (q.dims[-1], 5)).astype(np.int8))
                if product := self.op("MatMulInteger", [q, weights, z]):
                    wide = self.op("Cast", [product[0]], to=T.FLOAT)
                    self.op("Mul", [wide[0], s])
            else:
                self.op("DequantizeLinear", [q, s, z])

    def draw_recurrent(self, x: Value) -> None:
        if (
            x.kind == T.FLOAT
            and len(x.dims) == 3
            and isinstance(x.dims[2], int)
            and x.dims[2] > 0
            and self.rng.random() < 0.5
        ):
            kind, gates = self.rng.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
            way = self.rng.choice(["forward", "reverse", "bidirectional"])
            d, size = (2 if way == "bidirectional" else 1), 4
            weights = [self.weights(d, gates * size, x.dims[2]), self.weights(d, gates * size, size)]
            bias = self.rng.choice([[], [self.weights(d, 2 * gates * size)]])
            more = {"linear_before_reset": self.rng.randint(0, 1)} if kind == "GRU" else {}
            self.op(
                kind, [x, *weights, *bias], outputs=self.rng.choice([1, 2]), hidden_size=size, direction=way, **more
            )

    # --- control flow, functions ---

    def draw_if(self, x: Value) -> None:
        """Branches that read a value from outside; the condition is constant or computed."""
        condition: Value | str = self.tensor(np.array(self.rng.random() < 0.5))
        if x.kind not in (T.FLOAT, T.DOUBLE):
            return
        if x.dims and self.rng.random() < 0.6:
            small = self.op("ReduceMean", [x], keepdims=0)
            found = self.op("Greater", [small[0], self.tensor(0, x.kind)]) if small else []
            condition = found[0] if found else condition
        name = f"v{self.count}"
        graphs = {}
        for kind, branch in (("Relu", "then_branch"), ("Neg", "else_branch")):
            out = h.make_tensor_value_info(f"{name}_{branch}", x.kind, x.dims)
            inner = [
                h.make_node(kind, [x.name], [f"{name}_{kind}"]),
                h.make_node("Add", [f"{name}_{kind}", x.name], [out.name]),
            ]
            graphs[branch] = h.make_graph(inner, branch, [], [out])
        if found := self.op("If", [condition], **graphs):
            self.values[-1] = dataclasses.replace(found[0], dims=x.dims)

    def draw_loop(self, x: Value) -> None:
        """A state that a captured value is added to, and each turn's result; so many turns, or until a condition."""
        if x.kind != T.FLOAT:
            return
        other = self.like(x)
        trips: Value | str = self.tensor(np.int64(self.rng.choice([0, 1, 3])))
        if x.dims and self.rng.random() < 0.3 and (shape := self.op("Shape", [x])):
            size = self.op("Gather", [shape[0], self.tensor(np.int64(-1))])
            trips = size[0] if size else trips
        base, info = f"v{self.count}", h.make_tensor_value_info
        go = [h.make_node("Identity", [f"{base}_c"], [f"{base}_go"])]
        if self.rng.random() < 0.4:
            go = [h.make_node("Less", [f"{base}_i", self.tensor(np.int64(1))], [f"{base}_go"])]
        body = h.make_graph(
            [
                h.make_node(self.rng.choice(["Tanh", "Neg", "Sigmoid"]), [f"{base}_in"], [f"{base}_t"]),
                h.make_node("Add", [f"{base}_t", other.name], [f"{base}_next"]),
                *go,
                h.make_node("Identity", [f"{base}_next"], [f"{base}_each"]),
            ],
            "body",
            [info(f"{base}_i", T.INT64, []), info(f"{base}_c", T.BOOL, []), info(f"{base}_in", x.kind, x.dims)],
            [
                info(f"{base}_go", T.BOOL, []),
                info(f"{base}_next", x.kind, x.dims),
                info(f"{base}_each", x.kind, x.dims),
            ],
        )
        each = dataclasses.replace(x, dims=(None, *x.dims))
        self.op("Loop", [trips, self.tensor(np.array(True)), x], outputs=2, like=[x, each], body=body)

    def draw_scan(self, x: Value) -> None:
        """A running sum of rows, forwards or backwards, scaled by a captured value."""
        if x.kind != T.FLOAT or len(x.dims) < 2:
            return
        row, info = x.dims[1:], h.make_tensor_value_info
        first = self.op("Gather", [x, self.tensor(np.int64(0))], axis=0)
        if not first:
            return
        base, factor = f"v{self.count}", self.tensor(np.float32(self.rng.choice([0.5, -1.0])))
        body = h.make_graph(
            [
                h.make_node("Add", [f"{base}_s", f"{base}_x"], [f"{base}_next"]),
                h.make_node("Mul", [f"{base}_next", factor], [f"{base}_m"]),
                h.make_node("Sigmoid", [f"{base}_m"], [f"{base}_y"]),
            ],
            "body",
            [info(f"{base}_s", x.kind, row), info(f"{base}_x", x.kind, row)],
            [info(f"{base}_next", x.kind, row), info(f"{base}_y", x.kind, row)],
        )
        ways = {"scan_input_directions": [self.rng.randint(0, 1)], "scan_output_directions": [self.rng.randint(0, 1)]}
        self.op("Scan", [first[0], x], outputs=2, like=[first[0], x], body=body, num_scan_inputs=1, **ways)

    def draw_function(self, x: Value) -> None:
        if x.kind not in (T.FLOAT, T.DOUBLE):
            return
        if len(self.functions) < 2:
            inner = [
                h.make_node(self.rng.choice(["Sigmoid", "Tanh", "Relu"]), ["a"], ["s"]),
                h.make_node("Mul", ["s", "b"], ["y"]),
            ]
            opsets = [h.make_opsetid("", self.opset)]
            self.functions.append(
                h.make_function("local", f"Gate{len(self.functions)}", ["a", "b"], ["y"], inner, opsets)
            )
        self.op(self.rng.choice(self.functions).name, [x, self.like(x)])


def _context(opset: int) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 9, {"": opset}
    return context


def _value(info: onnx.ValueInfoProto) -> Value | None:
    """None if its type or its rank is not known."""
    tensor = info.type.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return None
    return Value(info.name, tensor.elem_type, tuple(_dim(d) for d in tensor.shape.dim))


def _dim(dim: Any) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.dim_param in ("n", "m") else None  # an invented name would bind two values
