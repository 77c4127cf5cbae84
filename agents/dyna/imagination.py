"""The model side of `agents.dyna.agent`: a model, a reward source, when episodes end, and what was imagined."""

import functools
import math
from collections import deque
from typing import Any

import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

import envs.make
from agents.dyna.config import DynaConfig
from agents.dyna.discriminator import Discriminator, DiscriminatorConfig
from agents.dyna.svg import svg_update
from agents.dynamics.ensemble import DynamicsEnsemble, EnsembleConfig
from agents.dynamics.factored import Factored
from agents.dynamics.planners import CEM, MPPI, UPMPC
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
from agents.off_policy.dqn import DeepQ
from agents.off_policy.sac import SoftActorCritic
from agents.replay.replay import Replay, Rows
from envs.types import ReplayScorer
from lodestar.state import Stateful

ROWS = 4096  # rollouts side by side: as many as stay in a core's cache
HEAD_STEPS = 200  # gradient steps of the reward head between two fits


class Imagination(Stateful):
    """A model, and what imagines with it; for a `DynaConfig` that uses a model."""

    saved = (
        *("model", "reward_source", "buffer", "discriminator", "adaptive", "planner", "pessimistic"),
        *("generator", "_states", "bounds"),
    )

    def __init__(
        self,
        config: DynaConfig,
        encoding: SpaceEncoding,
        scorer: ReplayScorer,
        learner: SoftActorCritic | DeepQ,
        spec: EnvSpec | None,
        *,
        seed: int,
        device: str,
    ) -> None:
        self.config, self.encoding, self.learner = config, encoding, learner
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.ends = ending(spec, encoding, self.device)
        self.model: Any = _model(config, encoding, spec, self.ends is None, seed, device)
        # Without relabelling imagined rewards come from a network fitted to those in the replay, as in other libraries.
        fitted = config.update == "svg" or config.reward_source == "head" or not config.relabel
        self.reward_source = RewardSource(scorer, encoding, differentiable=fitted, device=device, seed=seed)
        self.notes = [self.reward_source.reason] if self.reward_source.how == "head" and config.relabel else []
        self.horizon = HorizonSchedule(config.horizon)
        self.adaptive = Adaptive(config.kappa) if config.adaptive == "macura" else None
        self.discriminator = None
        if config.filter == "morec":
            threshold = None if config.filter_threshold == "auto" else float(config.filter_threshold)
            kind = DiscriminatorConfig(threshold=threshold)
            self.discriminator = Discriminator(encoding, kind, seed=seed, device=device)
        self.planner = _planner(config, encoding, seed, device)
        imagines = config.planner == "upmpc" and config.update == "buffer" and config.alpha_imagined > 0
        counts = (config.plan_candidates, config.plan_horizon)
        self.pessimistic = UPMPC(*counts, -config.alpha_imagined, config.gamma) if imagines else None
        self.bounds: Any = None  # (lowest, highest) observations, (D,) each; None before the first fit
        self.rollouts = math.ceil(config.rollouts_per_step * config.model_every)  # after each fit
        self.buffer: Any = None
        self._states: deque[tuple[Tensor, Tensor]] = deque(maxlen=config.retain)
        if config.update == "buffer":
            capacity, kept = config.retain * self.rollouts * self.horizon.longest, config.retain
            self.buffer = ImaginedBuffer(capacity, encoding, self.reward_source, retain=kept, device=device, seed=seed)

    def fit(self, replay: Replay, timesteps: int) -> dict[str, Any]:
        """Fit the model, and what is learned beside it; then imagine from replayed states."""
        self.reward_source.timesteps = timesteps
        metrics: dict[str, Any] = dict(self.model.fit(replay))
        metrics |= self.reward_source.fit(replay, HEAD_STEPS)
        if self.discriminator is not None:
            metrics |= self.discriminator.fit(replay, self.model, self.config.model_steps)
        self.bounds = replay.bounds()
        if self.config.update != "none":
            with torch.no_grad():
                metrics |= self._imagine_all(replay, timesteps)
        return metrics

    def update(self, obs: Tensor, step: Tensor) -> dict[str, Tensor]:
        """One update of actor and critics through the model, from states (B, D) and their steps (B,)."""
        assert isinstance(self.learner, SoftActorCritic)  # discrete actions are refused before
        through = (self.learner, self.model, self.reward_source, self.ends)
        sizes: dict[str, Any] = {"gamma": self.config.gamma, "horizon": self.config.training_horizon}
        return svg_update(*through, obs, step, self.bounds, **sizes)

    def _imagine_all(self, replay: Replay, timesteps: int) -> dict[str, Any]:
        """Imagine from replayed states: transitions to learn from, or states to begin from."""
        config, svg = self.config, self.config.update == "svg"
        horizon = config.distribution_horizon if svg else self.horizon(timesteps)
        length = diverged = penalty = torch.zeros((), device=self.device)
        states: list[tuple[Tensor, Tensor]] = []
        if not svg:
            self.buffer.refitted()
        for begin in range(0, self.rollouts, ROWS):
            obs, step = replay.starts(min(ROWS, self.rollouts - begin))
            imagined = self._imagine(obs, step, horizon)
            alive = imagined.alive
            if svg:
                reached = alive.clone()
                reached[0] = True  # where rollouts begin is real, whatever the model predicts there
                states.append((imagined.obs[reached], imagined.step[reached]))
            else:
                self.buffer.add(imagined)
            length, diverged = length + alive.sum(), diverged + imagined.diverged
            penalty = penalty + imagined.penalty.sum()
        if svg:
            self._states.append((torch.cat([s[0] for s in states]), torch.cat([s[1] for s in states])))
            self._gather()
        penalty = penalty / length.clamp(min=1)
        return {"rollout_length": length / self.rollouts, "diverged": diverged, "penalty": penalty}

    def _imagine(self, obs: Tensor, step: Tensor, horizon: int) -> Imagined:
        config = self.config
        penalty, weight = PENALTIES.get(config.uncertainty), config.penalty_weight
        return imagine(
            self.model,
            self._act,
            lambda *x: torch.zeros_like(x[3]),  # scored when they are sampled
            self.ends,
            obs,
            horizon,
            step=step,
            choose=None if self.discriminator is None else self.discriminator.choose,
            candidates=config.filter_candidates,
            penalty=None if penalty is None else lambda predicted: weight * penalty(predicted),
            cut=self.adaptive,
            bounds=self.bounds,
        )

    def _act(self, obs: Tensor, t: int) -> tuple[Tensor, None]:
        if self.pessimistic is not None and t == 0:
            return self.pessimistic.plan(self._rollouts(), self._sample, obs), None
        return self._sample(obs, t)

    def states(self, count: int) -> tuple[Tensor, Tensor]:
        """Imagined states (B, D) and their steps (B,), drawn with replacement."""
        obs, step = self._all
        index = torch.randint(len(obs), (count,), generator=self.generator, device=self.device)
        return obs[index], step[index]

    def plan(self, obs: Tensor, step: np.ndarray | None) -> Tensor:
        """Actions (B, A) found by search from (B, D); `step` (B,) of episodes whose plans are continued, or None."""
        if isinstance(self.planner, UPMPC):
            return self.planner.plan(self._rollouts(), self._sample, obs)
        assert self.planner is not None
        last = self.planner.mean
        if step is not None:
            self.planner.reset(torch.as_tensor(step == 0, device=self.device))
        action = self.planner.plan(self._rollouts(), obs, warm=step is not None)
        if step is None:
            self.planner.mean = last
        return action

    def _rollouts(self) -> Any:
        where: dict[str, Any] = {"ends": self.ends, "bounds": self.bounds}
        return functools.partial(imagine, self.model, reward_function=self.reward_source, **where)

    def _sample(self, obs: Tensor, t: int) -> tuple[Tensor, None]:
        return self.learner.sample(obs)[0], None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._gather()

    def succeed(self, old: "Imagination") -> None:
        """Take over everything but the rewards."""
        self.load_state_dict(old.state_dict() | {"reward_source": self.reward_source.state_dict()})

    def _gather(self) -> None:
        self._all = [torch.cat(column) for column in zip(*self._states)]


