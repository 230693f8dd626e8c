"""`opsmith.load`: an ONNX Runtime session on any variant, with its compiled library registered."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

from opsmith import model_checks, store
from opsmith import settings as config
from opsmith.errors import OpsmithError
from opsmith.later import Later

if TYPE_CHECKING:
    import onnx_ir as ir
else:
    ir = Later("onnx_ir")  # as in store.py: most sessions do without it


def load(
    model: store.ModelLike,
    *,
    threads: int | None = None,
    options: ort.SessionOptions | None = None,
    config: Mapping[str, str] | None = None,
    optimize: bool = True,
    profile_prefix: str | None = None,
    edit: Callable[[onnx.ModelProto], None] | None = None,
    provider: Path | None = None,
    lean: bool = False,
) -> ort.InferenceSession:
    """Load a variant folder, a .onnx file or a model in memory.

    The libraries of a compiled variant are found through its opsmith.json and registered first; a library
    built for CPU features that this machine lacks is refused with a clear error instead of a crash.
    EDIT may change the graph on its way in (not its weights, which may be external), say to return more values.
    PROVIDER is the library of Opsmith's execution provider (see opsmith.provider), if the model is to run through it.
    LEAN: no memory patterns. With them the second run takes one block for all values, and keeps what the first one took.
    """
    settings = options or ort.SessionOptions()
    if settings.log_severity_level == _DEFAULT_SEVERITY:
        settings.log_severity_level = 4  # errors come as exceptions; ORT would print each of them once more
    if threads is not None:
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
    if not optimize:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if lean:
        settings.enable_mem_pattern = False
    if profile_prefix is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = profile_prefix
    for key, value in (config or {}).items():
        settings.add_session_config_entry(key, value)
    if provider is not None:
        choose_provider(settings, provider)
    if not isinstance(model, (str, os.PathLike, store.Variant)):
        # ONNX Runtime maps the weights, so the file may go once the session stands.
        with tempfile.TemporaryDirectory(prefix="opsmith-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "model.onnx"
            store.save_model(store.open_model(model), path)
            return _load_file(path, settings, edit)
    return _load_file(store.find_model(model), settings, edit)


def _load_file(
    path: Path, settings: ort.SessionOptions, edit: Callable[[onnx.ModelProto], None] | None
) -> ort.InferenceSession:
    model_checks.check_external_data(path)
    model_checks.check_values(path)
    for library in store.libraries(path):
        settings.register_custom_ops_library(str(library.absolute()))  # a bare name would be looked for elsewhere
    source: str | bytes = str(path)
    if edit is not None:
        proto = store.read_proto(path)
        edit(proto)
        source = proto.SerializeToString()
        settings.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    try:
        if settings.has_providers():
            return ort.InferenceSession(source, settings)
        return ort.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # ORT raises its own family of exceptions for everything it dislikes
        raise OpsmithError(f"ONNX Runtime cannot load {path}: {one_line(error)}") from error


@contextlib.contextmanager
def forced_cpu(name: str | None) -> Iterator[None]:
    """Sessions that are made meanwhile run the code for this CPU, of those that a library has; None: what it takes by itself."""
    if name is None:
        yield
        return
    before = os.environ.get(store.FORCED_CPU)
    os.environ[store.FORCED_CPU] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[store.FORCED_CPU]
        else:
            os.environ[store.FORCED_CPU] = before


PROVIDER = "OpsmithExecutionProvider"


def register_provider(library: Path) -> list[ort.OrtEpDevice]:
    """Register Opsmith's execution provider, once per process; its devices."""
    devices = [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER]
    if not devices:
        try:
            ort.register_execution_provider_library("opsmith", str(library.absolute()))
        except Exception as error:
            raise OpsmithError(f"ONNX Runtime cannot load the execution provider: {one_line(error)}") from error
        devices = [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER]
    return devices


def choose_provider(options: ort.SessionOptions, library: Path, target: str | None = None) -> None:
    """Run sessions with these OPTIONS through the provider."""
    wishes = {"cache": str(config.cache_folder("regions"))} | ({"target": target} if target else {})
    options.add_provider_for_devices(register_provider(library)[:1], wishes)


_DEFAULT_SEVERITY = ort.SessionOptions().log_severity_level
# "[ONNXRuntimeError] : 1 : FAIL : ", "Status Message: ", "/path/file.cc:12 ", "onnxruntime::Class::Method(args) "
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Status Message: |Exception during initialization: "
    r"|\S+\.(?:cc|h):\d+ (?=\S)|(?:\w+ )?onnxruntime::[\w:<>~, ]+\([^)]*\)(?: const)? ?"
)


def one_line(error: BaseException) -> str:
    """What ONNX Runtime says, without the places in its sources."""
    return _NOISE.sub("", " ".join(str(error).split())).strip()[:600]


# Element types that ONNX Runtime computes with but does not hand over as numpy arrays, by ONNX's names for them.
_NOT_IN_NUMPY = {
    f"tensor({name.lower()})": name
    for name in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
}


def run(
    session: ort.InferenceSession,
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
    *,
    seconds: float | None = None,
) -> list[Any]:
    """Run all outputs, or those named; ORT's errors come back as one line. After SECONDS the run is ended, an error too."""
    feeds = dict(inputs)
    kinds = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
    with _ended_after(seconds) as options:
        try:
            if not _NOT_IN_NUMPY.keys() & set(kinds.values()):
                return list(session.run(outputs, feeds, options))
            values = {name: _to_ort(array, kinds.get(name, "")) for name, array in feeds.items()}
            names = list(outputs or [value.name for value in session.get_outputs()])
            return [_from_ort(v, kinds[n]) for n, v in zip(names, session.run_with_ort_values(names, values, options))]
        except Exception as error:
            if options is not None and options.terminate:
                raise OpsmithError(f"the model ran for more than {seconds:g} s") from error
            raise OpsmithError(f"ONNX Runtime failed to run the model: {one_line(error)}") from error


def detached(output: Any) -> Any:
    """A copy of what a run gave. The array itself lies in the session's memory, all of which lives as long as it does."""
    return output.copy() if isinstance(output, np.ndarray) else output


@contextlib.contextmanager
def _ended_after(seconds: float | None) -> Iterator[ort.RunOptions | None]:
    """Options of a run that ONNX Runtime gives up, before its next node, once the time is over."""
    if seconds is None:
        yield None
        return
    options = ort.RunOptions()
    timer = threading.Timer(seconds, lambda: setattr(options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()


def _to_ort(array: Any, kind: str) -> ort.OrtValue:
    if kind not in _NOT_IN_NUMPY:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    dtype = ir.DataType[_NOT_IN_NUMPY[kind]]
    bits = np.ascontiguousarray(array, dtype=dtype.numpy()).view(f"u{dtype.bitwidth // 8}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(dtype))


def _from_ort(value: ort.OrtValue, kind: str) -> Any:
    if kind not in _NOT_IN_NUMPY:
        return value.numpy()
    dtype = ir.DataType[_NOT_IN_NUMPY[kind]].numpy()
    shape = tuple(value.shape())
    size = int(np.prod(shape)) * dtype.itemsize
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(raw, dtype).reshape(shape)


def size_on_disk(model: str | os.PathLike[str]) -> int:
    """Bytes of the .onnx file, its external data and its libraries together."""
    path = store.find_model(model)
    files: set[Path] = {path, *model_checks.external_files(path)}
    with contextlib.suppress(OpsmithError):  # a library for another machine still has a size, a missing one has none
        files.update(store.libraries(path))
    return sum(f.stat().st_size for f in files if f.exists())
