"""MBRCSL: return-conditioned learning (`rcsl`) of what a model imagines, where pieces of episodes are joined.

A clone of the recording acts in a model of it, from where its episodes began; of the rollouts from each start, those in
which the model's members agree and that are predicted the best returns are what is learned from.

Source: Zhou et al. 2023, arXiv 2310.19308, algorithm 1, and the authors' code. Differences from them:
  - the best of each start are kept, not what is better than all that was recorded: with returns of 0 and 1 nothing is;
  - against errors of the model: no step where members disagree more than on the recording, no reward beyond those that
    were recorded, each times the chance that no end came before; asked for is the 0.9 quantile of what is kept;
  - a mixture of Gaussians for diffusion (`agent.head`); ends of episodes are learned, too.
When it fails: a model that is wrong where all members agree; pieces that do not meet; good ways that the clone takes
less than once in `ROLLOUTS_A_START` tries.
"""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from agents.dynamics import Predicted
from agents.dynamics.ensemble import DynamicsEnsemble, EnsembleConfig
from agents.dynamics.rollout import disagreement, imagine
from agents.offline.cloning import Cloning
from agents.offline.rcsl import RCSL, RCSLConfig
from envs.recording import episodes
from envs.transitions import Transitions
from lodestar.numerics.descent import draw_integers, draw_order
from lodestar.settings import setting

ROLLOUTS_A_START = 200
# Recorded transitions that rollouts are compared with.
MAX_COMPARED_TRANSITIONS = 10_000


@dataclass
class MBRCSLConfig(RCSLConfig):
    """Settings of `MBRCSL`; see `RCSL` and `Cloning` for the others, which are the clone's, too."""

    rollouts: int = setting(
        8000, f"imagined, in groups of {ROLLOUTS_A_START} from the same start", low=ROLLOUTS_A_START
    )
    horizon: int = setting(50, "steps of a rollout; those of the task", ">= 1")
    best: float = setting(0.02, "share of the rollouts from a start that is learned from", "(0, 1]")
    model_steps: int = setting(2000, "minibatches of the model", ">= 1")


