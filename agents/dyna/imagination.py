"""The model side of `agents.dyna.agent`: a model, a reward source, when episodes end, and what was imagined."""

import functools
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

import envs.make
from agents.dyna.discriminator import Discriminator, DiscriminatorConfig
from agents.dyna.svg import svg_update
from agents.dynamics import Predicted
from agents.dynamics.ensemble import DynamicsEnsemble, EnsembleConfig
from agents.dynamics.factored import Factored
from agents.dynamics.planners import CEM, MPPI, UPMPC, Rollout
from agents.dynamics.rollout import (
    PENALTIES,
    Adaptive,
    Ends,
    HorizonSchedule,
    Imagined,
    RewardFunction,
    RewardSource,
    imagine,
)
from agents.dynamics.sindy import Sindy, SindyConfig
from agents.dynamics.true import TrueModel
from agents.networks.actor_critic import SpaceEncoding
from agents.off_policy.sac import SoftActorCritic
from agents.replay.replay import Replay, Rows
from envs.types import StateDict
from lodestar.numerics.descent import draw_integers
from lodestar.state import Stateful

if TYPE_CHECKING:
    from agents.dyna.agent import Dyna

# Rollouts side by side: as many as stay in a core's cache.
MAX_ROLLOUT_ROWS = 4096
# Gradient steps of the reward head at each fit of the model.
REWARD_HEAD_STEPS = 200


