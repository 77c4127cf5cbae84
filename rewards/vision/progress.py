"""How far along the task is: learned from demonstrations as hops between two states, and used as a potential.

A network reads two states p and q and predicts which share of the way that was left after p (or behind p) lies between
them. Three questions are asked of each state: from the episode's first state to it, from the goal back to it, and from
the state before. Where the first two disagree, the state looks like nothing the demonstrations show: the gate closes,
and progress stays as it is instead of being invented.
Source: Tan, Chen, Xu, Wang, Ji, Chi, Lyu, Zhao, Chen, Co, Xie, Yao, Wang, Zhang 2025, Robo-Dopamine: General Process
Reward Modeling for High-Precision Robotic Manipulation, arXiv 2512.23703, section 3: hops, fusion of three views, gate,
shaping. Its training code is not public; this was written from descriptions of the paper.
`views=2` reads the pictures of two cameras, which stand side by side in a frame.
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
from lodestar.numerics.descent import Flat
from lodestar.settings import setting
from rewards.exploration.learned import dense_layers
from rewards.exploration.memories import Episodic
from rewards.vision.latent import MIN_DEVIATION, Latent, LatentConfig, Whitened


@dataclass
class ProgressConfig(LatentConfig):
    """Settings of `progress`."""

    of: str = "frame"
    demos: str = setting("", "a recording of whole episodes that reach the goal, or `mountaincar`, which ships")
    threshold: float | None = setting(None, "episodes whose return is not above it are left out, too; null keeps all")
    view: str = setting(
        "gated",
        "the source's three views behind its gate, their mean, or one",
        "gated | mean | forward | backward | incremental",
    )
    gate: float = setting(1.0, "how fast the gate closes as forward and backward disagree; 0 leaves it open", ">= 0")
    steps: int = setting(1000, "minibatches that the hops are learnt from", ">= 1")
    batch_size: int = setting(256, "pairs in one", ">= 1")
    hidden: int = setting(128, "units of each of two layers", ">= 1")
    learning_rate: float = setting(0.001, "of Adam, annealed to 0", "(0, 1]")


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
        # The first state of an episode is that before its first step.
        self.requires |= {"obs" if config.of == "obs" else "obs_frame"}
        states, progress = self._demonstrations(config.demos)
        self.hops = Hops(self.size, config.hidden, torch.Generator().manual_seed(self.seed)).to(self.device)
        self.error = self.hops.fit(states, progress, config, np.random.default_rng(self.seed))

    def notes(self) -> list[str]:
        return [f"hops of the demonstrations are predicted to within {self.error:.3f} (mean error, of [-1, 1])"]

    def initial_memory(self, n: int) -> Memory:
        return {
            "first": np.zeros((n, self.size), np.float32),
            "begun": np.zeros(n, bool),
            "phi": np.zeros(n, np.float32),
        }

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        after = self.states(batch)
        before = self.states(batch.at_obs())
        # The first state of each row's episode, (T, N, D); the memory holds it (N, D) across rollouts.
        first = memory["first"]
        begun = memory["begun"]
        firsts = np.empty_like(after)
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            first = np.where((begun | ~valid)[:, None], first, before[t])
            firsts[t] = first
            first = np.where(ended[:, None], np.float32(0), first)
            begun = (begun | valid) & ~ended
        # Nothing lies before 0 or beyond 1, so hops from the first state and from the goal have one sign.
        from_first, from_goal, from_before = self.hops.predict_hops(firsts, before, after)
        forward = np.maximum(from_first, 0)
        backward = 1 + np.minimum(from_goal, 0)
        progress = np.empty(batch.shape, np.float32)
        phi = memory["phi"]
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            onward = hop(phi, from_before[t])
            fused = self.fuse(phi, forward[t], backward[t], onward)
            progress[t] = fused
            phi = np.where(valid, fused, phi)
            phi = np.where(ended, np.float32(0), phi)
        return progress, {"first": first, "begun": begun, "phi": phi}

    def fuse(self, last: np.ndarray, forward: np.ndarray, backward: np.ndarray, onward: np.ndarray) -> np.ndarray:
        """Progress (N,) from the last one and that of three views, all in [0, 1]."""
        view = self.config.view
        if view == "mean":
            return (forward + backward + onward) / 3
        if view != "gated":
            views = {"forward": forward, "backward": backward, "incremental": onward}
            return views[view]
        # The gate w of the class's docstring closes as the forward and the backward view disagree.
        mean = (forward + backward) / 2
        disagreement = np.abs(backward - forward) / (mean + MIN_DEVIATION)
        gate = np.exp(-self.config.gate * disagreement**2)
        return last + gate / 2 * (mean - last + (onward - last))

    def _demonstrations(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        """States (M, D) of all demonstrations, and the share of its episode that lies behind each (M,)."""
        if not path:
            raise ValueError("reward.progress.demos is empty; name a recording of episodes that reach the goal")
        try:
            batch, _ = load(path)
            after = self.states(batch)
            before = self.states(batch.at_obs())
        except FileNotFoundError as error:
            raise ValueError(f"reward.progress.demos={error}; envs.recording.save writes one") from None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"reward.progress.demos={path!r} does not show what of={self.config.of} reads ({error}); record "
                "demonstrations in the same environment"
            ) from None
        threshold = self.config.threshold
        states = []
        progress = []
        for rows in episodes(batch):
            complete = batch.step[rows.start] == 0 and batch.ended[rows.stop - 1]
            succeeded = threshold is None or batch.reward[rows].sum() > threshold
            if complete and succeeded:
                trajectory = np.concatenate([before[rows][:1], after[rows]])
                states.append(trajectory)
                progress.append(np.linspace(0, 1, len(trajectory), dtype=np.float32))
        if not states:
            above = ""
            if threshold is not None:
                above = f" with a return above {threshold}, as reward.progress.threshold asks"
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
        self.layers = dense_layers(2 * size, (hidden, hidden, 1), generator)

    def forward(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """The hop (M,) between whitened states (M, D)."""
        return torch.tanh(self.layers(torch.cat([p, q], dim=1)).squeeze(1))

    def predict_hops(self, firsts: np.ndarray, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, ...]:
        """Hops first -> after, goal -> after and before -> after: each with the leading shape of states (..., D)."""
        with torch.no_grad():
            now = self.whiten(after)
            starts = (self.whiten(firsts), self.goal.expand_as(now), self.whiten(before))
            shape = after.shape[:-1]
            return tuple(self(p, now).cpu().numpy().reshape(shape) for p in starts)

    def fit(self, states: np.ndarray, progress: np.ndarray, config: ProgressConfig, rng: np.random.Generator) -> float:
        """Learn from pairs of states (M, D) with progress (M,); returns the mean error on the last tenth of them."""
        self.measure(states)
        x = self.whiten(states)
        # The goal is the last state nearest to the mean of all last states.
        last = x[torch.from_numpy(progress == 1).to(x.device)]
        distance = (last - last.mean(0)).square().sum(1)
        self.goal.copy_(last[distance.argmin()])
        flat = Flat.of_parameters(list(self.parameters()), epsilon=1e-8)
        # All pairs are drawn at once: (steps, 2, batch_size), the second axis being p and q.
        pairs = rng.integers(0, len(states), (config.steps, 2, config.batch_size))
        hops = hop_between(progress[pairs[:, 0]], progress[pairs[:, 1]])
        target = torch.from_numpy(hops).to(x.device)
        rows = torch.from_numpy(pairs).to(x.device)
        errors = []
        for t in range(config.steps):
            p = x[rows[t, 0]]
            q = x[rows[t, 1]]
            error = self(p, q) - target[t]
            rate = config.learning_rate * (1 - t / config.steps)
            flat.descend(error.square().mean(), rate)
            errors.append(error.detach().abs().mean())
        last_tenth = errors[-max(config.steps // 10, 1) :]
        return float(torch.stack(last_tenth).mean())
