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
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from agents.dynamics.rollout import RewardHead
from agents.offline.cloning import Cloning, CloningConfig
from envs.recording import episodes
from envs.transitions import Transitions
from envs.types import Obs
from lodestar.settings import setting

REWARD_STEPS = 1000  # minibatches of the network that predicts rewards, at most


@dataclass
class RCSLConfig(CloningConfig):
    """Settings of `RCSL`; see `agents.offline.cloning` for the others."""

    chunk: int = setting(1, "actions that are predicted together and carried out without looking", low=1, high=1000)
    target: float | None = setting(None, "the return to ask for; null for the best that an episode began with")


class RCSL(Cloning):
    """Built and loaded as `IQL` is, with its signal about each transition; a ValueError refuses other targets, too."""

    Config = RCSLConfig
    worth: RewardHead
    asked: ClassVar[float] = 1.0  # quantile of what episodes returned that is asked for

    def learn(self, steps: int) -> dict[str, float]:
        metrics, data = super().learn(steps), self._data
        whole = np.concatenate((data.obs, self.own.encode(data.action), data.next_obs), -1)
        x, y = (torch.as_tensor(part, device=self.device) for part in (whole, data.reward))
        self.worth.fit(x, y, min(steps, REWARD_STEPS))
        return {**metrics, "target": self.asks["target"]}

    def beside(self) -> dict[str, Any]:
        return {**self.asks, "worth": self.worth.state_dict()}

    def keep(self, kept: dict[str, Any]) -> None:
        self.worth.load_state_dict(kept.pop("worth"))
        self.asks = kept

    def _more(self) -> int:
        return 1  # the return-to-go

    def _networks(self, seed: int) -> Any:
        self.asks = dict.fromkeys(("target", "low", "high"), 0.0)  # what is asked for, within which returns-to-go
        self.worth = RewardHead(2 * self.own.obs_size + self.own.action_size, seed=seed, device=self.device)
        return super()._networks(seed)

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        worth, data = self._labelled(data, signal)
        flat: Any = {name: self.own.vector(getattr(data, name)) for name in ("obs", "next_obs")}
        return self._conditioned(data.replace(reward=worth, **flat))

    def _conditioned(self, data: Transitions) -> Tensor:
        """As in `Cloning`, of observations as vectors with their returns-to-go."""
        self._data, parts = data, episodes(data)
        to_go = np.concatenate([data.reward[rows][::-1].cumsum()[::-1] for rows in parts]).astype(np.float32)
        whole = [rows.start for rows in parts if data.step[rows.start] == 0 and data.ended[rows.stop - 1]]
        first = to_go[whole or [rows.start for rows in parts]]
        low, high, target = float(first.min()), float(first.max()), self.config.target
        if target is not None and not low <= target <= high:
            raise ValueError(f"agent.target={target:g} is out of range; episodes returned {low:g} to {high:g}")
        best = float(np.quantile(first, self.asked)) if target is None else target
        self.asks = {"target": best, "low": float(to_go.min()), "high": float(to_go.max())}
        return super()._table(data.replace(obs=np.concatenate([data.obs, to_go[:, None]], -1)), None)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        vector, asks = self.own.vector(obs), self.asks
        to_go = np.full((len(vector), 1), asks["target"], np.float32)
        if state is not None:
            before = np.concatenate([state["obs"], state["action"], vector], -1)
            earned = self.worth.predict(torch.as_tensor(before, device=self.device)).cpu().numpy()
            left = (state["to_go"] - earned[:, None]).clip(asks["low"], asks["high"])
            to_go = np.where(starts[:, None], to_go, left)
        action, inner = self._act(np.concatenate([vector, to_go], -1), state, starts, deterministic)
        return action, {**inner, "obs": vector, "action": self.own.encode(action), "to_go": to_go}

    def _act(self, both: np.ndarray, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        """Actions for observations with their returns-to-go (B, D + 1), and what it keeps of them."""
        return super()._predict(both, state, starts, deterministic)
