"""`init_from=` of another agent's run or file: what is taken, and one sentence for what does not fit."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_offline import record_of
from test_offline_rewards import QUICK

from envs.recording import save
from runners.cli.compose import compose
from runners.offline import main
from runners.run import policies
from runners.run.build import build, load_run
from runners.run.config import UsageError
from runners.run.policies import initialise

SAC = ["env=Pendulum-v1", "reward=task", "agent=dyna", "agent.preset=sac", "agent.net_arch=[8]"]


def begin(*arguments):
    """The sentence about what was taken, and the agent."""
    config, _ = compose(list(arguments))
    parts = build(config)
    sentence = initialise(config, parts) if config.init_from else ""
    return sentence, parts.model


def modes(agent):
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    return agent.predict(obs, deterministic=True)[0]


@pytest.fixture
def iql_run(tmp_path, monkeypatch):
    """A run of IQL on random play on a pendulum, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    save("walked.safetensors", record_of("Pendulum-v1", steps=240), {"env": "Pendulum-v1"})
    assert main(["data=walked.safetensors", *QUICK, "reward=task", "steps=20", "run_dir=iql"]) == 0
    return Path("iql")


def test_sac_begins_with_a_run_of_iql_and_with_its_file(iql_run):
    iql = load_run(iql_run).model
    sentence, agent = begin(*SAC, f"init_from={iql_run}")
    assert sentence == "from step 20 of iql: actor, critics"
    np.testing.assert_allclose(modes(agent), modes(iql), atol=1e-5)
    iql.save("iql.safetensors")
    sentence, agent = begin(*SAC, "agent.critics=3", "init_from=iql.safetensors")
    assert sentence == "from iql.safetensors: actor"
    np.testing.assert_allclose(modes(agent), modes(iql), atol=1e-5)
    agent.save("sac.safetensors")
    sentence, again = begin(*SAC, "agent.critics=3", "init_from=sac.safetensors")
    assert sentence == "from sac.safetensors: agent"
    np.testing.assert_array_equal(modes(again), modes(agent))


def test_a_new_run_keeps_the_entropy_weight_that_its_settings_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, entropy in (("auto", "auto_0.3"), ("zero", "0")):
        _, agent = begin(*SAC, f"agent.entropy={entropy}")
        agent.save(f"{name}.safetensors")
    for entropy, source, alpha in (
        ("0.05", "auto", 0.05),
        ("auto_0.2", "auto", 0.2),
        ("auto", "auto", 0.3),
        # A weight of 0 could never be learned.
        ("auto", "zero", 1.0),
    ):
        _, agent = begin(*SAC, f"agent.entropy={entropy}", f"init_from={source}.safetensors")
        assert float(agent.learner.alpha) == pytest.approx(alpha)


def test_what_does_not_fit_is_one_sentence(iql_run):
    load_run(iql_run).model.save("iql.safetensors")
    for arguments, words in (
        ([*SAC, "agent.net_arch=[9]", "init_from=iql"], r"give agent.net_arch=\[8\] agent.activation=relu"),
        (["env=Pendulum-v1", "agent=ppo", "init_from=iql"], "with agent.squash=false"),
        (
            ["env=CartPole-v1", "agent=ppo", "init_from=iql"],
            "init_from=iql has observations in Box.*, and this run has Box",
        ),
        (["env=CartPole-v1", "agent=ppo", "init_from=iql.safetensors"], "does not fit these spaces"),
        (["env=Pendulum-v1", "agent=sac", "init_from=iql"], "has agent=iql, not sac; give init=rewards"),
        ([*SAC, "init=rewards", "init_from=iql.safetensors"], "give a run's folder for init=rewards"),
        ([*SAC, "init_from=walked.safetensors"], "holds no policy of IQL"),
        ([*SAC, "init_from=nowhere"], "is no run's folder"),
    ):
        with pytest.raises(UsageError, match=words):
            begin(*arguments)


def test_a_policy_of_stable_baselines3_is_none_to_begin_with(iql_run, monkeypatch):
    monkeypatch.setattr(policies, "load_run", lambda source, trust: SimpleNamespace(model=object()))
    with pytest.raises(UsageError, match="is a run of Stable-Baselines3, whose policy no other agent begins with"):
        begin(*SAC, "init_from=iql")
