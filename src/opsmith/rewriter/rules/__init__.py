"""All rules, in the order in which they run. A rule is one file; to add one, add a file and name it here.

The order, and why:
  1. views           one Transpose instead of three nodes: attention reads K through it
  2. activations     small and independent; GEGLU, group norm + SiLU and the epilogues below need them whole
  3. norms           the plain ones first, then with what stands before (skip) or after them (SiLU)
  4. rotary          before attention only for readability: q and k become single nodes
  5. attention       takes the scales and repetitions that a later rule could otherwise tear apart
  6. weights         batch norm into Conv, parallel products into one; the epilogues then see the final products
  7. cache           independent of all others
  8. epilogues       last: they swallow whatever follows a product and would hide it from the rules above. Upsampling
                     precedes the plain convolution, whose input it is
  9. sinking         what remains between two views
 10. runtime ops     level 3: what the target's own kernels take over, from the finished functions
"""

from __future__ import annotations

from opsmith.rewriter.rule import Rule
from opsmith.rewriter.rules import (
    attention,
    batch_norm,
    conv,
    dequantized_gather,
    flat_linear,
    geglu,
    gelu,
    gelu_tanh,
    group_norm,
    group_norm_silu,
    hard_swish,
    integer_product,
    kv_append,
    layer_norm,
    layer_norm_affine,
    linear,
    ort_attention,
    ort_gelu,
    ort_skip_layer_norm,
    parallel_matmul,
    quick_gelu,
    reshape_sink,
    rms_norm,
    rotary,
    rotary_interleaved,
    rotary_parts,
    silu,
    skip_layer_norm,
    skip_rms_norm,
    transpose_sink,
    upsample_conv,
    view_chain,
)

ALL: tuple[Rule, ...] = (
    view_chain.view_chain,
    gelu.gelu,
    gelu_tanh.gelu_tanh,
    quick_gelu.quick_gelu,
    silu.silu,
    hard_swish.hard_swish,
    hard_swish.hard_sigmoid,
    geglu.geglu,
    layer_norm.layer_norm,
    layer_norm_affine.layer_norm_affine,
    rms_norm.rms_norm,
    group_norm.group_norm,
    skip_layer_norm.skip_layer_norm,
    skip_rms_norm.skip_rms_norm,
    group_norm_silu.group_norm_silu,
    rotary.rotary,
    rotary_interleaved.rotary_interleaved,
    rotary_parts.rotary_parts,
    attention.attention,
    batch_norm.batch_norm,
    parallel_matmul.parallel_matmul,
    kv_append.kv_append,
    upsample_conv.upsample_conv,
    flat_linear.flat_linear,
    linear.linear,
    conv.conv,
    transpose_sink.transpose_sink,
    reshape_sink.reshape_sink,
    ort_attention.ort_attention,
    ort_skip_layer_norm.ort_skip_layer_norm,
    ort_gelu.ort_gelu,
)

# For the compiler alone, which has integer kernels; before constants are folded, since folded weights are no integers any more.
QUANTIZED: tuple[Rule, ...] = (
    dequantized_gather.dequantized_gather,
    integer_product.integer_matmul,
    integer_product.integer_gemm,
    integer_product.integer_conv,
)
