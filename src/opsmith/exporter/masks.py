"""Which keys a query sees, written so that exporters can follow it at every size.

transformers builds its masks with functions of its own (masking_utils), in Python that asks for sizes. While a model is traced they are
replaced, wherever its code has imported them, by these:

    full      key <= query, and attention_mask[key]                       columns of the cache and the new tokens
    sliding   the same, and place(query) - place(key) < window            places in the text, which padding does not count
    both ways attention_mask[key]                                         encoders, and decoders that look at them

A query that sees nothing (padding) sees itself: softmax over nothing is NaN in one runtime and a mean in another.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_FULL, _SLIDING = "create_causal_mask", "create_sliding_window_causal_mask"
_BOTH_WAYS = "create_bidirectional_mask"


@contextlib.contextmanager
def traceable(model: Any, mask: torch.Tensor, new: int) -> Iterator[None]:
    """While MODEL runs on attention_mask MASK [B,P+S] with NEW tokens (S)."""
    modules = {sys.modules[type(part).__module__] for part in model.modules()}
    replaced: list[tuple[Any, str, Any]] = []
    for module in modules:
        for name in (_FULL, _SLIDING, _BOTH_WAYS):
            if theirs := getattr(module, name, None):
                replaced.append((module, name, theirs))
                ours = _both_ways if name == _BOTH_WAYS else _ours(name == _SLIDING, theirs, mask, new)
                setattr(module, name, ours)
    try:
        yield
    finally:
        for module, name, theirs in replaced:
            setattr(module, name, theirs)


def _ours(sliding: bool, theirs: Callable[..., Any], mask: torch.Tensor, new: int) -> Callable[..., Any]:
    def make(config: Any, *arguments: Any, **named: Any) -> Any:
        special = any(named.get(n) is not None for n in ("or_mask_function", "and_mask_function", "block_sequence_ids"))
        if special or not getattr(config, "is_causal", True):
            return theirs(config, *arguments, **named)
        seen = seen_keys(mask, new, config.sliding_window if sliding else None)
        return seen if config._attn_implementation == "sdpa" else _added(seen)

    return make


def _both_ways(config: Any, inputs_embeds: Any, attention_mask: torch.Tensor | None, **_: Any) -> Any:
    if attention_mask is None or attention_mask.dim() != 2:
        return attention_mask
    seen = attention_mask.bool()[:, None, None, :]  # [B,1,1,T]
    return seen if config._attn_implementation == "sdpa" else _added(seen)


def seen_keys(mask: torch.Tensor, new: int, window: int | None = None) -> torch.Tensor:
    """[B,1,S,P+S], true where a key is seen."""
    import torch

    total = mask.shape[1]
    key = torch.arange(total)  # [T]
    query = (torch.arange(new) + (total - new)).unsqueeze(1)  # [S,1]
    seen = (key <= query) & mask.bool()[:, None, :]  # [B,S,T]
    if window is not None:
        places = mask.cumsum(1)  # [B,T]; behind the last visible column it stays
        seen = seen & (places[:, None, :] > places[:, total - new :, None] - window)
    nothing = seen.to(torch.int64).amax(-1, keepdim=True) == 0
    return (seen | (nothing & (key == query))).unsqueeze(1)


def _added(seen: torch.Tensor) -> torch.Tensor:
    """As it is added to scores."""
    import torch

    return torch.where(seen, 0.0, -torch.inf)
