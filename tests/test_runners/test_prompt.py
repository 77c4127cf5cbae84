"""Goals and rewards as prompts of one policy: the command, and what is refused in a sentence."""

import pytest

from runners.offline import OfflineConfig, main, run
from runners.record import main as record
from runners.run.config import UsageError

QUICK = ["algo=hilp", "steps=20", "episodes=1", "reward.steps=20", "reward.hidden=16", "agent.net_arch=[16]"]


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
    for prompt, options in (("goal", {"place": [1.0, 0.0, 0.0]}), ("task", {})):
        config = OfflineConfig([recorded], algo="hilp", policy=str(out), prompt=prompt, prompt_options=options)
        config.episodes = 1
        assert run(config)["arms"].keys() == {"prompt", "random", "the data"}


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
