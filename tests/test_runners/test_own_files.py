"""Rewards and agents of the user's own, by file and class: `reward=novelty:Far agent=mine:Slow`."""

import re
import sys
from pathlib import Path

import pytest

import agents
import rewards
from runners import evaluate
from runners import list as listing
from runners.cli.compose import compose
from runners.export.card import settings
from runners.run.config import UsageError, from_dict, load, to_dict
from runners.train import main

README = (Path(__file__).parents[2] / "README.md").read_text()
QUICK = ["total_timesteps=256", "n_envs=2", "agent.n_steps=32", "agent.batch_size=32", "eval_episodes=1", "video=false"]
AGENT = '''
from dataclasses import dataclass
from agents.ppo.agent import PPO, PPOConfig
from lodestar.settings import setting

@dataclass
class SlowConfig(PPOConfig):
    learning_rate: float = setting(1e-4)

class Slow(PPO):
    """PPO with a small step."""

    Config = SlowConfig
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the README's novelty.py and an agent, in which commands are called."""
    blocks = re.findall(r"```python\n(# novelty\.py.*?)```", README, re.DOTALL)
    (tmp_path / "novelty.py").write_text("\n\n".join(blocks))
    (tmp_path / "mine.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for table in (rewards.table, agents.table):
        monkeypatch.setattr(table, "registered", {})
        monkeypatch.setattr(table, "files", {})
    yield tmp_path
    for name in ("novelty", "mine"):
        sys.modules.pop(name, None)


def forget():
    """As in the next process."""
    for table in (rewards.table, agents.table):
        table.registered.clear()
        table.files.clear()
    for name in ("novelty", "mine"):
        sys.modules.pop(name, None)


def test_a_run_with_both_is_trained_refused_without_trust_and_evaluated_with_it(here, capsys):
    own = ["reward=novelty:Far", "reward.far.power=2", "agent=mine:Slow"]
    assert main(["env=CartPole-v1", *own, *QUICK, "run_dir=run"]) == 0
    assert "reward: task + far" in capsys.readouterr().out
    assert "reward/far" in (here / "run" / "metrics.csv").read_text()
    forget()
    assert evaluate.main(["run=run", "episodes=1", "video=false"]) == 2
    error = capsys.readouterr().err
    assert "reward=novelty:Far, which is no name in a table" in error and "add trust=true" in error
    assert "novelty" not in sys.modules
    assert evaluate.main(["run=run", "episodes=1", "video=false", "trust=true"]) == 0
    assert "agent slow, reward task+far" in capsys.readouterr().out
    forget()
    with pytest.raises(UsageError, match=r"it names novelty:Far; add trust=true"):
        load(here / "run" / "config.yaml")
    forget()
    assert main(["env=CartPole-v1", *own, *QUICK, "run_dir=run"]) == 0
    assert "is finished already" in capsys.readouterr().out


def test_options_are_those_of_its_config_and_mistakes_are_sentences(here):
    config, _ = compose(["env=CartPole-v1", "reward=[task,novelty:Far]", "reward.far.power=3", "agent=mine:Slow"])
    assert config.reward["far"].power == 3 and config.agent.learning_rate == 1e-4
    assert config.folder().name == "slow-task+far"
    assert to_dict(config)["code"] == {"reward.far": "novelty:Far", "agent.slow": "mine:Slow"}
    assert from_dict(to_dict(config)).key() == config.key()
    assert {"reward=[task,novelty:Far]", "agent=mine:Slow"} <= {*settings(config)}
    (here / "broken.py").write_text("import nothing_of_this_name")
    for given, words in (
        ("reward.far.power=-1", r"reward\.far\.power=-1.* is out of range"),
        ("reward.novelty.power=2", r"reward\.novelty\.power=2 is unknown; did you mean reward\.far\.power"),
        ("reward=novelty:Fra", r"has no class 'Fra'; did you mean novelty:Far\?"),
        ("reward=novelti:Far", r"there is no module 'novelti'; call the command in the folder of novelti\.py"),
        ("reward=novelty.py:Far", r"is no module:Class; give novelty:Far"),
        ("reward=broken:Far", r"importing broken failed: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("reward=mine:Slow", r"mine:Slow is no reward: it has no `score`; extend rewards\.base"),
        ("agent=novelty:Far", r"novelty:Far is no agent: it has no `driver`; extend agents\.base"),
    ):
        argv = {a.partition("=")[0]: a for a in ("env=CartPole-v1", "reward=novelty:Far", given)}.values()
        with pytest.raises(UsageError, match=words):
            compose([*argv])


def test_its_options_are_listed(here, capsys):
    assert listing.main(["novelty:Far"]) == 0
    assert "reward.far.power=1.0" in capsys.readouterr().out


def test_a_class_called_like_a_built_in_is_refused(here):
    (here / "mine.py").write_text("from rewards.exploration.rnd import RND as Base\nclass RND(Base): ...\n")
    with pytest.raises(UsageError, match=r"mine:RND would be called 'rnd', as another reward is"):
        compose(["env=CartPole-v1", "reward=mine:RND"])


def test_an_agent_of_a_program_is_registered_as_a_reward_is(here):
    sys.path.append(str(here))
    import mine

    agents.register("slow", mine.Slow)
    assert agents.get("slow") is mine.Slow and "slow" in agents.names()
    with pytest.raises(ValueError, match="another agent is named 'ppo'"):
        agents.register("ppo", mine.Slow)
