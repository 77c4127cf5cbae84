"""The recipes for other libraries on the page `docs/guide/programs.md`, each skipped where its library is absent."""

import functools
import itertools
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import lodestar as ld
from benchmarks.checks import recipes
from rewards.adapters.gym import RewardWrapper, VectorRewardWrapper
from rewards.mix.mix import Stream

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "programs.md"
RECIPES = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
MODULES = {"rllib": "ray.rllib", "lerobot": "lerobot.rl.algorithms.sac", "cleanrl": "gymnasium"}
MODULES |= dict.fromkeys(("sb3_rollout", "sb3_replay", "sb3_step"), "stable_baselines3")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_on_the_rewards_of_ours(name, monkeypatch):
    pytest.importorskip(MODULES.get(name, name), exc_type=ImportError)
    # Each batch's scores by the bonus, and each step's reward with the environment's own beside it.
    bonuses = []
    steps = []
    score = Stream.score

    def score_and_note(self, *given, **options):
        scores, memory = score(self, *given, **options)
        if self.name == "rnd":
            bonuses.append(scores)
        return scores, memory

    monkeypatch.setattr(Stream, "score", score_and_note)
    for kind in (RewardWrapper, VectorRewardWrapper):

        def step(self, action, step=kind.step):
            result = step(self, action)
            steps.append((result[1], result[4]["reward/task"]))
            return result

        monkeypatch.setattr(kind, "step", step)
    # Without the transitions that a scaled stream watches before it gives a reward.
    monkeypatch.setattr(ld, "wrap", functools.partial(ld.wrap, warmup=0))
    # A budget of a few rollouts, or of a few minibatches for SAC, which learns from its 100th step on.
    recipe = re.sub(r"learn\([\d_]+", "learn(256", RECIPES[name])
    exec(recipe, {"ld": ld, "gymnasium": gymnasium})
    assert np.isfinite(bonuses[-1]).all() and np.any(bonuses[-1])
    if name not in ("sb3_rollout", "sb3_replay", "sb3_step"):
        reward, task = steps[-1]
        assert np.isfinite(reward).all() and np.not_equal(reward, task).all()


def test_the_benchmark_runs_every_recipe_once():
    assert sorted(RECIPES) == sorted(itertools.chain(*(place.recipes for place in recipes.PLACES)))
