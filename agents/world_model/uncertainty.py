"""How little the latent model knows of a step: heads that all predict the next latent, and how far they are apart.

Sought when acting, it finds what the model has not learned; avoided when imagining, it keeps the policy from what the
model only makes up.

    u(s, a) = deviation over members k of f_k(s, a), mean over the entries of z; f_k -> z', without gradients to s
    acting     the first of `plan_candidates` actions of the policy by sum_{t<H} w_t (r_t / S + alpha_real u_t)
    imagining  r_t - alpha_imagined S u_t                                 S: root of the mean square of imagined rewards

Sources: Wang et al. 2023 (COPlanner), "Plan to Roll Out Conservatively but to Explore Optimistically for Model-Based
RL", arXiv 2310.07220, its visual half; Sekar et al. 2020 (Plan2Explore), arXiv 2005.05960, for the heads.
Differences: imagined rewards are penalised at every step, where COPlanner plans each imagined action; rewards are
divided by S, as in `agents.dyna`; members differ in their first weights alone.
Fails when: random outcomes are many, since few samples of them leave the members apart.
"""

import torch
from torch import Tensor, nn

from agents.networks.stacked import Stacked
from agents.world_model.config import WorldModelConfig

# What the rewards of a new minibatch count in the running mean square.
SQUARE_RATE = 0.01


class Uncertainty(nn.Module):
    """The heads f_k of features (F) and actions (A), and the size S of imagined rewards."""

    square: Tensor

    def __init__(self, features: int, action_size: int, latent: int, config: WorldModelConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        inputs = features + action_size
        hidden = [config.hidden]
        self.heads = Stacked(config.members, inputs, hidden, latent, activation="silu", seed=seed)
        self.register_buffer("square", torch.zeros(()))

    def predict(self, features: Tensor, action: Tensor) -> Tensor:
        """The next latent by every member: (..., F), (..., A) -> (K, ..., Z)."""
        both = torch.cat([features, action], -1)
        rows = both.flatten(0, -2)
        predicted = self.heads(rows)
        return predicted.unflatten(1, both.shape[:-1])

    def loss(self, features: Tensor, action: Tensor, latent: Tensor) -> Tensor:
        """Squared error of the latents (..., Z) that followed, summed over members and entries: (...,)."""
        predicted = self.predict(features.detach(), action)
        error = predicted - latent.detach()
        return error.square().sum((0, -1))

    @torch.no_grad()
    def disagreement(self, features: Tensor, action: Tensor) -> Tensor:
        """u: (..., F), (..., A) -> (...,)."""
        predicted = self.predict(features, action)
        deviation = predicted.std(0, correction=0)
        return deviation.mean(-1)

    @torch.no_grad()
    def penalize(self, reward: Tensor, features: Tensor, action: Tensor) -> Tensor:
        """Imagined rewards (...,) without what the model is unsure of; S follows them."""
        square = reward.square().mean()
        rate = torch.where(self.square > 0, SQUARE_RATE, 1.0)
        self.square.lerp_(square, rate)
        uncertainty = self.disagreement(features, action)
        weight = self.config.alpha_imagined * self.square.sqrt()
        return reward - weight * uncertainty

    @torch.no_grad()
    def optimistic_rewards(self, reward: Tensor, features: Tensor, action: Tensor) -> Tensor:
        """Rewards (...,) in units of S, 0 before there is one, and what the model could learn."""
        scale = self.square.sqrt().clamp(min=1e-6)
        known = (self.square > 0).to(reward.dtype)
        uncertainty = self.disagreement(features, action)
        expected = known * reward / scale
        sought = self.config.alpha_real * uncertainty
        return expected + sought
