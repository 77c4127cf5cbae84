"""Numbers that are none, on purpose: from the environment, the policy and the reward; rewards that explode.

What must come of it: the run ends with code 4 and one sentence that names the environment, the step and whose number it
was, the step itself lies in nan.npz, and no checkpoint holds a weight that is no number. A reward that cannot learn
from a batch leaves it out, and the run goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lodestar.state import pack
from tests.faults import Fault, Found
from tests.faults.child import run, sentence, warm
from tests.faults.resume import AGENTS, SMALL

AT = 60  # steps of each environment until it happens
KINDS = ("reward", "observation", "action", "score")
WHO = ("ppo", "sb3_ppo", "dqn", "sac", "dyna", "world_model")
HEALING = ("dyna", "world_model")  # they go back to sound weights by themselves
WORLD = f"{__name__}:SpoiltWorld-v0"


class SpoiltWorld(gym.Env):
    """Episodes of 40 steps; after 60 steps in all, one number is none.

    Args:
        what: reward or observation; or score: nothing, but the step is marked by a last number of 1.
        continuous: whether actions are numbers.
    """

    observation_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, what: str = "reward", continuous: bool = False) -> None:
        self.what, self.t, self.total = what, 0, 0
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.total = self.t + 1, self.total + 1
        obs, reward = self._look(), float(self.np_random.normal())
        if self.total == AT and self.what == "reward":
            reward = np.nan
        if self.total == AT and self.what == "observation":
            obs[1] = np.inf
        obs[2] = float(self.total == AT and self.what == "score")
        return obs, reward, False, self.t == 40, {}

    def _look(self) -> np.ndarray:
        return self.np_random.uniform(-0.9, 0.9, 3).astype(np.float32)


gym.register("SpoiltWorld-v0", f"{__name__}:SpoiltWorld")


def train(agent: str, folder: Path, kind: str, *options: str, total: int = 400) -> int:
    """A small run on `SpoiltWorld`, in this process, which is its own."""
    from runners.train import main

    settings, continuous, _ = AGENTS[agent]
    world = [f"env={WORLD}", f"env.what={kind}", f"env.continuous={str(continuous).lower()}"]
    steps = [f"total_timesteps={total}", "checkpoint_every=20", "log_every=40", f"run_dir={folder}"]
    return main([*world, f"agent={agent}", *settings, *steps, *SMALL, *options])


def spoil_policy() -> None:
    """From now on in this process: after `AT` steps the policy's weights are no numbers, once."""
    import torch

    from runners.run.progress import Saver

    original = Saver._on_step
    spoilt: list[bool] = []

    def on_step(self: Any) -> bool:
        if self.num_timesteps >= AT * self.training_env.num_envs and not spoilt:
            spoilt.append(True)
            with torch.no_grad():
                weights = getattr(self.model.policy, "parameters", lambda: [self.model.learner.actor_flat.value])
                for weight in weights():
                    weight.fill_(torch.nan)
        return original(self)

    Saver._on_step = on_step  # type: ignore[method-assign]


def spoil_score() -> None:
    """From now on in this process there is a reward `spoilt`: NaN for the marked step, else 1."""
    import rewards
    from rewards.base import Reward

    class Spoilt(Reward):
        def score(self, batch: Any, memory: Any = None) -> Any:
            return np.where(batch.next_obs[..., 2] == 1, np.nan, 1).astype(np.float32)

    rewards.register("spoilt", Spoilt)


def explode() -> None:
    """From now on in this process there is a reward `exploding`: RND, 1e12 times as large from its third rollout on."""
    import rewards
    from rewards.exploration.rnd import RND

    class Exploding(RND):
        asked = 0

        def score(self, batch: Any, memory: Any = None) -> Any:
            self.asked += 1
            return super().score(batch, memory) * np.float32(1e12 if self.asked > 2 else 1)

    rewards.register("exploding", Exploding)


def spoil_loss(batches: tuple[int, ...]) -> None:
    """From now on in this process there is a reward `spoilt`: RND, whose loss is none in these minibatches, from 0."""
    import rewards
    from rewards.exploration.rnd import RND

    class Spoilt(RND):
        seen = 0

        def loss(self, *columns: Any) -> Any:
            factor = np.nan if self.seen in batches else 1.0
            self.seen += 1
            return {name: value * factor for name, value in super().loss(*columns).items()}

    rewards.register("spoilt", Spoilt)


def sound(folder: Path) -> bool:
    """Whether there is a checkpoint, and every weight in every one is a number."""
    from envs.transitions import is_finite
    from runners.run import checkpoint

    places = sorted((folder / "checkpoints").glob("step_*"))
    modules = [pack(checkpoint.read(place)[0]["agent"]["modules"])[1] for place in places]
    return bool(places) and all(is_finite(arrays) for arrays in modules)


def nan_of(agent: str, kind: str, folder: Path) -> str:
    """Bring one about; what was wrong with what came of it, "" if nothing."""

    def action() -> int:
        {"action": spoil_policy, "score": spoil_score}.get(kind, lambda: None)()
        return train(agent, folder, kind, f"reward={'[task,spoilt]' if kind == 'score' else 'task'}")

    code, printed = run(action, folder.with_suffix(".txt"), 300)
    if not sound(folder):
        return f"{agent}, {kind}: a checkpoint is missing or holds a weight that is no number"
    if kind == "action" and agent in HEALING and code == 0:
        return ""
    named = {"reward": "the reward nan", "observation": "the observation inf", "score": "the reward 'spoilt' gave nan"}
    place = "at step 19 of its episode"
    wrong = code != 4 or not sentence(printed)
    if kind in named:
        wrong = wrong or named[kind] not in printed or place not in printed or not evidence(folder)
        wrong = wrong or (kind != "score" and "environment 0" not in printed)
    return f"{agent}, {kind}: code {code}, {printed.strip().splitlines()[-1][:200]}" if wrong else ""


