"""Does a discriminator that picks among imagined outcomes keep rollouts of 50 steps nearer to the truth (MOREC)?

    python -m benchmarks morec

A model (dyna's ensemble at its defaults) and a discriminator are fitted five times to a growing record of 5,000 steps
of actions that last for a while, as `agent.preset=morec` fits them. Then 256 rollouts of 50 steps begin at states of a
second record and take its actions, so that the truth of every step is known. Of eight outcomes a step,

    none        takes the first, as MBPO does
    morec       takes the one with the highest reward of the discriminator
    untrained   the same, of a discriminator that was never fitted
    mean        the mean of the members' means, without noise: a deterministic model
    oracle      takes the one nearest to what the simulator says, which shows how much there is to gain

None of them ends a rollout, so that all are measured on the same 12,800 states. `distance` is that between imagined and
true states, in deviations of the record, mean over entries (root of squares), steps and rollouts; `one_step` that
between an imagined outcome and the simulator's from the same imagined state. Ten seeds draw records, networks,
minibatches and rollouts. The verdict stands in effects.yaml, written before the first run of these seeds; nothing was
tuned. Estimate: 25 core-minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import results

SEEDS = 10
WORLDS = {
    "pendulum": "Pendulum-v1",
    "swingup": "lodestar/CartPoleSwingUp-v0",
    "halfcheetah": "HalfCheetah-v5",
}
ARMS = ("none", "morec", "untrained", "mean", "oracle")
RECORD_STEPS, FITS, MODEL_STEPS = 5000, 5, 500
ROLLOUTS, HORIZON, CANDIDATES = 256, 50, 8
# An action stays with this probability, so that records reach more than the neighbourhood of the first state.
STICKINESS = 0.8
# Distances beyond this many deviations count as this many: a rollout that is lost is lost.
MAX_DISTANCE = 10.0


@dataclass
class Record:
    """Steps of one environment in time order, as `Dynamics.fit` reads a replay."""

    obs: Tensor
    action: Tensor
    next_obs: Tensor
    # Int64 (T,), within the episode.
    step: Tensor

    @property
    def added(self) -> int:
        return len(self.obs)

    def arrays(self) -> tuple[Tensor, ...]:
        """Observations, actions, next observations, rewards, ends and steps; rewards and ends are not modelled."""
        zeros = torch.zeros(len(self.obs))
        return self.obs, self.action, self.next_obs, zeros, zeros, self.step

    def first(self, count: int) -> Record:
        """Its first steps."""
        return Record(self.obs[:count], self.action[:count], self.next_obs[:count], self.step[:count])


def run(folder: Path) -> dict[str, float]:
    """Measure the seeds that have no row; the distances of every arm, by world and over all worlds."""
    path = folder / "morec.csv"
    for seed in range(SEEDS):
        for world in WORLDS:
            if results.lacks_row(path, world=world, seed=seed):
                results.append_rows(path, measure(world, seed))
    rows = results.read_rows(path)
    figures: dict[str, float] = {}
    for arm in ARMS:
        for column in ("distance", "one_step"):
            for world in WORLDS:
                values = [float(row[column]) for row in rows if row["arm"] == arm and row["world"] == world]
                figures |= results.summary(f"morec_{world}_{arm}_{column}", values)
    return figures


def measure(world: str, seed: int) -> list[dict[str, Any]]:
    """One row an arm."""
    from agents.dyna.discriminator import Discriminator, DiscriminatorConfig
    from agents.dynamics.ensemble import DynamicsEnsemble, EnsembleConfig
    from agents.dynamics.true import TrueModel
    from agents.networks.actor_critic import SpaceEncoding
    from envs.make import make

    env = make(WORLDS[world], seed=seed)
    encoding = SpaceEncoding(env.observation_space, env.action_space)
    record = play(env, encoding, RECORD_STEPS, np.random.default_rng(seed))
    fresh = play(env, encoding, RECORD_STEPS, np.random.default_rng(1000 + seed))
    env.close()

    model = DynamicsEnsemble(encoding, EnsembleConfig(min_steps=100, max_steps=MODEL_STEPS), seed=seed)
    discriminator = Discriminator(encoding, DiscriminatorConfig(threshold=0.0), seed=seed)
    untrained = Discriminator(encoding, DiscriminatorConfig(threshold=0.0), seed=seed)
    for fit in range(1, FITS + 1):
        part = record.first(RECORD_STEPS * fit // FITS)
        model.fit(part)  # type: ignore[arg-type]
        discriminator.fit(part, model, MODEL_STEPS)  # type: ignore[arg-type]
    untrained.scaler.load_state_dict(discriminator.scaler.state_dict())

    truth = TrueModel(WORLDS[world], encoding)
    chooser = {"morec": discriminator.choose, "untrained": untrained.choose}
    rows = []
    for arm in ARMS:
        distance, one_step = imagine_along(arm, model, truth, chooser.get(arm), record, fresh, seed)
        rows.append({"world": world, "arm": arm, "seed": seed, "distance": distance, "one_step": one_step})
    return rows


def play(env: Any, encoding: Any, steps: int, rng: np.random.Generator) -> Record:
    """A record of `steps` steps of random actions, each of which lasts for 1 / (1 - STICKINESS) steps on average."""
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    rows = []
    action = None
    step = 0
    for _ in range(steps):
        if action is None or rng.random() > STICKINESS:
            action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
        next_obs, _, terminated, truncated, _ = env.step(action)
        observed = encoding.vector(np.stack([obs, next_obs]))
        rows.append((observed[0], encoding.encode(action[None])[0], observed[1], step))
        obs = next_obs
        step += 1
        if terminated or truncated:
            obs, _ = env.reset()
            action = None
            step = 0
    observed, action_taken, reached, steps_of_episode = (torch.as_tensor(np.array(column)) for column in zip(*rows))
    return Record(observed.float(), action_taken.float(), reached.float(), steps_of_episode)


@torch.no_grad()
def imagine_along(
    arm: str, model: Any, truth: Any, choose: Any, record: Record, fresh: Record, seed: int
) -> tuple[float, float]:
    """Mean distance to the true states, and to the simulator's outcome of each imagined step."""
    # Rollouts begin where the next HORIZON steps belong to one episode.
    begins = torch.arange(len(fresh.obs) - HORIZON)
    whole = fresh.step[begins + HORIZON - 1] - fresh.step[begins] == HORIZON - 1
    begins = begins[whole]
    generator = torch.Generator().manual_seed(seed)
    begins = begins[torch.randperm(len(begins), generator=generator)[:ROLLOUTS]]

    deviation = record.obs.std(0).clamp(min=1e-6)
    low = record.obs.amin(0)
    high = record.obs.amax(0)
    obs = fresh.obs[begins]
    model.generator.manual_seed(seed)
    distances = []
    errors = []
    for t in range(HORIZON):
        action = fresh.action[begins + t]
        outcome = truth.step(obs, action).next_obs.float()
        if arm == "mean":
            imagined = model.step(obs, action, sample=False).next_obs
        else:
            many = model.step(obs.repeat(CANDIDATES, 1), action.repeat(CANDIDATES, 1)).next_obs
            candidates = many.unflatten(0, (CANDIDATES, -1))
            if arm == "none":
                imagined = candidates[0]
            else:
                if arm == "oracle":
                    index = ((candidates - outcome) / deviation).square().mean(-1).argmin(0)
                else:
                    index, _ = choose(obs, action, candidates)
                imagined = candidates[index, torch.arange(len(obs))]
        errors.append(_distance(imagined, outcome, deviation))
        # As in dyna's rollouts, states stay within those that were recorded, and a margin.
        margin = 0.1 * (high - low)
        obs = torch.minimum(torch.maximum(imagined, low - margin), high + margin)
        distances.append(_distance(obs, fresh.next_obs[begins + t], deviation))
    return float(torch.stack(distances).mean()), float(torch.stack(errors).mean())


def _distance(a: Tensor, b: Tensor, deviation: Tensor) -> Tensor:
    """Root mean square of the difference over entries, in deviations, (B,)."""
    return ((a - b) / deviation).square().mean(-1).sqrt().clamp(max=MAX_DISTANCE)