class ImaginedBuffer(Stateful):
    """A ring of imagined transitions, scored when sampled; kept for `retain` fits of the model, see `refitted`."""

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
        self.capacity, self.reward_function, self.device = int(capacity), reward_function, torch.device(device)
        d, a = encoding.obs_size, encoding.action_size
        self._widths = [d, a, d, 1, 1, 1, 1]  # obs, action, next_obs, task, penalty, terminated, step
        self.table = torch.empty((self.capacity, sum(self._widths)), device=self.device)
        self.written = 0  # ever
        self._fits: deque[int] = deque(maxlen=retain)  # `written` when the model was fitted
        self._dropped = 0  # of those, how many are forgotten
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def __len__(self) -> int:
        return min(self.capacity, self.written - self._dropped)

    def add(self, imagined: Imagined) -> None:
        numbers = (imagined.task, imagined.penalty, imagined.terminated, imagined.step)
        parts = [imagined.obs, imagined.action, imagined.next_obs, *(x.unsqueeze(-1).float() for x in numbers)]
        rows = torch.cat(parts, -1).detach()[imagined.alive][-self.capacity :]
        places = (self.written + torch.arange(len(rows), device=self.device)) % self.capacity
        self.table[places] = rows
        self.written += len(rows)

    def refitted(self) -> None:
        """The model has been fitted: forget what was imagined before the last `retain` fits."""
        self._fits.append(self.written)
        if len(self._fits) == self._fits.maxlen:
            self._dropped = self._fits[0]

    def sample(self, batch_size: int, gamma: float) -> Rows:
        """Transitions drawn with replacement among those there are, with rewards as they are now."""
        index = torch.randint(len(self), (batch_size,), generator=self._generator, device=self.device)
        index = index.add_(self.written - len(self)).remainder_(self.capacity)
        rows = self.table.index_select(0, index)
        obs, action, next_obs, *numbers = rows.split(self._widths, -1)
        task, penalty, terminated, step = (x.squeeze(-1) for x in numbers)
        step = step.long()
        with torch.no_grad():
            reward = self.reward_function(obs, action, next_obs, task, terminated > 0, step) - penalty
        return Rows(obs, action, reward, next_obs, gamma * (1 - terminated), step, index)

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.table[: min(self.written, self.capacity)], **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.table[: len(state["table"])] = torch.as_tensor(state["table"]).to(self.device)


