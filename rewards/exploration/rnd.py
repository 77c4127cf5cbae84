"""Random network distillation: a bonus where a network cannot yet predict a random, fixed one.

A predictor is trained on visited states to imitate a random target network; where it fails, states were seldom visited.
Source: Burda, Edwards, Storkey, Klimov 2018, arXiv 1810.12894, sections 2.2 to 2.4.
Differences: those of `learned`; one hidden layer in the target and `depth` in the predictor; the stream ends with the
episode unless `episodic=false` asks for the paper's value that crosses resets.
On `scale`: the paper's `return` never drowns the task, and fades as the bonus does. `ema` keeps a vanishing bonus
alive: it reaches distant states sooner, and needs a weight that ends, as in `linear:1:0:200000`.
Fails when: observations contain noise that no network can predict; or the environment is so small that the predictor
learns everything before the agent has found the task.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import mse_loss

from envs.transitions import Transitions
from envs.types import Obs
from lodestar.settings import setting
from rewards.base import RewardConfig
from rewards.exploration.compiled.tape import Tape, Units
from rewards.exploration.learned import Columns, Learned, LearnedConfig, Losses


@dataclass
class RNDConfig(LearnedConfig):
    """Settings of RND; the paper's value in brackets where it differs."""

    learning_rate: float = 1e-4
    features: int = setting(64, "outputs of both networks, D [512]")
    hidden: int = setting(64, "width of the hidden layers [512]")
    update_proportion: float = setting(1.0, "share of a minibatch learnt from [1 with 32 environments, 0.25 with 128]")
    epochs: int = setting(1, "passes over the transitions of one update [4]")
    depth: int = setting(2, "hidden layers of the predictor; the target has one", ">= 1", tune=(1, 3))


class RND(Learned):
    """r(s') = mean over D of (predictor(x) - target(x))**2, x = clip((s' - mean) / std, -5, 5)."""

    Config: ClassVar[type[RewardConfig]] = RNDConfig

    def build(self) -> None:
        super().build()
        config = self.config
        self.target = self.net(config.hidden, config.features).requires_grad_(False)
        # The predictor is deeper than the target, so that it can imitate it where it has learnt enough.
        hidden_layers = [config.hidden] * config.depth
        self.predictor = self.net(*hidden_layers, config.features)
        self.train_on(self.predictor)

    def columns(self, batch: Transitions) -> Columns:
        return self.pair(batch.next_obs)

    def pair(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Observations (N, ...) -> whitened rows (N, size) and what the target makes of them (N, D)."""
        x = self.inputs(obs)
        return x, self.in_pieces(self.target, x)

    def loss(self, *columns: Tensor) -> Losses:
        x, target = columns
        return {"loss": mse_loss(self.predictor(x), target)}

    def tape(self, tape: Tape, x: Units, target: Units) -> None:
        prediction = tape.net(self.predictor.dense, x)
        tape.squares("loss", prediction, target, 1 / target.n)

    def error(self, x: Tensor, target: Tensor) -> Tensor:
        """Whitened rows (N, size) and targets (N, D) -> mean squared error over the features (N,)."""
        return (self.predictor(x) - target).square().mean(dim=1)
