"""What each user gets of one policy, and what rewards from recordings and adapters said wrongly.

A policy that serves two users of opposite wishes (`lodestar/PointMaze-v0`) is told whom it serves: a user's own success
is that at least nine of ten episodes end at the end of the bar that they like. A new user, who likes one of them, is
known by their answers alone.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import rewards
from benchmarks.checks.hilp import FREE, LONG, MOVES, SIDE, seen, ways
from benchmarks.study import Study
from envs.make import make
from envs.recording import episodes, save
from envs.transitions import Transitions
from rewards.check import random_rollout
from rewards.demonstrations.discriminator import DemosDiscriminator, DemosDiscriminatorConfig
from rewards.demonstrations.hilp import Hilbert, HilpConfig, compare_with_steps
from rewards.preference.users import Users
from runners.cli.compose import compose
from runners.evaluate import SEED, policy
from runners.run.build import Parts, build
from runners.run.config import TrainConfig
from runners.run.served import new_judge, play_episodes, serving_reward
from tests import broken_rewards

SEEDS, EPISODES, REACHED, NEW_USERS = 2, 10, 0.9, 20
WISHES = {"for": 1.0, "against": -1.0}  # user -> the sign of x that they like
LINE, TWO = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
HILP_STEPS = {"short": 300, "long": 3000}


def measure() -> dict[str, float]:
    """All figures of this part."""
    return serve_users() | imitate() | measure_hilp() | try_adapters()


def serve_users() -> dict[str, float]:
    """Users told to one policy, new ones, and what one answer says."""
    reached, new, learned = [], [], list[Users]()
    for seed in range(SEEDS):
        config, parts = train(seed)
        users = serving_reward(parts.mix)
        assert users is not None
        reached += [reaches(config, parts, z, wish) for z, wish in zip(users.labelled.z.copy(), WISHES.values())]
        for wish, mistakes in ((1.0, 0.0), (-1.0, 1.0)):
            judge = new_judge(parts.mix, "scripted", {"mistakes": mistakes})
            z, _ = users.infer(judge, users.config.answers)
            new.append(reaches(config, parts, z, wish))
        learned.append(users)
    return {
        "vpl_user_success": float(np.mean(reached)),
        "vpl_new_user_success": float(np.mean(new)),
        "vpl_one_answer_informative": understood_share(learned, informative=True),
        "vpl_one_answer_random": understood_share(learned, informative=False),
        "vpl_answers_judging_themselves": judging_themselves(learned[0]),
    }


def train(seed: int) -> tuple[TrainConfig, Parts]:
    """The arm `vpl` of the study `two_users`."""
    cell = next(cell for cell in Study.read("two_users").grid() if cell.arm == "vpl")
    config, _ = compose([f"{key}={value}" for key, value in cell.argv(seed).items()])
    parts = build(config)
    parts.model.learn(int(config.total_timesteps))
    return config, parts


def reaches(config: TrainConfig, parts: Parts, z: np.ndarray, wish: float) -> bool:
    """Whether the policy, told this z, ends where its user wants it."""
    users: Any = serving_reward(parts.mix)
    with users.serving(z):
        played = play_episodes(config, policy(parts.model, config), parts.mix, EPISODES, SEED)
    ends = np.array([wish * episode.next_obs[-1, 0, 0] > 0.8 for episode in played])
    return bool(ends.mean() >= REACHED)


def understood_share(learned: list[Users], informative: bool) -> float:
    """The share of new users whose reward, inferred from one answer, rises towards the end that they like."""
    right = []
    for users in learned:
        # A copy is asked, whose generator goes on from one user to the next.
        asked = copy.deepcopy(users)
        z = np.zeros((3, asked.config.latent), np.float32)
        places = np.array([[-0.9, 0.8], [0.0, 0.8], [0.9, 0.8]], np.float32)
        for number in range(NEW_USERS):
            wish = 1.0 if number % 2 else -1.0
            judge = asked.judge_of("new", {"mistakes": float(wish < 0)}, number)
            z[:], _ = asked.infer(judge, 1, informative)
            batch = random_rollout(asked.observation_space, asked.action_space, steps=3, envs=1).flatten()
            scores = asked.score(batch.replace(next_obs=np.concatenate([places, z], axis=1)))
            right.append(wish * (scores[2] - scores[0]) > 0)
    return float(np.mean(right))


def judging_themselves(users: Users) -> float:
    """The share of answers learnt from that are among those which their own user's z was inferred from."""
    learnt = np.flatnonzero(~users.labelled.held)
    drawn = users.examples(learnt, learnt)
    return float((drawn == learnt[:, None]).any(axis=1).mean())


