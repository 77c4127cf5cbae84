"""MBRCSL: return-conditioned learning (`rcsl`) of what a model imagines, where pieces of episodes are joined.

A clone of the recording acts in a model of it, from where its episodes began; of the rollouts from each start, those in
which the model's members agree and that are predicted the best returns are what is learned from.

Source: Zhou et al. 2023, arXiv 2310.19308, algorithm 1, and the authors' code. Differences from them:
  - the best of each start are kept, not what is better than all that was recorded: with returns of 0 and 1 nothing is;
  - against errors of the model: no step where members disagree more than on the recording, no reward beyond those that
    were recorded, each times the chance that no end came before; asked for is the 0.9 quantile of what is kept;
  - a mixture of Gaussians for diffusion (`agent.head`); ends of episodes are learned, too.
When it fails: a model that is wrong where all members agree; pieces that do not meet; good ways that the clone takes
less than once in `GROUP` tries.
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
from lodestar.settings import setting

GROUP = 200  # rollouts from the same start
MEASURED = 10_000  # recorded transitions that rollouts are compared with


@dataclass
class MBRCSLConfig(RCSLConfig):
    """Settings of `MBRCSL`; see `RCSL` and `Cloning` for the others, which are the clone's, too."""

    rollouts: int = setting(8000, f"imagined, in groups of {GROUP} from the same start", low=GROUP)
    horizon: int = setting(50, "steps of a rollout; those of the task", low=1)
    best: float = setting(0.02, "share of the rollouts from a start that is learned from", above=0, high=1)
    model_steps: int = setting(2000, "minibatches of the model", low=1)


class MBRCSL(RCSL):
    """Built and loaded as `RCSL` is."""

    Config = MBRCSLConfig
    asked = 0.9  # the very best are where the model errs

    def learn(self, steps: int) -> dict[str, float]:
        """Fit the model, clone in `steps` minibatches, imagine, and learn in as many, of what beats the recorded."""
        if self._rows is None:
            return super().learn(steps)  # which refuses
        data, own, device = self._data, self.own, str(self.device)
        columns = (data.obs, own.encode(data.action), data.next_obs, data.reward, data.terminated, data.step)
        table = [torch.as_tensor(np.asarray(x, np.float32), device=self.device) for x in columns]
        ensemble = EnsembleConfig(kind="det", terminations=True, first_steps=self.config.model_steps)
        model = DynamicsEnsemble(own, ensemble, seed=self.seed, device=device)
        replay: Any = SimpleNamespace(added=len(table[0]), arrays=lambda: table)
        metrics = model.fit(replay)
        flat = spaces.Box(-np.inf, np.inf, (own.obs_size,), np.float32)
        clone = Cloning(self.config, flat, self.action_space, data, seed=self.seed, device=device)
        clone.learn(steps)
        imagined, found = self._imagine(model, clone, *table[:2])
        self._rows, self._data = self._conditioned(imagined), data
        return {**metrics, **found, **super().learn(steps)}

    @torch.no_grad()
    def _imagine(self, model: Any, clone: Cloning, obs: Tensor, action: Tensor) -> tuple[Transitions, dict[str, float]]:
        config, data, parts, unsure = self.config, self._data, episodes(self._data), list[Tensor]()
        drawn = torch.randint(len(parts), (config.rollouts // GROUP,), generator=self._generator, device=self.device)
        recorded = np.array([data.reward[parts[index]].sum() for index in drawn.tolist()])
        starts = obs[[parts[index].start for index in drawn.tolist()]].repeat_interleave(GROUP, 0)

        def act(places: Tensor, t: int) -> tuple[Tensor, None]:
            chosen = clone.predict(places.cpu().numpy(), deterministic=False)[0]
            return torch.as_tensor(self.own.encode(chosen), device=self.device), None

        def lost(outcome: Predicted) -> Tensor:
            unsure.append(disagreement(outcome))
            survived.append(survived[-1] * (1 - outcome.terminated))  # type: ignore[operator]
            return outcome.reward.clamp(*limits) * (1 - survived[-2])

        mean: Any = SimpleNamespace(step=partial(model.step, sample=False))
        some = torch.randperm(len(obs), generator=self._generator, device=self.device)[:MEASURED]
        usual = disagreement(mean.step(obs[some], action[some], member_predictions=True)).amax()
        survived, bounds = [torch.ones_like(starts[:, 0])], (obs.amin(0), obs.amax(0))
        limits = float(data.reward.min()), float(data.reward.max())
        judged: Any = {"reward_function": lambda *x: x[3].clamp(*limits), "penalty": lost}
        found = imagine(mean, act, ends=None, obs=starts, horizon=config.horizon, bounds=bounds, **judged)
        returns = found.reward.sum(0)
        returns[(torch.stack(unsure) * found.alive).amax(0) > usual] = -torch.inf
        top = returns.view(-1, GROUP).topk(max(round(config.best * GROUP), 1), 1)
        group, place = (top.values > -torch.inf).nonzero().T
        rows = group * GROUP + top.indices[group, place]
        kept, had = float(returns[rows].mean()), float(recorded[group.cpu().numpy()].mean())
        if not kept > had:
            best = f"of {config.rollouts} imagined rollouts the {len(rows)} best return {kept:.3g}"
            fix = "give more agent.rollouts, a longer agent.horizon, or algo=rcsl"
            raise ValueError(f"{best}, and what was recorded {had:.3g}; {fix}")
        alive = found.alive[:, rows].T
        columns = (found.obs, found.action, found.reward, found.next_obs, found.terminated, found.step)
        seen, taken, worth, after, over, step = (x[:, rows].transpose(0, 1)[alive].cpu().numpy() for x in columns)
        cut = np.append(step[1:] == 0, True) & ~over
        batch = Transitions(seen, self.own.decode(taken), worth, after, over, cut, np.ones_like(over), step)
        return batch, {"kept_return": kept, "recorded_return": had, "kept": float(len(rows))}
