"""How far along the task is: learned from demonstrations as hops between two states, and used as a potential.

A network reads two states p and q and predicts which share of the way that was left after p (or behind p) lies between
them. Three questions are asked of each state: from the episode's first state to it, from the goal back to it, and from
the state before. Where the first two disagree, the state looks like nothing the demonstrations show: the gate closes,
and progress stays as it is instead of being invented.
Source: Tan, Chen, Xu, Wang, Ji, Chi, Lyu, Zhao, Chen, Co, Xie, Yao, Wang, Zhang 2025, Robo-Dopamine: General Process
Reward Modeling for High-Precision Robotic Manipulation, arXiv 2512.23703, section 3: hops, fusion of three views, gate,
shaping. Its training code is not public; this was written from descriptions of the paper.
Differences: a small network on observations or CLIP's embeddings, fitted when the reward is built, where the source
tunes a model of 3 billion parameters; pairs are drawn from all demonstrations, on one scale of progress; the task's own
reward decides success; an episode's progress starts at 0 by definition: with that, the potential of a history is
invariant as one of states is, as long as `gamma` is the learner's.
Fails when: demonstrations wander (a state seen early and late has no progress of its own), when one state hides what
has been achieved (a key in the pocket), and alone: a potential without a task to add it to prefers nothing.
"""

from dataclasses import dataclass

import numpy as np
import torch

from envs.recording import episodes, load
from envs.transitions import Transitions
from envs.types import Memory
from lodestar.numerics.flat import Flat
from lodestar.settings import setting
from rewards.exploration.learned import dense
from rewards.exploration.memories import Episodic
from rewards.vision.latent import TINY, Latent, LatentConfig, Whitened

VIEWS = ("gated", "mean", "forward", "backward", "incremental")


@dataclass
class ProgressConfig(LatentConfig):
    """Settings of `progress`."""

    of: str = "frame"
    demos: str = setting("", "a recording of whole episodes that reach the goal, or `mountaincar`, which ships")
    threshold: float | None = setting(None, "episodes whose return is not above it are left out, too; null keeps all")
    view: str = setting("gated", "the source's three views behind its gate, their mean, or one", choices=VIEWS)
    gate: float = setting(1.0, "how fast the gate closes as forward and backward disagree; 0 leaves it open", low=0)
    steps: int = setting(1000, "minibatches that the hops are learnt from", low=1)
    batch_size: int = setting(256, "pairs in one", low=1)
    hidden: int = setting(128, "units of each of two layers", low=1)
    learning_rate: float = setting(0.001, "of Adam, annealed to 0", above=0, high=1)


class Progress(Episodic, Latent):
    """phi in [0, 1]: the share of the task that the episode has done; the reward is gamma * phi' - phi.

    phi_t = phi_(t-1) + w / 2 * ((F + B) / 2 - phi_(t-1) + dI), w = exp(-gate * (|F - B| / ((F + B) / 2))^2), with F
    and B of the forward and the backward view and dI of the incremental one.
    """

    Config = ProgressConfig
    config: ProgressConfig
    starts_at = 0.0

    def build(self) -> None:
        super().build()
        config = self.config
        self.requires |= {"obs" if config.of == "obs" else "obs_frame"}
        states, progress = self._demonstrations(config.demos)
        self.hops = Hops(self.size, config.hidden, torch.Generator().manual_seed(self.seed)).to(self.device)
        self.error = self.hops.fit(states, progress, config, np.random.default_rng(self.seed))

    def notes(self) -> list[str]:
        return [f"hops of the demonstrations are predicted to within {self.error:.3f} (mean error, of [-1, 1])"]

    def initial_memory(self, n: int) -> Memory:
        empty = {"first": np.zeros((n, self.size), np.float32), "begun": np.zeros(n, bool)}
        return {**empty, "phi": np.zeros(n, np.float32)}

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        after, before = self.states(batch), self.states(batch.at_obs())
        first, begun, phi = memory["first"], memory["begun"], memory["phi"]
        firsts = np.empty_like(after)
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            firsts[t] = first = np.where((begun | ~valid)[:, None], first, before[t])
            first = np.where(ended[:, None], np.float32(0), first)
            begun = (begun | valid) & ~ended
        forward, back, step = self.hops.between(firsts, before, after)
        forward, backward = np.maximum(forward, 0), 1 + np.minimum(back, 0)  # nothing lies before 0 or beyond 1
        raw = np.empty(batch.shape, np.float32)
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            raw[t] = moved = self.fuse(phi, forward[t], backward[t], hop(phi, step[t]))
            phi = np.where(ended, np.float32(0), np.where(valid, moved, phi))
        return raw, {"first": first, "begun": begun, "phi": phi}

    def fuse(self, last: np.ndarray, forward: np.ndarray, backward: np.ndarray, onward: np.ndarray) -> np.ndarray:
        """Progress (N,) from the last one and that of three views, all in [0, 1]."""
        view = self.config.view
        if view != "gated":
            views = {"forward": forward, "backward": backward, "incremental": onward}
            return views[view] if view in views else (forward + backward + onward) / 3
        mean = (forward + backward) / 2
        apart = np.abs(backward - forward) / (mean + TINY)
        return last + np.exp(-self.config.gate * apart**2) / 2 * (mean - last + (onward - last))

    def _demonstrations(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        """States (M, D) of all demonstrations, and the share of its episode that lies behind each (M,)."""
        if not path:
            raise ValueError("reward.progress.demos is empty; name a recording of episodes that reach the goal")
        try:
            batch, _ = load(path)
            after, before = self.states(batch), self.states(batch.at_obs())
        except FileNotFoundError as error:
            raise ValueError(f"reward.progress.demos={error}; envs.recording.save writes one") from None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"reward.progress.demos={path!r} does not show what of={self.config.of} reads ({error}); record "
                "demonstrations in the same environment"
            ) from None
        states, progress, least = [], [], self.config.threshold
        for rows in episodes(batch):
            whole = batch.step[rows.start] == 0 and batch.ended[rows.stop - 1]
            if whole and (least is None or batch.reward[rows].sum() > least):
                states.append(np.concatenate([before[rows][:1], after[rows]]))
                progress.append(np.linspace(0, 1, len(states[-1]), dtype=np.float32))
        if not states:
            above = "" if least is None else f" with a return above {least}, as reward.progress.threshold asks"
            raise ValueError(f"reward.progress.demos={path!r} holds no whole episode{above}; record more")
        return np.concatenate(states), np.concatenate(progress)


