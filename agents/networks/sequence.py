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
        self.place = nn.Parameter(0.02 * torch.randn(longest, width))
        block = (width, heads, 4 * width, 0.0, "gelu", 1e-5, True, True)  # with normalisation and the batch first
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(*block) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(longest), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        tokens, mask = tokens + self.place[:length], self.mask[:length, :length]
        for block in self.blocks:
            tokens = block(tokens, mask, is_causal=True)
        return self.norm(tokens)
