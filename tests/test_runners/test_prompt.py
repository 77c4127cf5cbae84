"""Goals and rewards as prompts of one policy: directions by hand, the command, and what is refused in a sentence."""

import numpy as np
import pytest

from runners.offline import OfflineConfig, main, run
from runners.record import main as record
from runners.run.config import UsageError
from runners.run.prompt import direction

QUICK = ["algo=hilp", "steps=20", "episodes=1", "reward.steps=20", "reward.hidden=16", "agent.net_arch=[16]"]


def test_the_direction_of_a_reward_by_hand():
    before = np.float32([[0, 0], [1, 0], [1, 1], [0, 1]])
    after = np.float32([[1, 0], [1, 1], [0, 1], [0, 0]])  # once around a square
    z, fit = direction(np.float32([1, 0, -1, 0]), before, after)  # what of a step goes to the right
    assert z == pytest.approx([1, 0], abs=1e-6) and fit == pytest.approx(1)
    column = np.float32([[0, 0], [0, 1], [0, 2], [0, 3]])
    z, fit = direction(np.float32([5, 7, 9, 11]), column, column + np.float32([1, 0]))  # how far up it leads
    assert z == pytest.approx([0, 2], abs=1e-6) and fit == pytest.approx(1)
    z, fit = direction(np.float32([1, -1, 1, -1]), before, after)
    assert fit == pytest.approx(0, abs=1e-6)
    assert direction(np.full(4, 3.0, np.float32), before, after)[0].tolist() == [0, 0]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "play.safetensors"
    assert record(["env=Pendulum-v1", "steps=400", f"out={path}"]) == 0
    return str(path)


def test_a_policy_is_learned_once_and_prompted_again_by_goals_and_rewards(recorded, tmp_path, capsys):
    out = tmp_path / "new" / "policy.safetensors"
    assert main([f"data={recorded}", *QUICK, f"out={out}", "prompt.row=17"]) == 0
    printed = capsys.readouterr().out
    assert "prompt" in printed and "the data" in printed and "preferences" not in printed
    found = {}
    for prompt, options in (("goal", {"place": [1.0, 0.0, 0.0]}), ("task", {})):
        config = OfflineConfig([recorded], algo="hilp", policy=str(out), prompt=prompt, prompt_options=options)
        config.episodes = 1
        found[prompt] = run(config)
    assert found["goal"]["labels"] == {} and found["goal"]["notes"] == []
    assert found["task"]["labels"]["fit"] <= 1 and len(found["task"]["notes"]) == (found["task"]["labels"]["fit"] < 0.1)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("goal", {"row": 400}, r"prompt\.row=400 is not among the 400 rows of the data"),
        ("goal", {"place": [1.0]}, r"prompt\.place=\[1\.0\] has not the 3 numbers of an observation"),
        ("goal", {"rows": 4}, r"prompt\.rows= is none of a goal's options"),
        ("clip", {"goal": "upright"}, r"prompt=clip reads frame, which the data lacks; record with frames=\d+"),
        ("bradley_terry", {}, r"prompt=bradley_terry is worth the same in every recorded transition"),
        ("clap", {}, r"clap"),
    ],
)
def test_prompts_that_are_none_are_refused(recorded, tmp_path_factory, prompt, options, words):
    config = main.parse([f"data={recorded}", *QUICK, "steps=1", "reward.steps=1"])
    config.prompt, config.prompt_options = prompt, options
    with pytest.raises((UsageError, ValueError), match=words):
        run(config)


def test_prompts_are_for_hilp_alone():
    with pytest.raises(UsageError, match=r"prompt= and policy= do not go with algo=iql; give algo=hilp"):
        OfflineConfig(["x"], prompt="task")