class MBRCSL(RCSL):
    """Built and loaded as `RCSL` is."""

    Config = MBRCSLConfig
    # The very best imagined returns are where the model errs.
    asked = 0.9

    def learn(self, steps: int, begin: int = 0, total: int = 0) -> dict[str, float]:
        """Fit the model, clone in `steps` minibatches, imagine, and learn in as many, of what beats the recorded."""
        if self._rows is None:
            # It refuses to learn without data.
            return super().learn(steps)
        recorded = self._data
        columns = (
            recorded.obs,
            self.own.encode(recorded.action),
            recorded.next_obs,
            recorded.reward,
            recorded.terminated,
            recorded.step,
        )
        table = [self.tensor(np.asarray(column, np.float32)) for column in columns]
        place: dict[str, Any] = {"seed": self.seed, "device": str(self.device)}
        settings = EnsembleConfig(kind="det", terminations=True, first_steps=self.config.model_steps)
        model = DynamicsEnsemble(self.own, settings, **place)
        # All of a replay that a model reads when it is fitted.
        replay: Any = SimpleNamespace(added=len(table[0]), arrays=lambda: table)
        metrics = model.fit(replay)
        space = spaces.Box(-np.inf, np.inf, (self.own.obs_size,), np.float32)
        clone = Cloning(self.config, space, self.action_space, recorded, **place)
        clone.learn(steps)
        imagined, imagined_metrics = self._imagine(model, clone, table[0], table[1])
        self._rows = self._condition(imagined)
        self._data = recorded
        metrics.update(imagined_metrics)
        metrics.update(super().learn(steps))
        return metrics

    @torch.no_grad()
    def _imagine(self, model: Any, clone: Cloning, obs: Tensor, action: Tensor) -> tuple[Transitions, dict[str, float]]:
        """The best of the clone's rollouts from recorded starts, as transitions (N,), and metrics."""
        config = self.config
        parts = episodes(self._data)
        groups = config.rollouts // ROLLOUTS_A_START
        drawn = draw_integers(self._generator, len(parts), groups)
        first_rows = []
        recorded_returns = []
        for index in drawn.tolist():
            part = parts[index]
            first_rows.append(part.start)
            recorded_returns.append(self._data.reward[part].sum())
        starts = obs[first_rows].repeat_interleave(ROLLOUTS_A_START, 0)
        # Each member predicts its mean, so that members differ by what they do not know alone.
        mean: Any = SimpleNamespace(step=partial(model.step, sample=False))
        order = draw_order(self._generator, len(obs))
        compared = order[:MAX_COMPARED_TRANSITIONS]
        outcome = mean.step(obs[compared], action[compared], member_predictions=True)
        max_disagreement = disagreement(outcome).amax()
        rollout, disagreements = self._roll_out(mean, clone, obs, starts)
        returns = rollout.reward.sum(0)
        counted = disagreements * rollout.alive
        is_unsure = counted.amax(0) > max_disagreement
        returns[is_unsure] = -torch.inf
        count = max(round(config.best * ROLLOUTS_A_START), 1)
        by_start = returns.view(-1, ROLLOUTS_A_START)
        top = by_start.topk(count, 1)
        is_sure = top.values > -torch.inf
        group, place = is_sure.nonzero().T
        rows = group * ROLLOUTS_A_START + top.indices[group, place]
        best_return = float(returns[rows].mean())
        recorded = np.array(recorded_returns)[group.cpu().numpy()]
        recorded_return = float(recorded.mean())
        # NaN, the mean of no rollout, is refused, too.
        if not best_return > recorded_return:
            raise ValueError(
                f"of {config.rollouts} imagined rollouts the {len(rows)} best return {best_return:.3g}, "
                f"and what was recorded {recorded_return:.3g}; give more agent.rollouts, a longer "
                "agent.horizon, or algo=rcsl"
            )
        metrics = {
            "kept_return": best_return,
            "recorded_return": recorded_return,
            "kept": float(len(rows)),
        }
        return self._read_rollouts(rollout, rows), metrics

    def _roll_out(self, model: Any, clone: Cloning, obs: Tensor, starts: Tensor) -> tuple[Any, Tensor]:
        """The clone's rollouts from `starts` (B, D), and how far members disagreed at each step, (H, B)."""
        low = float(self._data.reward.min())
        high = float(self._data.reward.max())
        disagreements: list[Tensor] = []
        # The chance that no end came before each step.
        survival: list[Tensor] = [torch.ones_like(starts[:, 0])]

        def act(states: Tensor, t: int) -> tuple[Tensor, None]:
            action, _ = clone.predict(states.cpu().numpy(), deterministic=False)
            encoded = self.own.encode(action)
            return self.tensor(encoded), None

        def bounded_reward(*transition: Tensor) -> Tensor:
            task = transition[3]
            return task.clamp(low, high)

        def lost_reward(outcome: Predicted) -> Tensor:
            before = survival[-1]
            disagreements.append(disagreement(outcome))
            assert outcome.terminated is not None
            survival.append(before * (1 - outcome.terminated))
            reward = outcome.reward.clamp(low, high)
            return reward * (1 - before)

        bounds = (obs.amin(0), obs.amax(0))
        horizon = self.config.horizon
        rollout = imagine(model, act, bounded_reward, None, starts, horizon, penalty=lost_reward, bounds=bounds)
        return rollout, torch.stack(disagreements)

    def _read_rollouts(self, rollout: Any, rows: Tensor) -> Transitions:
        """Some rollouts as transitions (N,), one after another, up to where each ended."""
        alive = rollout.alive[:, rows].T

        def read(column: Tensor) -> np.ndarray:
            by_rollout = column[:, rows].transpose(0, 1)
            return by_rollout[alive].cpu().numpy()

        step = read(rollout.step)
        terminated = read(rollout.terminated)
        action = read(rollout.action)
        last = np.append(step[1:] == 0, True)
        return Transitions(
            obs=read(rollout.obs),
            action=self.own.decode(action),
            reward=read(rollout.reward),
            next_obs=read(rollout.next_obs),
            terminated=terminated,
            truncated=last & ~terminated,
            valid=np.ones_like(terminated),
            step=step,
        )
