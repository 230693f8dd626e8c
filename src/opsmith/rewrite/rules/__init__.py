"""All rules, in the order in which they run. A rule is one file; to add one, add a file and name it here.

The order, and why:
  1. activations     small and independent; group norm + SiLU and GEGLU below need them whole
  2. norms           before attention, so that its neighbours are single nodes
  3. attention       needs the K transpose in one node: `key_transpose` first
"""

from __future__ import annotations

from opsmith.rewrite.rule import Rule
from opsmith.rewrite.rules import (
    attention,
    geglu,
    gelu,
    gelu_tanh,
    group_norm,
    group_norm_silu,
    layer_norm,
    quick_gelu,
    rms_norm,
    silu,
    view_chain,
)

ALL: tuple[Rule, ...] = (
    view_chain.view_chain,
    gelu.gelu,
    gelu_tanh.gelu_tanh,
    quick_gelu.quick_gelu,
    silu.silu,
    geglu.geglu,
    layer_norm.layer_norm,
    rms_norm.rms_norm,
    group_norm.group_norm,
    group_norm_silu.group_norm_silu,
    attention.attention,
)