def ending(spec: EnvSpec | None, encoding: SpaceEncoding, device: torch.device) -> Ends | None:
    """When episodes of a registered environment end, for encoded actions; None without a rule, in foreign wrappers."""
    wrappers = getattr(spec, "additional_wrappers", ())
    if spec is None or not all(w.entry_point.startswith("envs.") and w.name != "NoisyTV" for w in wrappers):
        return None
    try:
        rule = envs.make.termination(spec.id, **spec.kwargs)
    except ValueError:  # not registered
        return None
    if rule is None:
        return None
    space: Any = encoding.action_space
    if encoding.discrete:
        return lambda obs, action, next_obs: rule(obs, action.argmax(-1) + int(space.start), next_obs)
    low, high = (torch.as_tensor(b, dtype=torch.float32, device=device).ravel() for b in (space.low, space.high))
    return lambda obs, action, next_obs: rule(obs, low + (action.clamp(-1, 1) + 1) / 2 * (high - low), next_obs)


def _model(
    config: DynaConfig, encoding: SpaceEncoding, spec: EnvSpec | None, terminations: bool, seed: int, device: str
) -> Any:
    if config.model == "true":
        if spec is None:
            raise ValueError("agent.model=true asks the simulator, and this environment is unregistered; use ensemble")
        return TrueModel(spec.id, encoding, **spec.kwargs)
    if config.model == "sindy":
        return Sindy(encoding, SindyConfig(members=config.members), seed=seed, device=device)
    settings = EnsembleConfig(
        kind=config.model_kind,
        members=config.members,
        elites=config.elites,
        hidden=list(config.model_hidden),
        norm=config.model_norm,
        terminations=terminations,
        min_steps=min(100, config.model_steps),
        max_steps=config.model_steps,
    )
    kind = Factored if config.model == "factored" else DynamicsEnsemble
    return kind(encoding, settings, seed=seed, device=device)


def _planner(config: DynaConfig, encoding: SpaceEncoding, seed: int, device: str) -> CEM | MPPI | UPMPC | None:
    count, horizon = config.plan_candidates, config.plan_horizon
    if config.planner == "upmpc":
        return UPMPC(count, horizon, config.alpha_real, config.gamma)
    if config.planner == "none":
        return None
    search: dict[str, Any] = {"samples": count, "elites": max(count // 10, 1), "seed": seed, "device": device}
    kind = CEM if config.planner == "cem" else MPPI  # without a policy that proposes
    return kind(encoding, horizon, gamma=config.gamma, **search)
