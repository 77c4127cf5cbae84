"""A policy by a text: each kind that is read, a residual run that begins as its base, and what is refused."""

import numpy as np
import pytest
from gymnasium.envs.registration import load_env_creator
from stable_baselines3 import PPO, SAC

from agents.offline.cloning import Cloning, CloningConfig
from envs.exploration.peg import demonstrator
from envs.make import make
from envs.recording import load as recorded
from runners.record import main as record
from runners.run.config import UsageError
from runners.run.policies import OFFLINE, load
from runners.train import main as train

PEG, SCRIPT = "lodestar/Peg-v0", "envs.exploration.peg:demonstrator"


@pytest.fixture
def spaces():
    env = make(PEG)
    return env.observation_space, env.action_space


@pytest.mark.parametrize("algorithm", [PPO, SAC])
def test_a_model_of_stable_baselines3_acts_as_it_did_and_nothing_in_it_is_executed(algorithm, spaces, tmp_path):
    env = make(PEG, seed=0)
    model = algorithm("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, seed=0)
    model.save(tmp_path / "model.zip")
    obs, _ = env.reset(seed=0)
    found = load(str(tmp_path / "model.zip"), *spaces).predict(obs[None], deterministic=True)[0]
    np.testing.assert_allclose(found, model.predict(obs[None], deterministic=True)[0], atol=1e-6)
    with pytest.raises(UsageError, match=r"model.zip cannot be read here .*size mismatch.*; in Python, give make"):
        load(str(tmp_path / "model.zip"), make("Pendulum-v1").observation_space, make("Pendulum-v1").action_space)


def test_demonstrations_are_cloned_and_a_residual_run_begins_as_its_base(spaces, tmp_path, capsys):
    demos = tmp_path / "demos.safetensors"
    assert record([f"env={PEG}", f"policy={SCRIPT}", "steps=300", "noise=0.1", f"out={demos}"]) == 0
    batch, meta = recorded(demos)
    assert meta["policy"] == SCRIPT and meta["mean_return"] == 1.0
    alike = np.isclose(batch.action, demonstrator(batch.obs), atol=1e-6).all(1)
    assert 0.8 < alike.mean() < 1
    base = tmp_path / "cloned.safetensors"
    model = Cloning(CloningConfig(net_arch=[8], chunk=2), *spaces, batch)
    model.learn(5)
    model.save(str(base))
    assert load(str(base), *spaces).predict(batch.obs[:3], deterministic=True)[0] == pytest.approx(
        model.predict(batch.obs[:3], deterministic=True)[0]
    )
    run = tmp_path / "run"
    options = "total_timesteps=128 n_envs=4 agent.n_steps=16 agent.learning_rate=1e-9"
    options += " agent.zero_last=true agent.log_std=-1"
    arguments = [f"env={PEG}", f"env.base={base}", "env.base_scale=0.2", *options.split(), "preset=none"]
    assert train([*arguments, "eval_episodes=3", "video=false", "control=none", "logger=[]", f"run_dir={run}"]) == 0
    assert "env.base" in (run / "config.yaml").read_text() or "base:" in (run / "config.yaml").read_text()
    from runners.run.build import load_run
    from runners.run.progress import read_csv

    assert all(0 <= float(row["residual/clipped"]) <= 1 for row in read_csv(run / "metrics.csv"))
    agent = load_run(run, trust=True).model
    assert np.abs(agent.predict(np.zeros((2, 9), np.float32), deterministic=True)[0]).max() < 1e-4
    with pytest.raises(UsageError, match=r"the file .*cloned.safetensors, which would be read; add trust=true"):
        load_run(run)


@pytest.mark.parametrize("kind", OFFLINE)
def test_what_was_learned_from_a_recording_alone_is_read_by_the_class_that_its_file_names(kind, spaces, tmp_path):
    agent = load_env_creator(OFFLINE[kind])
    model = agent(agent.Config(net_arch=[8]), *spaces, seed=0)
    model.save(str(tmp_path / "policy.safetensors"))
    again, obs = load(str(tmp_path / "policy.safetensors"), *spaces), np.ones((3, *spaces[0].shape), np.float32)
    assert type(again) is agent
    np.testing.assert_array_equal(again.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])


def test_a_text_that_names_no_policy_is_a_sentence(spaces, tmp_path):
    with pytest.raises(UsageError, match=r"nowhere is no policy .*; give a run's folder, a \*.safetensors"):
        load("nowhere", *spaces)
    with pytest.raises(UsageError, match=r"my_script:act is no policy \(No module named 'my_script'\)"):
        load("my_script:act", *spaces)
    (tmp_path / "a.zip").write_bytes(b"no zip")
    with pytest.raises(UsageError, match=r"a.zip cannot be read here \(File is not a zip file\)"):
        load(str(tmp_path / "a.zip"), *spaces)


@pytest.fixture
def own_policies(tmp_path, monkeypatch):
    """A folder with functions of a user, of which only `lean` is a policy of CartPole."""
    (tmp_path / "own_policies.py").write_text(
        "import numpy as np\n"
        "lean = lambda obs: (obs[:, 2] > 0).astype(int)\n"
        "single = lambda obs: int(obs[2] > 0)\n"
        "number = lambda obs: 1\n"
        "wide = lambda obs: np.zeros((len(obs), 3))\n"
        "constant = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def record_by(policy):
    return record(["env=CartPole-v1", f"policy={policy}", "steps=40", "out=found.safetensors"])


def test_a_function_of_the_user_records_what_it_does(own_policies):
    assert record_by("own_policies:lean") == 0
    batch, _ = recorded(own_policies / "found.safetensors")
    np.testing.assert_array_equal(batch.action, batch.obs[:, 2] > 0)


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("own_policies:single", "failed on observations (1, 4): IndexError: index 2 is out of bounds"),
        ("own_policies:number", "returned () for observations (1, 4)"),
        ("own_policies:wide", "returned (1, 3) for observations (1, 4)"),
        ("own_policies:constant", "3 is no function"),
    ],
)
def test_a_function_that_is_no_policy_is_refused_in_a_sentence_that_says_what_a_policy_is(
    policy, sentence, own_policies, capsys
):
    assert record_by(policy) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error and "\n" not in error
    assert "a policy takes a batch of observations (N, ...), as in obs[:, 0], and returns actions (N,)" in error


@pytest.mark.parametrize("policy", ["own_policies.py:lean", "./own_policies:lean"])
def test_a_path_as_policy_names_the_module(policy, own_policies, capsys):
    assert record_by(policy) == 2
    assert f"{policy} is no module:function; give own_policies:lean" in capsys.readouterr().err
