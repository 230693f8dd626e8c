"""The architectures, in the classes of transformers and diffusers, so that what serves them serves the big ones."""

from __future__ import annotations

from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPSegConfig,
    CLIPSegForImageSegmentation,
    CLIPTextConfig,
    CLIPTextModel,
    GPT2Config,
    GPT2LMHeadModel,
)

from training.world import SIDE

TOKENS = 32  # length of a caption for the text encoders, padded
PATCH = 8


def vae() -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(16, 32, 64, 128),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,  # few groups: many would normalise the colour of a plain background away
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        mid_block_add_attention=False,
        sample_size=SIDE,
    )


def unet() -> UNet2DConditionModel:
    # Most of the work happens on 6x6 = 36 positions, where a parameter is 4 times cheaper than on 12x12.
    return UNet2DConditionModel(
        sample_size=SIDE // 8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(64, 128),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=128,
        attention_head_dim=4,  # number of heads, in spite of its name
        norm_num_groups=8,
        # What the whole caption says also reaches every block directly, beside the time, and not by attention alone.
        addition_embed_type="text",
        addition_embed_type_num_heads=4,
        resnet_time_scale_shift="scale_shift",
    )


def text_settings(vocabulary: int) -> dict:
    return {
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "intermediate_size": 512,
        "projection_dim": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": TOKENS,
        "bos_token_id": vocabulary - 2,
        "eos_token_id": vocabulary - 1,
        "pad_token_id": vocabulary - 1,
    }


def vision_settings() -> dict:
    return {
        "hidden_size": 128,
        "intermediate_size": 384,
        "projection_dim": 128,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": PATCH,
    }


def text_encoder(vocabulary: int) -> CLIPTextModel:
    return CLIPTextModel(CLIPTextConfig(**text_settings(vocabulary)))


def clip(vocabulary: int) -> CLIPModel:
    return CLIPModel(
        CLIPConfig(text_config=text_settings(vocabulary), vision_config=vision_settings(), projection_dim=128)
    )


def clipseg(vocabulary: int) -> CLIPSegForImageSegmentation:
    config = CLIPSegConfig(
        text_config=text_settings(vocabulary),
        vision_config=vision_settings(),
        projection_dim=128,
        extract_layers=[1, 3, 4],
        reduce_dim=64,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=192,
        conditional_layer=0,
        use_complex_transposed_convolution=True,
    )
    model = CLIPSegForImageSegmentation(config)
    # transformers leaves the decoder's own layers with weights of deviation 1 (it expects a checkpoint): logits of +-500.
    for part in (
        model.decoder.film_mul,
        model.decoder.film_add,
        model.decoder.reduces,
        model.decoder.transposed_convolution,
    ):
        for layer in part.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    return model


def writer(vocabulary: int) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=64,
            n_embd=128,
            n_layer=4,
            n_head=4,
            bos_token_id=vocabulary - 1,
            eos_token_id=vocabulary - 1,
            pad_token_id=vocabulary - 1,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )
