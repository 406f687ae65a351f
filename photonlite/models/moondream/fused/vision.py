"""The image encoder: the computation of :class:`VisionEncoder` on fused kernels; see `models.fused_vision`."""

from torch import Tensor

from photonlite.kernels.vision import join_views, patch_rows
from photonlite.models.fused_vision import BlockLayers, EncoderLayers, FusedTransformer
from photonlite.models.moondream.vision import EncoderBlock, VisionEncoder, normalize_pixels

AVERAGE_CROPS = 8  # of an image


class FusedEncoder:
    """A `VisionEncoder` on fused kernels; for the arguments see `models.fused_vision.FusedTransformer`."""

    def __init__(self, encoder: VisionEncoder, *, fp8: bool = False, head_size: int | None = None) -> None:
        self._config, mlp = encoder.config, encoder.proj_mlp
        self._transformer = FusedTransformer(layers_of(encoder), normalize_pixels, fp8=fp8, head_size=head_size)
        linear = self._transformer.linear
        self._proj_fc1 = linear(mlp.fc1.weight, mlp.fc1.bias)
        self._proj_fc2 = linear(mlp.fc2.weight, mlp.fc2.bias)

    def encode(self, pixels: Tensor) -> Tensor:
        run = self._transformer
        return run(patch_rows(pixels, run.table, self._config.enc_patch_size, run.patch_width))

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        joined = join_views(features, tiling, self._config.grid, self._config.overlap_margin)
        return self._proj_fc2(self._proj_fc1.gelu(self._transformer.rows(joined)))


def layers_of(encoder: VisionEncoder) -> EncoderLayers:
    blocks = [_block(block) for block in encoder.blocks if isinstance(block, EncoderBlock)]
    heads = encoder.config.enc_n_heads
    return EncoderLayers(
        encoder.patch_emb, encoder.pos_emb.detach()[0], heads, blocks, encoder.post_ln, AVERAGE_CROPS
    )  # fmt: skip


def _block(block: EncoderBlock) -> BlockLayers:
    qkv = block.attn.qkv
    return BlockLayers(block.ln1, qkv.weight.detach(), qkv.bias.detach(), block.attn.proj, block.ln2, block.mlp)
