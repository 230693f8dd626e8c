"""Start an AutoencoderKL as a linear one: latents = the mean colours of 8x8 blocks, decoded picture = those blocks.

From diffusers' random start a small VAE spends most of a CPU budget on finding out how to pass a colour through its group
norms. Here every residual branch starts at zero, every resampling as a plain mean or copy, so that training begins with
a blurred but right picture and learns only the details. The two facts used:

1. silu(x) - silu(-x) = x, so a colour kept as a pair (+x, -x) passes a SiLU unchanged.
2. A group norm divides by the deviation of its group; constant channels of +-4 in the group keep that deviation almost
   constant, and the norm almost linear.

Channels 0..2 hold +rgb, 3..5 hold -rgb, 6 and 7 the constants; all others start random and small.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL
from diffusers.models.resnet import ResnetBlock2D
from torch import nn

PAIRS, CONSTANT, SMALL = 6, 4.0, 0.3


def copy_channels(conv: nn.Conv2d, taps: torch.Tensor) -> None:
    """Every output channel that has an input channel of its number copies it through `taps`; the rest mix at random."""
    weight = conv.weight.data
    shared = min(weight.shape[0], weight.shape[1])
    weight[:shared] = 0
    for channel in range(shared):
        weight[channel, channel] = taps
    weight[shared:] *= SMALL
    conv.bias.data.zero_()


def carry_in(conv: nn.Conv2d) -> None:
    """3 or 4 input channels -> pairs and constants."""
    middle = conv.kernel_size[0] // 2
    conv.weight.data *= SMALL
    conv.weight.data[: PAIRS + 2] = 0
    for channel in range(3):
        conv.weight.data[channel, channel, middle, middle] = 1
        conv.weight.data[channel + 3, channel, middle, middle] = -1
    conv.bias.data.zero_()
    conv.bias.data[6], conv.bias.data[7] = CONSTANT, -CONSTANT


def carry_out(conv: nn.Conv2d, deviation: float) -> None:
    """silu(+x) - silu(-x), times the deviation that the norm before it divided by."""
    middle = conv.kernel_size[0] // 2
    conv.weight.data[:3] = 0
    for channel in range(3):
        conv.weight.data[channel, channel, middle, middle] = deviation
        conv.weight.data[channel, channel + 3, middle, middle] = -deviation
    conv.bias.data.zero_()


def start_linear(vae: AutoencoderKL) -> None:
    one = torch.zeros(3, 3)
    one[1, 1] = 1
    mean = torch.zeros(3, 3)
    mean[:2, :2] = (
        0.25  # diffusers pads a stride-2 convolution at the right and the bottom: taps 0 and 1 are its 2x2 block
    )
    for module in vae.modules():
        if isinstance(module, ResnetBlock2D):
            module.conv2.weight.data.zero_()
            module.conv2.bias.data.zero_()
            if module.conv_shortcut is not None:
                copy_channels(module.conv_shortcut, torch.ones(1, 1))
    for block in vae.encoder.down_blocks:
        for sampler in block.downsamplers or ():
            copy_channels(sampler.conv, mean)
    for block in vae.decoder.up_blocks:
        for sampler in block.upsamplers or ():
            copy_channels(sampler.conv, one)
    carry_in(vae.encoder.conv_in)
    carry_in(vae.decoder.conv_in)
    carry_out(vae.encoder.conv_out, 0.8)
    carry_out(vae.decoder.conv_out, 2.07)  # sqrt((6 * 0.4 + 2 * 16) / 8)
    vae.encoder.conv_out.weight.data[3] *= SMALL
    vae.encoder.conv_out.weight.data[4:] = 0
    vae.encoder.conv_out.bias.data[4:] = -5  # log variance of the latents
    for conv in (vae.quant_conv, vae.post_quant_conv):
        copy_channels(conv, torch.ones(1, 1))
