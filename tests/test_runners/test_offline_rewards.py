"""`runners.offline ... reward=`: a run like any other, whose transitions are rated by the mix."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_offline import record_of

import lodestar as ld
from envs.datasets.recordings import read_recordings, read_source
from envs.make import make
from envs.recording import save
from runners.cli.compose import compose
from runners.offline import main, train_arguments
from runners.run.build import load_checkpoint, load_run
from runners.run.config import UsageError

QUICK = ["agent.net_arch=[8]", "eval_episodes=1", "eval_every=0", "video=false", "control=none", "logger=[]"]


@pytest.fixture
def walked(tmp_path, monkeypatch):
    """A file of random play on a pendulum, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    batch = record_of("Pendulum-v1", steps=240)
    save("walked.safetensors", batch, {"env": "Pendulum-v1"})
    return batch


def offline(*arguments):
    return main(["data=walked.safetensors", *QUICK, *arguments])


def test_a_run_with_a_reward_has_a_folder_that_every_command_reads(walked, capsys):
    assert offline("reward=rnd", "steps=20", "run_dir=one", "fitted=30") == 0
    output = capsys.readouterr().out
    assert "iql on data=walked.safetensors of Pendulum-v1, 20 minibatches" in output
    assert "value by the recording alone (discounted): " in output
    result = json.loads(Path("one/result.json").read_text())["this run"]
    # By the task's rewards, which are below 0, and not by the bonus.
    assert result["episodes"] == 1 and result["fitted_value"] < 0
    run = ld.load("one")
    action, _ = run.policy.predict(np.zeros(3, np.float32))
    assert action.shape == (1,)
    header = Path("one/metrics.csv").read_text().splitlines()[0]
    assert "reward/rnd_corr" in header and "train/q_loss" in header and "eval/return" not in header


def test_more_minibatches_continue_the_same_run_to_the_same_weights(walked):
    options = ("reward=task", "seed=3")
    assert offline(*options, "steps=30", "run_dir=halves") == 0
    assert offline(*options, "steps=60", "run_dir=halves") == 0
    assert offline(*options, "steps=60", "run_dir=whole") == 0
    states = [load_checkpoint(Path(name))[0]["agent"]["modules"]["policy"]["net"] for name in ("halves", "whole")]
    assert states[0].keys() == states[1].keys()
    for name, weights in states[0].items():
        assert torch.equal(weights, states[1][name]), name


@pytest.mark.parametrize("algo", ["cloning", "rcsl", "dt", "dyna"])
def test_each_algorithm_learns_from_the_ratings_and_is_read_back(algo, walked, short_fits):
    options = {"cloning": [], "rcsl": [], "dt": ["agent.width=8", "agent.layers=1", "agent.context=4"]}
    small = ["agent.members=1", "agent.model_hidden=[8]", "agent.model_steps=5", "agent.rollouts_per_step=1"]
    assert offline("reward=task", f"algo={algo}", "steps=10", "run_dir=one", *options.get(algo, small)) == 0
    trained = load_run(Path("one"))
    action, _ = trained.model.predict(np.zeros((2, 3), np.float32))
    assert action.shape == (2, 1) and trained.step == 10


def test_a_policy_learns_what_the_reward_says_and_not_what_the_task_says(walked, monkeypatch):
    """The reward of a file of the user's own is for turning left, whatever else happens."""
    Path("turn_left.py").write_text(
        "from lodestar import Reward\n\n\nclass TurnLeft(Reward):\n"
        "    requires = frozenset({'action'})\n"
        "    role = 'goal'\n\n"
        "    def score(self, batch, memory=None):\n"
        "        return -batch.action[:, 0]\n"
    )
    monkeypatch.syspath_prepend(".")
    options = ("steps=400", "agent.learning_rate=0.01", "agent.beta=10", "run_dir=one")
    assert offline("reward=turn_left:TurnLeft", *options) == 0
    policy = ld.load("one", trust=True).policy
    actions, _ = policy.predict(walked.obs[:100])
    assert actions.mean() < -1


def test_several_recordings_are_joined_and_an_episode_that_was_cut_ends(walked):
    save("cut.safetensors", walked[:150], {"env": "Pendulum-v1"})
    names = ["cut.safetensors", "walked.safetensors"]
    assert read_source(names) == ("Pendulum-v1", {})
    env = make("Pendulum-v1")
    batch = read_recordings(names, env)
    env.close()
    assert len(batch.step) == 390
    # The first file stops in an episode, as the second does after one whole one.
    assert np.flatnonzero(batch.truncated).tolist() == [149, 349, 389]
    save("other.safetensors", walked, {"env": "CartPole-v1"})
    with pytest.raises(ValueError, match=r"cut.safetensors,other.safetensors holds recordings of different"):
        read_source(["cut.safetensors", "other.safetensors"])


def test_what_a_run_with_a_reward_cannot_take_is_a_sentence(walked):
    with pytest.raises(UsageError, match=r"judge.mistakes= is for the table of arms.*reward=bradley_terry"):
        train_arguments(["data=x", "reward=clip", "judge.mistakes=0.1"])
    with pytest.raises(UsageError, match=r"algo=cpl learns from no reward; give iql, dyna"):
        train_arguments(["data=x", "reward=clip", "algo=cpl"])
    assert train_arguments(["data=x", "reward=clip"])[-2:] == ["total_timesteps=10000", "agent=iql"]
    with pytest.raises(UsageError, match=r"agent=iql learns from recordings alone; name some, as in data="):
        compose(["env=Pendulum-v1", "agent=iql"])
    with pytest.raises(UsageError, match=r"agent=ppo learns in an environment, not from data="):
        compose(["data=walked.safetensors"])
    with pytest.raises(UsageError, match=r"starts=variance is for agents that act while they learn"):
        compose(["data=walked.safetensors", "agent=iql", "starts=variance"])
    with pytest.raises(UsageError, match=r"'nothing' is no file, nor a recording that ships"):
        compose(["data=nothing", "agent=iql"])


def test_a_recording_without_rewards_of_the_task_says_nothing_of_its_return(walked, capsys):
    save("free.safetensors", walked.replace(reward=np.zeros_like(walked.reward)), {"env": "Pendulum-v1"})
    assert main(["data=free.safetensors", *QUICK, "reward=rnd", "steps=20", "fitted=30"]) == 2
    assert "all rewards of the recording are 0; leave it out" in capsys.readouterr().err


def test_the_environment_and_evaluations_are_those_of_the_recording(walked):
    config, _ = compose(["data=walked.safetensors", "agent=iql", "total_timesteps=1000"])
    assert config.env == "Pendulum-v1" and config.eval_every == 200
    assert compose(["data=walked.safetensors", "agent=iql", "eval_every=7"])[0].eval_every == 7
    save("code.safetensors", walked, {"env": "my_file:Id-v0"})
    with pytest.raises(UsageError, match=r"data=code.safetensors names .*my_file.*trust=true"):
        compose(["data=code.safetensors", "agent=iql"])


def test_frames_that_are_missing_are_named_before_training(walked, capsys):
    assert offline("reward=clip", "steps=10") == 2
    assert "the reward clip reads frame, which the recording lacks" in capsys.readouterr().err
