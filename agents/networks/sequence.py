"""A causal transformer (Vaswani et al. 2017, arXiv 1706.03762): a token of a sequence is read with those before it.

As GPT-2's: a LayerNorm before each part, learned positions; without dropout. Shorter sequences of a batch stand at its
left: what is behind one is not seen from it.
"""

import torch
from torch import Tensor, nn


class Causal(nn.Module):
    """Tokens (B, T, width) -> (B, T, width), T at most `longest`; a ValueError if heads cannot share the width."""

    mask: Tensor

    def __init__(self, width: int, layers: int, heads: int, longest: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} cannot be shared by {heads} heads; give a multiple of {heads}")
        # A learned position for each place in a sequence.
        self.place = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            block = nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.blocks.append(block)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(longest), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        # A token reads no later ones: the mask is minus infinity above the diagonal.
        length = tokens.shape[1]
        mask = self.mask[:length, :length]
        tokens = tokens + self.place[:length]
        for block in self.blocks:
            tokens = block(tokens, mask, is_causal=True)
        return self.norm(tokens)
