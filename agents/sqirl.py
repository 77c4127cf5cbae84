"""SQIRL: explore at random from ever later steps, and act greedily on what that taught; no bonus, no target network.

At stage i whole episodes are played: greedily before step i, uniformly at random from there on. The returns of the
random part give Q of random play; k - 1 backups make it look k steps ahead; step i acts greedily on it for good.

Source: Laidlaw et al. 2024, arXiv 2312.08369, algorithm 1 (shallow Q-iteration via reinforcement learning); k = 1 in a
deterministic world is GORP (2023, 2304.09853), which `agents.effective_horizon` plays by planning. Differences: the
step within the episode is an input of Q, as log(1 + step), because a return to go depends on what is left; a network
per depth, trained in turn on standardised targets, from the weights of the last; after the last step of the longest
episode it begins again, with twice the episodes (tuned in the source).
Fails when: random play from the right state does not find the reward; actions are continuous; observations are images.
"""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agents.base import BaseAgent, EpisodicAgent, OnStep, Steps
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.stacked import Stacked
from envs.transitions import Transitions
from envs.types import Obs
from lodestar.numerics.descent import Flat, draw_order
from lodestar.settings import Settings, setting


@dataclass
class SQIRLConfig(Settings):
    """Settings of `SQIRL`; the source's value in brackets where it differs."""

    prefix = "agent."
    k: int = setting(1, "how far it looks ahead; the source tries 1 to 3", "[1, 5]", tune=(1, 3))
    episodes: int = setting(
        16, "played at each stage of the first pass, m; at least n_envs", "[1, 1000000]", tune=(4, 64, "log")
    )
    learning_rate: float = setting(1e-3, "of Adam [1e-4]", "(0, 1]", tune=(1e-4, 1e-2, "log"))
    gamma: float = setting(1.0, "discount; 1 is the sum of what is left [1, MiniGrid .99]", "(0, 1]")
    batch_size: int = setting(128, "rows a gradient step", ">= 1")
    epochs: int = setting(10, "passes over a stage's rows, for each depth", ">= 1")
    net_arch: list[int] = setting([64, 64], "units of the hidden layers", ">= 1")
    max_steps: int = setting(0, "steps that are planned for; 0: as many as the longest episode has", low=0, high=10**6)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_if(not self.net_arch, "agent.net_arch=[] is no network; give one width or more")


class Stages(nn.Module):
    """The greedy policies of all steps so far, as one table: weights of a network for every step."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: Stacked, inputs: int) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))
        for number, weight in enumerate(net.weights()):
            no_rows = weight.new_zeros((0, *weight.shape[1:]))
            self.register_buffer(f"layer{number}", no_rows)

    @property
    def tables(self) -> list[Tensor]:
        n_layers = len(self.net.weights())
        return [getattr(self, f"layer{number}") for number in range(n_layers)]

    @property
    def ready(self) -> int:
        """How many steps have a policy."""
        return len(self.tables[0])

    def set_weights(self, step: int, weights: list[Tensor]) -> None:
        for number, (table, weight) in enumerate(zip(self.tables, weights)):
            # A later pass replaces the policy of a step that has one already.
            if step < len(table):
                table[step] = weight[0]
            else:
                setattr(self, f"layer{number}", torch.cat([table, weight.detach()]))

    def inputs(self, vector: Tensor, step: Tensor) -> Tensor:
        """(B, D) and (B,) -> what a network reads, whitened."""
        inputs = join_time(vector, step)
        return (inputs - self.mean) / self.std

    def greedy(self, x: Tensor, step: Tensor) -> Tensor:
        """Actions (B,) at steps (B,); after the last known step, its policy's."""
        known_step = step.clamp(max=self.ready - 1)
        weights = [table[known_step] for table in self.tables]
        q = self.net(x[:, None], weights)[:, 0]
        return q.argmax(-1)

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        # The tables grow with the steps, and torch refuses a buffer of another shape.
        for number, table in enumerate(self.tables):
            name = f"layer{number}"
            setattr(self, name, table.new_zeros(tuple(state[name].shape)))
        return super().load_state_dict(state, strict, assign)


