"""What learns from a recording alone, as an agent of `runners.train`: minibatches take the place of environment steps.

    train data=FILE agent=iql reward=...     the mix rates the recording once, the agent learns from these ratings

Each class names one algorithm of this folder; `agents.dyna.offline` is the one with a model.
"""

from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np

from agents.base import BaseAgent, Episodes, OnStep
from agents.networks.policy_layers import PolicyLayers
from agents.offline.cloning import Cloning, CloningConfig
from agents.offline.dt import DT, DTConfig
from agents.offline.iql import IQL, IQLConfig, refuse_spaces
from agents.offline.mbrcsl import MBRCSL, MBRCSLConfig
from agents.offline.rcsl import RCSL, RCSLConfig
from envs.types import Obs, StateDict

# Between two points where a run can be saved.
MINIBATCHES_A_ROLLOUT = 500


class ActingState:
    """All that acting takes: the networks, and what a file keeps beside them."""

    def __init__(self, learner: IQL) -> None:
        self.learner = learner

    def state_dict(self) -> StateDict:
        return {"net": self.learner.net.state_dict(), "beside": self.learner.extra_state()}

    def load_state_dict(self, state: StateDict) -> None:
        self.learner.net.load_state_dict(state["net"])
        self.learner.keep(dict(state["beside"]))


class OfflineAgent(BaseAgent):
    """Learns from `envs.datasets.recordings.RecordedEnvs`, whose rewards are ratings; on other vectors it only acts.

    Its files are those of the algorithm itself, which `env.base=`, `init_from=` and `runners.export` read.
    """

    algorithm: ClassVar[type[IQL]]
    # Whether it learns in one go, and so begins again if it is interrupted.
    indivisible = False
    driver = "recording"
    n_envs = 1
    mode = True
    saved = BaseAgent.saved | {
        "optimizer": "learner._flat",
        "target": "learner._target",
        "generator": "learner._generator",
    }

    def _set_up(self) -> None:
        self.learner = self.algorithm(
            self.config,
            self.observation_space,
            self.action_space,
            getattr(self.envs, "data", None),
            **self.place,
        )
        self.policy = ActingState(self.learner)
        self.rng = np.random.default_rng([self.seed, 4])
        self.episodes = Episodes(1)

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        refuse_spaces(cls.algorithm.__name__, observation_space, action_space)

    def begin_rollout(self) -> None:
        """There is nothing to reset."""

    def collect(self, on_step: OnStep) -> bool:
        remaining = self._total_timesteps - self.num_timesteps
        count = remaining if self.indivisible else min(MINIBATCHES_A_ROLLOUT, remaining)
        losses = self.learner.learn(count, self.num_timesteps, self._total_timesteps)
        self.record({f"train/{name}": value for name, value in losses.items()})
        self.num_timesteps += count
        self._n_updates += count
        return on_step(np.zeros(1, np.float32), np.zeros(1, bool), None)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        return self.learner._predict(obs, state, starts, deterministic)

    def policy_layers(self) -> PolicyLayers:
        return self.learner.policy_layers()

    def reseed(self, seed: int) -> None:
        self.learner._generator.manual_seed(seed)

    def save(self, path: str) -> None:
        self.learner.save(path)

    @classmethod
    def load(cls, path: str, envs: Any = None, *, scorer: Any = None, seed: int = 0, device: str = "cpu") -> Self:
        spaces = (envs.single_observation_space, envs.single_action_space)
        learner = cls.algorithm.load(path, *spaces, seed=seed, device=device)
        agent = cls(envs, learner.config, scorer=scorer, seed=seed, device=device)
        agent.learner = learner
        agent.policy = ActingState(learner)
        return agent


class OfflineIQL(OfflineAgent):
    """IQL: a value of recorded actions, and the better ones imitated more; see `agents.offline.iql`."""

    Config = IQLConfig
    algorithm = IQL


class OfflineCloning(OfflineAgent):
    """Imitates recorded actions, whatever the reward: the control of all others; see `agents.offline.cloning`."""

    Config = CloningConfig
    algorithm = Cloning


class OfflineRCSL(OfflineAgent):
    """Actions given the return that followed them; see `agents.offline.rcsl`."""

    Config = RCSLConfig
    algorithm = RCSL
    indivisible = True


class OfflineDT(OfflineAgent):
    """The same with a memory, a transformer; see `agents.offline.dt`."""

    Config = DTConfig
    algorithm = DT
    indivisible = True


class OfflineMBRCSL(OfflineAgent):
    """The same of what a model of the recording imagines; see `agents.offline.mbrcsl`."""

    Config = MBRCSLConfig
    algorithm = MBRCSL
    indivisible = True
