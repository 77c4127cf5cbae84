"""RCSL: a policy that is given the return to reach, learned by supervision alone.

    imitate a = pi(s, R)     R: the rewards that were still to come in the recorded episode (return-to-go)

Nothing is bootstrapped, so no value can diverge. To act it asks for the best return that an episode began with, less
what has come since. That is what a network predicts of the last transition, for a policy is not shown its rewards.
Sources: Brandfonbrener et al. 2022, "When does return-conditioned supervised learning work for offline RL?", arXiv
2206.01079; Emmons et al. 2022 (RvS), arXiv 2112.10751. Differences: the policy is `Cloning`'s, a mixture or a
diffusion, not a mean; a return-to-go stays between the least and the largest of the data.
When it fails: the way to the return lies in several episodes, none of which has it all (see `mbrcsl`); returns that
chance decides, which it takes for its own doing; starts that differ in what can be reached from them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from agents.dynamics.rollout import RewardHead
from agents.offline.cloning import Cloning, CloningConfig
from envs.recording import episodes
from envs.transitions import Transitions
from envs.types import Obs, StateDict
from lodestar.settings import setting

# Minibatches of the network that predicts rewards, at most.
MAX_REWARD_STEPS = 1000


@dataclass
class RCSLConfig(CloningConfig):
    """Settings of `RCSL`; see `agents.offline.cloning` for the others."""

    chunk: int = setting(1, "actions that are predicted together and carried out without looking", "[1, 1000]")
    target: float | None = setting(None, "the return to ask for; null for the best that an episode began with")


class RCSL(Cloning):
    """Built and loaded as `IQL` is, with its signal about each transition; a ValueError refuses other targets, too."""

    Config = RCSLConfig
    worth: RewardHead
    # The quantile of what episodes returned that is asked for.
    asked = 1.0

    def learn(self, steps: int, begin: int = 0, total: int = 0) -> dict[str, float]:
        metrics = super().learn(steps)
        data = self._data
        action = self.own.encode(data.action)
        transition = np.concatenate((data.obs, action, data.next_obs), -1)
        x = self.tensor(transition)
        y = self.tensor(data.reward)
        self.worth.fit(x, y, min(steps, MAX_REWARD_STEPS))
        return {**metrics, "target": self.asks["target"]}

    def extra_state(self) -> StateDict:
        return {**self.asks, "worth": self.worth.state_dict()}

    def keep(self, kept: StateDict) -> None:
        self.worth.load_state_dict(kept.pop("worth"))
        self.asks = kept

    def _extra_size(self) -> int:
        # The return-to-go stands behind the observation.
        return 1

    def _networks(self) -> Any:
        # The return that is asked for, and the least and largest return-to-go of the data.
        self.asks = {"target": 0.0, "low": 0.0, "high": 0.0}
        # Predicts the reward of obs, action and next_obs.
        inputs = 2 * self.own.obs_size + self.own.action_size
        self.worth = RewardHead(inputs, seed=self.seed, device=self.device)
        return super()._networks()

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        reward, data = self._select_valid(data, signal)
        obs: Any = self.own.vector(data.obs)
        next_obs: Any = self.own.vector(data.next_obs)
        return self._condition(data.replace(reward=reward, obs=obs, next_obs=next_obs))

    def _condition(self, data: Transitions) -> Tensor:
        """As in `Cloning`, of observations as vectors with their returns-to-go."""
        self._data = data
        parts = episodes(data)
        sums = []
        for rows in parts:
            backwards = data.reward[rows][::-1]
            sums.append(backwards.cumsum()[::-1])
        to_go = np.concatenate(sums).astype(np.float32)
        # What episodes returned that were recorded from beginning to end, or all if none was.
        starts = np.array([rows.start for rows in parts])
        ends = np.array([rows.stop - 1 for rows in parts])
        complete = (data.step[starts] == 0) & data.ended[ends]
        if complete.any():
            starts = starts[complete]
        returns = to_go[starts]
        low = float(returns.min())
        high = float(returns.max())
        target = self.config.target
        if target is None:
            target = float(np.quantile(returns, self.asked))
        elif not low <= target <= high:
            raise ValueError(f"agent.target={target:g} is out of range; episodes returned {low:g} to {high:g}")
        self.asks = {"target": target, "low": float(to_go.min()), "high": float(to_go.max())}
        obs = np.concatenate([data.obs, to_go[:, None]], -1)
        return super()._table(data.replace(obs=obs), None)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        vector = self.own.vector(obs)
        asks = self.asks
        to_go = np.full((len(vector), 1), asks["target"], np.float32)
        if state is not None:
            transition = np.concatenate([state["obs"], state["action"], vector], -1)
            x = self.tensor(transition)
            reward = self.worth.predict(x).cpu().numpy()
            left = state["to_go"] - reward[:, None]
            left = left.clip(asks["low"], asks["high"])
            to_go = np.where(starts[:, None], to_go, left)
        inputs = np.concatenate([vector, to_go], -1)
        action, inner = self._act(inputs, state, starts, deterministic)
        encoded = self.own.encode(action)
        return action, {**inner, "obs": vector, "action": encoded, "to_go": to_go}

    def _act(self, inputs: np.ndarray, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        """Actions for observations with their returns-to-go (B, D + 1), and the policy's own state."""
        return super()._predict(inputs, state, starts, deterministic)