class SQIRL(EpisodicAgent):
    """Shallow Q-iteration, for discrete actions and observations of numbers; a ValueError refuses others."""

    Config = SQIRLConfig
    saved = BaseAgent.saved | {
        "modules.nets": "nets",
        "optimizers": "flats",
        "where.stage": "stage",
        "where.passes": "passes",
        "where.longest": "longest",
        "where.seed": "steps.seed",
        "steps": "steps",
        "draw": "draw",
    }
    in_file = BaseAgent.in_file | {"stage": "stage", "passes": "passes", "longest": "longest"}
    lasting = {
        **BaseAgent.lasting,
        **in_file,
        "modules.nets": "nets",
        "optimizers": "flats",
        "draw": "draw",
    }
    config: SQIRLConfig

    def _set_up(self) -> None:
        config = self.config
        seed = self.seed
        n_envs = self.envs.num_envs
        self.encoding = SpaceEncoding(self.observation_space, self.action_space)
        if config.episodes < n_envs:
            raise ValueError(f"agent.episodes={config.episodes} is less than n_envs={n_envs}; give that or more")
        # The observation, and the step within the episode.
        inputs = self.encoding.obs_size + 1
        sizes = (1, inputs, config.net_arch, self.encoding.action_size)
        nets = [Stacked(*sizes, seed=seed + depth) for depth in range(config.k)]
        self.nets = nn.ModuleList(nets).to(self.device)
        self.flats = [Flat.of_parameters(list(net.parameters())) for net in self.nets]
        stages = Stages(Stacked(*sizes, seed=seed), inputs)
        self.policy = stages.to(self.device)
        self.steps = Steps(self.envs, seed, self.scorer)
        self.episodes = self.steps.episodes
        self.rng = np.random.default_rng([seed, 3])
        self.draw = torch.Generator(self.device).manual_seed(seed)
        self.stage = 0
        self.passes = 0
        self.longest = 0

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        encoding = SpaceEncoding(observation_space, action_space)
        if not encoding.discrete:
            raise ValueError(f"SQIRL tries every action, and {action_space} cannot be listed; use agent=dyna")
        if encoding.images:
            raise ValueError(f"SQIRL cannot read images, and {observation_space} has some; use agent=world_model")

    def collect(self, on_step: OnStep) -> bool:
        """Whole episodes, as many from each environment; rows after an environment's last are not valid."""
        episodes = self.config.episodes * 2**self.passes
        quota = math.ceil(episodes / self.steps.n)
        return self.play_episodes(self._act, quota, on_step)

    def _act(self) -> Tensor:
        """One-hot (N, A): greedy before the stage's step, random from there on."""
        action_size = self.encoding.action_size
        random = self.rng.integers(action_size, size=self.steps.n)
        actions = self.tensor(random)
        if self.stage:
            step = self.steps.step_index
            before_stage = self.tensor(step < self.stage)
            greedy = self._greedy_action(self.steps.obs, step)
            actions = torch.where(before_stage, greedy, actions)
        return nn.functional.one_hot(actions, action_size).float()

    @torch.no_grad()
    def _greedy_action(self, obs: Obs, steps: np.ndarray) -> Tensor:
        """Actions (N,) of the policies at these steps (N,) of the episodes."""
        vector = self.tensor(self.encoding.vector(obs))
        step = self.tensor(steps)
        inputs = self.policy.inputs(vector, step)
        return self.policy.greedy(inputs, step)

    def learn_from(self, batch: Transitions, reward: np.ndarray) -> dict[str, float]:
        """Learn the stage's step, and continue with the next one."""
        config = self.config
        go = returns_to_go(np.asarray(reward, np.float64), batch.ended, config.gamma)
        # Before the stage's step actions were greedy; the returns after it are those of random play.
        random_rows = batch.valid & (batch.step >= self.stage)
        metrics = {"train/stage": float(self.stage), "train/passes": float(self.passes)}
        if random_rows.any():
            loss = self._look_ahead(batch[random_rows], reward[random_rows], go[random_rows])
            metrics["train/loss"] = loss
            self._n_updates += 1
        self.longest = int(batch.step[batch.valid].max()) + 1
        self.stage += 1
        # After the last step of the longest episode another pass begins, with twice the episodes.
        if self.stage >= min(config.max_steps or self.longest, self.longest):
            self.stage = 0
            self.passes += 1
        return metrics

    def _look_ahead(self, rows: Transitions, reward: np.ndarray, go: np.ndarray) -> float:
        """Fit Q of random play and its k - 1 backups; the stage's step acts on the last. Returns its loss."""
        step = self.tensor(rows.step)
        vector = self.tensor(self.encoding.vector(rows.obs))
        next_vector = self.tensor(self.encoding.vector(rows.next_obs))
        if not self.policy.ready:
            # Inputs are whitened by those of the very first stage, once and for all.
            first_inputs = join_time(vector, step)
            self.policy.mean.copy_(first_inputs.mean(0))
            std = first_inputs.std(0, correction=0).clamp(min=1e-2)
            self.policy.std.copy_(std)
        x = self.policy.inputs(vector, step)
        next_x = self.policy.inputs(next_vector, step + 1)
        action = self.tensor(self.encoding.encode(rows.action)).argmax(-1)
        rewards = self.tensor(reward).float()
        continues = self.tensor(~rows.ended).float()
        target = self.tensor(go).float()
        loss = 0.0
        for depth in range(self.config.k):
            # Targets are standardised, so that one learning rate serves returns of any size.
            mean = target.mean()
            std = target.std(correction=0).clamp(min=1e-6)
            loss = self._fit(depth, x, action, (target - mean) / std)
            with torch.no_grad():
                next_q = self.nets[depth](next_x)[0]
            next_value = next_q.amax(-1) * std + mean
            # The next depth learns r + gamma max Q of this one.
            target = rewards + self.config.gamma * continues * next_value
        last_weights = list(self.nets[-1].parameters())
        self.policy.set_weights(self.stage, last_weights)
        return loss

    def _fit(self, depth: int, x: Tensor, action: Tensor, target: Tensor) -> float:
        """Regress Q(s, a) of the taken actions on targets (B,); the last minibatch's loss."""
        config = self.config
        net = self.nets[depth]
        flat = self.flats[depth]
        loss = torch.zeros(())
        for _ in range(config.epochs):
            order = draw_order(self.draw, len(x))
            for part in order.split(config.batch_size):
                values = net(x[part])[0]
                q = values.gather(-1, action[part, None])[:, 0]
                error = (q - target[part]).square().mean()
                loss = flat.descend(error, config.learning_rate, 10.0)
        return float(loss)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        """Greedy in either case; the state, int (B,), counts the steps of each episode."""
        step = np.zeros(len(starts), int)
        if state is not None:
            step = np.where(starts, 0, state)
        if self.policy.ready:
            action = self._greedy_action(obs, step).cpu().numpy()
        else:
            action = self.rng.integers(self.encoding.action_size, size=len(step))
        return action + self.encoding.action_space.start, step + 1


def join_time(vector: Tensor, step: Tensor) -> Tensor:
    """(B, D) and (B,) -> (B, D + 1), the step as log(1 + step)."""
    time = torch.log1p(step.float())
    return torch.cat([vector, time[:, None]], -1)


def returns_to_go(reward: np.ndarray, ended: np.ndarray, gamma: float) -> np.ndarray:
    """What follows in the episode, discounted: (T, N) -> float64 (T, N)."""
    go = np.zeros_like(reward)
    running = np.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        running = reward[t] + gamma * np.where(ended[t], 0.0, running)
        go[t] = running
    return go