def imitate() -> dict[str, float]:
    """AIRL's discount beside the learner's; and what SQIL gives a recording whose every action was changed."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "demos.safetensors"
        rollout = random_rollout(LINE, TWO, steps=12, envs=1).flatten()
        save(file, rollout, {})
        airl = rewards.make({"discriminator": {"demos": str(file), "form": "airl"}}, LINE, TWO, gamma=0.9)
        sqil = DemosDiscriminator(DemosDiscriminatorConfig(demos=str(file), form="sqil"), LINE, TWO)
        other = sqil.score(rollout.replace(action=1 - rollout.action))
        same = sqil.score(rollout)
    gap = abs(airl.streams["discriminator"].reward.discount - 0.9)
    return {"airl_discount_gap": gap, "sqil_same_actions": same.mean(), "sqil_other_actions": other.mean()}


def measure_hilp() -> dict[str, float]:
    """How far distances are off, as the note says and in truth, after a short and a long time of learning."""
    batch = cell_walks(np.random.default_rng(0))
    cells = np.argwhere(FREE)
    steps = np.array([list(ways((y, x)).values()) for y, x in cells.tolist()])
    pairs = np.triu_indices(len(cells), 1)
    figures = {}
    for name, count in HILP_STEPS.items():
        config = HilpConfig(steps=count, follow=0.05)
        hilbert = Hilbert.from_episodes(batch.obs, batch.next_obs, episodes(batch), config, 0, "cpu")
        phi = hilbert.phi(seen(cells + 0.5))
        distance = np.linalg.norm(phi[:, None] - phi[None], axis=2)[pairs]
        discounted = (1 - config.discount ** steps[pairs]) / (1 - config.discount)
        noted = compare_with_steps(hilbert, batch.obs, batch.next_obs, config.discount, 0)
        figures[f"hilp_gap_noted_{name}"] = noted.gap
        figures[f"hilp_gap_true_{name}"] = float(np.abs(distance - discounted).mean())
    return figures


def cell_walks(rng: np.random.Generator) -> Transitions:
    """200 aimless walks from cell to cell of the rooms of `benchmarks hilp`, one after the other."""
    walks = 200
    cells = np.argwhere(FREE)
    place = cells[rng.integers(len(cells), size=walks)]
    rows = []
    for time in range(LONG):
        action = rng.integers(4, size=walks)
        tried = (place + np.array(MOVES)[action]).clip(0, SIDE - 1)
        after = np.where(FREE[tuple(tried.T)][:, None], tried, place)
        rows.append((seen(place + 0.5), action[:, None], seen(after + 0.5), np.full((walks, 1), time)))
        place = after
    obs, action, after, step = (np.stack(part, axis=1).reshape(walks * LONG, -1) for part in zip(*rows))
    never = np.zeros(len(step), bool)
    reward = np.zeros(len(step), np.float32)
    return Transitions(obs, action[:, 0], reward, after, never, step[:, 0] == LONG - 1, ~never, step[:, 0])


class Odd(gym.Env):
    """An environment that returns something of a wrong type or shape."""

    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), TWO

    def __init__(self, render_mode: str | None = None, odd: str = "") -> None:
        self.odd = odd

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        obs = np.zeros((1, 3) if self.odd == "obs" else 3, np.float32)
        reward = "1.5" if self.odd == "reward" else 1.0
        return obs, reward, None if self.odd == "terminated" else False, False, {}


def try_adapters() -> dict[str, float]:
    """Sentences about missing frames, one a way of running; results accepted in silence; a reward of one size alone."""
    found = [*sentences()]
    base, members, words = next(bug for bug in broken_rewards.BUGS if bug[1].get("update") is SIZED)
    return {
        "missing_frames_ways": len(found),
        "missing_frames_sentences": len(set(found)),
        "odd_results_accepted": sum(map(is_accepted, ("obs", "reward", "terminated"))),
        "sized_reward_named": float(words in (broken_rewards.caught(base, members) or "")),
    }


SIZED = broken_rewards.remembers_the_size


def sentences() -> Iterator[str]:
    """What each way of running a reward says where there are no frames."""
    ways: dict[str, Callable[[], object]] = import_module("tests.test_rewards.test_readable").WAYS
    for run in ways.values():
        try:
            run()
        except Exception as error:
            yield re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")
        else:
            yield "nothing"


def is_accepted(odd: str) -> bool:
    """Whether an environment that returns this oddly is stepped without a word."""
    spec = gym.envs.registration.EnvSpec(f"Odd{odd}-v0", entry_point=lambda **given: Odd(odd=odd, **given))
    gym.envs.registration.registry[spec.id] = spec
    try:
        with warnings.catch_warnings(action="ignore"):
            env = make(spec.id)
            env.reset(seed=0)
            env.step(0)
    except (TypeError, ValueError):
        return False
    finally:
        del gym.envs.registration.registry[spec.id]
    return True