def hop(phi: np.ndarray, h: np.ndarray) -> np.ndarray:
    """phi + (1 - phi) h forwards, phi + phi h backwards: stays in [0, 1] for phi in [0, 1] and h in [-1, 1]."""
    return phi + np.where(h >= 0, 1 - phi, phi) * h


def hop_between(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The hop from progress p to progress q, both in [0, 1]: what `hop` undoes. 0 where there is nothing to share."""
    room = np.where(q >= p, 1 - p, p)
    return np.divide(q - p, room, out=np.zeros_like(p), where=room > 0)


class Hops(Whitened):
    """A network that predicts the hop between two states, in [-1, 1]; it keeps the goal it measures back from."""

    goal: torch.Tensor

    def __init__(self, size: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__(size)
        self.register_buffer("goal", torch.zeros(size))
        self.layers = dense(2 * size, (hidden, hidden, 1), generator)

    def forward(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """The hop (M,) between whitened states (M, D)."""
        return torch.tanh(self.layers(torch.cat([p, q], dim=1)).squeeze(1))

    def between(self, firsts: np.ndarray, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, ...]:
        """Hops first -> after, goal -> after and before -> after: each with the leading shape of states (..., D)."""
        with torch.no_grad():
            now = self.whiten(after)
            starts = (self.whiten(firsts), self.goal.expand_as(now), self.whiten(before))
            return tuple(self(p, now).cpu().numpy().reshape(after.shape[:-1]) for p in starts)

    def fit(self, states: np.ndarray, progress: np.ndarray, config: ProgressConfig, rng: np.random.Generator) -> float:
        """Learn from pairs of states (M, D) with progress (M,); returns the mean error on the last tenth of them."""
        self.measure(states)
        x = self.whiten(states)
        last = x[torch.from_numpy(np.flatnonzero(progress == 1)).to(x.device)]
        self.goal.copy_(last[(last - last.mean(0)).square().sum(1).argmin()])
        flat = Flat.over(list(self.parameters()), epsilon=1e-8)
        pairs = rng.integers(0, len(states), (config.steps, 2, config.batch_size))
        target = torch.from_numpy(hop_between(progress[pairs[:, 0]], progress[pairs[:, 1]])).to(x.device)
        rows, errors = torch.from_numpy(pairs).to(x.device), []
        for t in range(config.steps):
            gap = self(x[rows[t, 0]], x[rows[t, 1]]) - target[t]
            flat.grad.zero_()
            gap.square().mean().backward()
            flat.step(config.learning_rate * (1 - t / config.steps))
            errors.append(gap.detach().abs().mean())
        return float(torch.stack(errors[-max(config.steps // 10, 1) :]).mean())