class Imagination(Stateful):
    """A model, and what imagines with it; for a `DynaConfig` that uses a model."""

    saved = (
        "model",
        "reward_source",
        "buffer",
        "discriminator",
        "adaptive",
        "planner",
        "pessimistic",
        "generator",
        "_states",
        "bounds",
    )

    def __init__(self, agent: "Dyna") -> None:
        config = agent.config
        encoding = agent.encoding
        self.config = config
        self.encoding = encoding
        self.learner = agent.learner
        self.device = agent.device
        self.place = agent.place
        self.generator = torch.Generator(self.device).manual_seed(agent.seed)
        spec = _env_spec(agent.envs)
        self.ends = termination_rule(spec, encoding, self.device)
        self.model: Any = self._make_model(spec)
        # Without relabelling imagined rewards come from a network fitted to those in the replay, as in other libraries.
        fitted = config.update == "svg" or config.reward_source == "head" or not config.relabel
        self.reward_source = RewardSource(agent.scorer, encoding, differentiable=fitted, **self.place)
        self.notes: list[str] = []
        if self.reward_source.how == "head" and config.relabel:
            self.notes.append(self.reward_source.reason)
        self.horizon = HorizonSchedule(config.horizon)
        self.adaptive = None
        if config.adaptive == "macura":
            self.adaptive = Adaptive(config.kappa)
        self.discriminator = None
        if config.filter == "morec":
            threshold = None if config.filter_threshold == "auto" else float(config.filter_threshold)
            settings = DiscriminatorConfig(threshold=threshold)
            self.discriminator = Discriminator(encoding, settings, **self.place)
        self.planner = self._make_planner()
        self.pessimistic = None
        if config.planner == "upmpc" and config.update == "buffer" and config.alpha_imagined > 0:
            weight = -config.alpha_imagined
            self.pessimistic = UPMPC(config.plan_candidates, config.plan_horizon, weight, config.gamma)
        # The lowest and the highest observations, (D,) each; None before the first fit.
        self.bounds: Any = None
        # Rollouts after each fit.
        self.rollouts = math.ceil(config.rollouts_per_step * config.model_every)
        self.buffer: Any = None
        self._states: deque[tuple[Tensor, Tensor]] = deque(maxlen=config.retain)
        if config.update == "buffer":
            self.buffer = ImaginedBuffer(
                config.retain * self.rollouts * self.horizon.longest,
                encoding,
                self.reward_source,
                retain=config.retain,
                **self.place,
            )

    def _make_model(self, spec: EnvSpec | None) -> Any:
        """The model that the settings name."""
        config = self.config
        if config.model == "true":
            if spec is None:
                raise ValueError(
                    "agent.model=true asks the simulator, and this environment is unregistered; use ensemble"
                )
            return TrueModel(spec.id, self.encoding, **spec.kwargs)
        if config.model == "sindy":
            return Sindy(self.encoding, SindyConfig(members=config.members), **self.place)
        settings = EnsembleConfig(
            kind=config.model_kind,
            members=config.members,
            elites=config.elites,
            hidden=list(config.model_hidden),
            norm=config.model_norm,
            # Where no rule says when episodes end, the model learns it.
            terminations=self.ends is None,
            min_steps=min(100, config.model_steps),
            max_steps=config.model_steps,
        )
        kind = Factored if config.model == "factored" else DynamicsEnsemble
        return kind(self.encoding, settings, **self.place)

    def _make_planner(self) -> CEM | MPPI | UPMPC | None:
        """The planner that the settings name; MPPI without a policy that proposes."""
        config = self.config
        count = config.plan_candidates
        horizon = config.plan_horizon
        if config.planner == "upmpc":
            return UPMPC(count, horizon, config.alpha_real, config.gamma)
        if config.planner == "none":
            return None
        planner = CEM if config.planner == "cem" else MPPI
        elites = max(count // 10, 1)
        return planner(self.encoding, horizon, samples=count, elites=elites, gamma=config.gamma, **self.place)

    def fit(self, replay: Replay, timesteps: int) -> dict[str, Any]:
        """Fit the model, and what is learned beside it; then imagine from replayed states."""
        self.reward_source.timesteps = timesteps
        metrics: dict[str, Any] = dict(self.model.fit(replay))
        metrics |= self.reward_source.fit(replay, REWARD_HEAD_STEPS)
        if self.discriminator is not None:
            metrics |= self.discriminator.fit(replay, self.model, self.config.model_steps)
        self.bounds = replay.bounds()
        if self.config.update != "none":
            with torch.no_grad():
                metrics |= self._imagine_all(replay, timesteps)
        return metrics

    def update(self, obs: Tensor, step: Tensor) -> dict[str, Tensor]:
        """One update of actor and critics through the model, from states (B, D) and their steps (B,)."""
        # Discrete actions are refused when the agent is made.
        assert isinstance(self.learner, SoftActorCritic)
        rollout = self._rollouts(self.reward_source)
        horizon = self.config.training_horizon
        return svg_update(self.learner, rollout, obs, step, gamma=self.config.gamma, horizon=horizon)

    def _imagine_all(self, replay: Replay, timesteps: int) -> dict[str, Any]:
        """Imagine from replayed states: transitions to learn from, or states to begin from."""
        is_svg = self.config.update == "svg"
        horizon = self.config.distribution_horizon
        if not is_svg:
            horizon = self.horizon(timesteps)
            self.buffer.forget_old_fits()
        n_steps = torch.zeros((), device=self.device)
        diverged = torch.zeros((), device=self.device)
        penalty = torch.zeros((), device=self.device)
        states = []
        steps = []
        for begin in range(0, self.rollouts, MAX_ROLLOUT_ROWS):
            count = min(MAX_ROLLOUT_ROWS, self.rollouts - begin)
            obs, step = replay.starts(count)
            imagined = self._imagine(obs, step, horizon)
            if is_svg:
                # Where rollouts begin is real, whatever the model predicts there.
                reached = imagined.alive.clone()
                reached[0] = True
                states.append(imagined.obs[reached])
                steps.append(imagined.step[reached])
            else:
                self.buffer.add(imagined)
            n_steps = n_steps + imagined.alive.sum()
            diverged = diverged + imagined.diverged
            penalty = penalty + imagined.penalty.sum()
        if is_svg:
            self._states.append((torch.cat(states), torch.cat(steps)))
            self._gather()
        return {
            "rollout_length": n_steps / self.rollouts,
            "diverged": diverged,
            "penalty": penalty / n_steps.clamp(min=1),
        }

    def _imagine(self, obs: Tensor, step: Tensor, horizon: int) -> Imagined:
        """Roll out from states (B, D), with rewards of 0: the buffer scores its rows when they are sampled."""
        config = self.config
        choose = None
        if self.discriminator is not None:
            choose = self.discriminator.choose
        measure = PENALTIES.get(config.uncertainty)
        penalty = None
        if measure is not None:
            penalty = functools.partial(_weighted_penalty, measure, config.penalty_weight)
        rollout = self._rollouts(_no_reward)
        return rollout(
            act=self._act,
            obs=obs,
            horizon=horizon,
            step=step,
            choose=choose,
            candidates=config.filter_candidates,
            penalty=penalty,
            cut=self.adaptive,
        )

    def _act(self, obs: Tensor, t: int) -> tuple[Tensor, None]:
        if self.pessimistic is None or t > 0:
            return self._sample(obs, t)
        action = self.pessimistic.plan(self._rollouts(self.reward_source), self._sample, obs)
        return action, None

    def states(self, count: int) -> tuple[Tensor, Tensor]:
        """Imagined states (B, D) and their steps (B,), drawn with replacement."""
        obs, step = self._all
        index = draw_integers(self.generator, len(obs), count)
        return obs[index], step[index]

    def plan(self, obs: Tensor, step: np.ndarray | None) -> Tensor:
        """Actions (B, A) found by search from (B, D); `step` (B,) of episodes whose plans are continued, or None."""
        rollout = self._rollouts(self.reward_source)
        if isinstance(self.planner, UPMPC):
            return self.planner.plan(rollout, self._sample, obs)
        assert self.planner is not None
        if step is None:
            # The plans of running episodes are left as they were.
            running_plans = self.planner.mean
            action = self.planner.plan(rollout, obs, warm=False)
            self.planner.mean = running_plans
            return action
        begins = torch.as_tensor(step == 0, device=self.device)
        self.planner.reset(begins)
        return self.planner.plan(rollout, obs, warm=True)

    def _rollouts(self, reward_function: RewardFunction) -> Rollout:
        """`imagine` with this reward, and all arguments that every rollout shares."""
        return functools.partial(
            imagine,
            self.model,
            reward_function=reward_function,
            ends=self.ends,
            bounds=self.bounds,
        )

    def _sample(self, obs: Tensor, t: int) -> tuple[Tensor, None]:
        return self.learner.sample(obs)[0], None

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._gather()

    def succeed(self, old: "Imagination") -> None:
        """Take over everything but the rewards."""
        state = old.state_dict()
        state["reward_source"] = self.reward_source.state_dict()
        self.load_state_dict(state)

    def _gather(self) -> None:
        """Join the states of the fits that are kept, and their steps."""
        self._all = [torch.cat(column) for column in zip(*self._states)]


def _no_reward(obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor, *others: Tensor) -> Tensor:
    return torch.zeros_like(task)


def _weighted_penalty(measure: Callable[[Predicted], Tensor], weight: float, predicted: Predicted) -> Tensor:
    return weight * measure(predicted)


class ImaginedBuffer(Stateful):
    """A ring of imagined transitions, scored when sampled; kept for `retain` fits, see `forget_old_fits`."""

    saved = ("written", "_fits", "_dropped", "_generator")

    def __init__(
        self,
        capacity: int,
        encoding: SpaceEncoding,
        reward_function: RewardFunction,
        *,
        retain: int = 1,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        self.capacity = int(capacity)
        self.reward_function = reward_function
        self.device = torch.device(device)
        d = encoding.obs_size
        a = encoding.action_size
        # Columns of a row: obs, action, next_obs, task, penalty, terminated, step.
        self._widths = [d, a, d, 1, 1, 1, 1]
        shape = (self.capacity, sum(self._widths))
        self.table = torch.empty(shape, device=self.device)
        # Rows written so far, those included that were overwritten.
        self.written = 0
        # `written` at each of the last fits of the model, and how many of the rows written are forgotten.
        self._fits: deque[int] = deque(maxlen=retain)
        self._dropped = 0
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def __len__(self) -> int:
        return min(self.capacity, self.written - self._dropped)

    def add(self, imagined: Imagined) -> None:
        """Write the transitions that were imagined, over the oldest where the ring is full."""
        numbers = (imagined.task, imagined.penalty, imagined.terminated, imagined.step)
        number_columns = [number.unsqueeze(-1).float() for number in numbers]
        columns = [imagined.obs, imagined.action, imagined.next_obs, *number_columns]
        table = torch.cat(columns, -1).detach()
        rows = table[imagined.alive]
        newest = rows[-self.capacity :]
        count = torch.arange(len(newest), device=self.device)
        places = (self.written + count) % self.capacity
        self.table[places] = newest
        self.written += len(newest)

    def forget_old_fits(self) -> None:
        """The model has been fitted: forget what was imagined before the last `retain` fits."""
        self._fits.append(self.written)
        if len(self._fits) == self._fits.maxlen:
            self._dropped = self._fits[0]

    def sample(self, batch_size: int, gamma: float) -> Rows:
        """Transitions drawn with replacement among those there are, with rewards as they are now."""
        index = draw_integers(self._generator, len(self), batch_size)
        # The oldest row that is kept stands where `written` was when it was added.
        index = index.add_(self.written - len(self)).remainder_(self.capacity)
        rows = self.table.index_select(0, index)
        obs, action, next_obs, *numbers = rows.split(self._widths, -1)
        task, penalty, terminated, step = (x.squeeze(-1) for x in numbers)
        step = step.long()
        with torch.no_grad():
            reward = self.reward_function(obs, action, next_obs, task, terminated > 0, step)
            reward = reward - penalty
        discount = gamma * (1 - terminated)
        return Rows(obs, action, reward, next_obs, discount, step, index)

    def state_dict(self) -> StateDict:
        size = min(self.written, self.capacity)
        return {"table": self.table[:size], **super().state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        table = torch.as_tensor(state["table"]).to(self.device)
        self.table[: len(table)] = table


def _env_spec(envs: gym.vector.VectorEnv) -> EnvSpec | None:
    """The spec of the environments, which a vector that was made by hand has not itself."""
    if envs.spec is not None:
        return envs.spec
    copies = getattr(envs, "envs", None)
    return copies[0].spec if copies else None


def termination_rule(spec: EnvSpec | None, encoding: SpaceEncoding, device: torch.device) -> Ends | None:
    """When episodes of a registered environment end, for encoded actions; None without a rule, in foreign wrappers."""
    if spec is None:
        return None
    for wrapper in spec.additional_wrappers:
        # The rule holds for what our own wrappers show, but for added noise.
        if not wrapper.entry_point.startswith("envs.") or wrapper.name == "NoisyTV":
            return None
    try:
        rule = envs.make.termination(spec.id, **spec.kwargs)
    except ValueError:
        # The id is not registered.
        return None
    if rule is None:
        return None
    space: Any = encoding.action_space
    if encoding.discrete:
        start = int(space.start)
        return lambda obs, action, next_obs: rule(obs, action.argmax(-1) + start, next_obs)
    low = torch.as_tensor(space.low, dtype=torch.float32, device=device)
    high = torch.as_tensor(space.high, dtype=torch.float32, device=device)
    low = low.ravel()
    high = high.ravel()

    def ends(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        # From [-1, 1] to the environment's units.
        share = (action.clamp(-1, 1) + 1) / 2
        env_action = low + share * (high - low)
        return rule(obs, env_action, next_obs)

    return ends
