"""The recipes for other libraries on the page `docs/guide/programs.md`, each skipped where its library is absent."""

import functools
import re
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import lodestar as ld
from rewards.adapters.gym import RewardWrapper, VectorRewardWrapper

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "programs.md"
RECIPES = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
MODULES = {"rllib": "ray.rllib"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_on_the_rewards_of_ours(name, monkeypatch):
    pytest.importorskip(MODULES.get(name, name), exc_type=ImportError)
    # Each step's reward, and the environment's own beside it.
    steps = []
    for kind in (RewardWrapper, VectorRewardWrapper):

        def step(self, action, step=kind.step):
            result = step(self, action)
            steps.append((result[1], result[4]["reward/task"]))
            return result

        monkeypatch.setattr(kind, "step", step)
    # Without the transitions that a scaled stream watches before it gives a reward.
    ours = SimpleNamespace(wrap=functools.partial(ld.wrap, warmup=0))
    exec(RECIPES[name], {"ld": ours, "gymnasium": gymnasium})
    assert len(steps) > 1
    reward, task = steps[-1]
    assert np.isfinite(reward).all() and np.not_equal(reward, task).all()