def evidence(folder: Path) -> bool:
    """Whether nan.npz holds the step: the observations, and the number that is none, if it was the environment's."""
    try:
        with np.load(folder / "nan.npz", allow_pickle=False) as found:
            return {"obs", "next_obs", "action", "reward"} <= set(found)
    except (OSError, ValueError):
        return False


def nan(folder: Path, quick: bool) -> Found:
    """Each kind, for each agent."""
    _ready()
    tried = [(agent, kind) for agent in WHO for kind in KINDS]
    if quick:
        tried = [("ppo", kind) for kind in KINDS] + [("dqn", "reward"), ("sb3_ppo", "observation"), ("sac", "score")]
    wrong = [nan_of(agent, kind, folder / f"{agent}-{kind}") for agent, kind in tried]
    return _found([word for word in wrong if word], len(tried), "nan", "the environment and the step were named")


def zero(folder: Path, quick: bool) -> Found:
    """With on_nan=zero a reward that is none pays 0 and the run goes on, its episodes' returns included."""
    from runners.run.progress import read_csv

    _ready()
    wrong, tried = [], ("ppo",) if quick else WHO
    for agent in tried:
        place = folder / agent
        action = functools.partial(train, agent, place, "reward", "reward=task", "on_nan=zero")
        code, printed = run(action, place.with_suffix(".txt"), 300)
        rows = read_csv(place / "metrics.csv") if code == 0 else []
        counted = max((float(row.get("reward/nan") or 0) for row in rows), default=0.0)
        if code or not sound(place) or counted < 1:
            wrong.append(f"{agent}: code {code}, {counted:g} counted, {printed.strip().splitlines()[-1][:200]}")
    return _found(wrong, len(tried), "nan_zero", "0 was paid and counted")


def exploding(folder: Path, quick: bool) -> Found:
    """A bonus that is 1e12 times as large from one rollout to the next."""
    _ready()
    wrong, tried = [], ("ppo",) if quick else ("ppo", "sb3_ppo", "dqn", "sac")
    for agent in tried:
        place = folder / agent

        def action(agent: str = agent, place: Path = place) -> int:
            explode()
            return train(agent, place, "none", "reward=[task,exploding]", "reward.exploding.warmup=50")

        code, printed = run(action, place.with_suffix(".txt"), 300)
        if not sound(place) or (code != 0 and not (code == 4 and sentence(printed))):
            wrong.append(f"{agent}: code {code}, {printed.strip().splitlines()[-1][:200]}")
    return _found(wrong, len(tried), "exploding", "every weight stayed a number")


def spoilt_model(folder: Path, quick: bool) -> Found:
    """A reward whose loss is none for a batch, and for every batch of three updates in a row."""
    from runners.run.progress import read_csv

    _ready()
    wrong = []
    cases: tuple[tuple[str, tuple[int, ...], float, float], ...] = (("one", (1,), 1, 0), ("three", (1, 2, 3), 3, 1))
    for name, batches, skipped, restored in cases[1:] if quick else cases:
        place = folder / name

        def action(batches: tuple[int, ...] = batches, place: Path = place) -> int:
            spoil_loss(batches)
            return train("ppo", place, "none", "reward=[task,spoilt]", total=800)

        code, printed = run(action, place.with_suffix(".txt"), 300)
        last = read_csv(place / "metrics.csv")[-1] if code == 0 else {}
        said = tuple(float(last.get(f"spoilt/{key}") or 0) for key in ("skipped", "restored"))
        if code or said != (skipped, restored) or not sound(place):
            wrong.append(f"{name}: code {code}, skipped and restored {said}, {printed.strip().splitlines()[-1][:200]}")
    return _found(wrong, len(cases) - quick, "spoilt_model", "batches were left out, the third time weights went back")


def _ready() -> None:
    """Import what children need, once."""
    warm()
    # The first optimizer of torch imports its compiler.
    import torch._dynamo  # noqa: F401

    import agents.dyna.agent
    import agents.world_model.agent  # noqa: F401


def _found(wrong: list[str], trials: int, figure: str, words: str) -> Found:
    return Found(trials, len(wrong), {f"{figure}_failed": float(len(wrong))}, "; ".join(wrong) or words)


Run = Callable[[Path, bool], Found]
FAULTS = [
    Fault(
        "nan",
        "a reward, an observation, an action or a score is no number",
        "code 4, one sentence with environment, step and whose; the step in nan.npz; every saved weight a number",
        nan,
    ),
    Fault("nan-zero", "the same reward with on_nan=zero", "0 is paid for it and counted, the run finishes", zero),
    Fault(
        "exploding-reward",
        "a bonus is 1e12 times as large from one rollout to the next",
        "the run goes on or ends in a sentence with code 4; every saved weight is a number",
        exploding,
    ),
    Fault(
        "reward-model-nan",
        "the loss of a reward's model is no number, once and three times in a row",
        "the batch is left out, the third time the last sound weights come back, the run finishes",
        spoilt_model,
    ),
]
