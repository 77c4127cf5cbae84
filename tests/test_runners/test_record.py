"""Recording from the command line: who acts, what is kept, what is refused."""

import numpy as np
import pytest
from gymnasium import spaces

from envs import recording
from envs.make import make
from envs.snapshots.s3rl import Snapshots
from envs.transitions import Transitions
from runners.record import RecordConfig, main, noisy_policy, record, whole_episodes


def test_a_random_policy_is_recorded_with_what_was_asked_for(tmp_path, capsys):
    path = tmp_path / "a.safetensors"
    arguments = "env=MiniGrid-Empty-5x5-v0 steps=30 frames=16 text=true seed=3 env.max_episode_steps=10"
    assert main([*arguments.split(), f"out={path}"]) == 0
    batch, meta = recording.load(path)
    assert batch.shape == (30,) and batch.frame.shape == (30, 16, 16, 3) and isinstance(batch.text[0], str)
    assert np.diff(np.flatnonzero(batch.step == 0)).max() <= 10
    assert meta["env"] == "MiniGrid-Empty-5x5-v0" and meta["env_options"] == {"max_episode_steps": 10}
    assert f"{path}: 30 transitions of MiniGrid-Empty-5x5-v0" in capsys.readouterr().out
    again = tmp_path / "b.safetensors"
    main([*arguments.split(), f"out={again}"])
    np.testing.assert_array_equal(recording.load(again)[0].action, batch.action)


def test_a_run_is_recorded_in_its_own_environment(tmp_path):
    from runners.train import main as train

    run = tmp_path / "run"
    options = "env=CartPole-v1 total_timesteps=256 n_envs=1 agent.n_steps=64 max_episode_steps=20 video=false"
    assert train([*options.split(), "eval_episodes=0", "control=none", f"run_dir={run}"]) == 0
    meta = record(RecordConfig(policy=str(run), steps=60, out=str(tmp_path / "a.safetensors")))
    assert meta["env"] == "CartPole-v1" and meta["env_options"] == {"max_episode_steps": 20}
    assert recording.load(tmp_path / "a.safetensors")[0].step.max() <= 19


class Constant:
    action_space = spaces.Discrete(1000)

    def predict(self, obs, state, episode_start, deterministic):
        assert deterministic
        return np.zeros(len(obs), int), (0 if state is None else state + 1)


def test_noise_is_the_share_of_random_actions_and_the_state_of_a_policy_is_handed_on():
    space = spaces.Discrete(1000)
    space.seed(0)
    act = noisy_policy(Constant(), space, 0.25, seed=0)
    actions = np.concatenate([act(np.zeros((4, 1)), np.zeros(4, bool)) for _ in range(500)])
    assert (actions > 0).mean() == pytest.approx(0.25, abs=0.03)
    assert (noisy_policy(Constant(), space, 0.0, seed=0)(np.zeros((9, 1)), np.zeros(9, bool)) == 0).all()


def test_states_that_were_met_are_kept_for_a_students_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("runners.record.MAX_RECORDED_STATES", 10)
    files = {name: tmp_path / f"{name}.safetensors" for name in ("out", "snapshots")}
    assert main(["env=CartPole-v1", "steps=30", *(f"{name}={file}" for name, file in files.items())]) == 0
    assert f"starts={files['snapshots']}" in capsys.readouterr().out
    kept, batch = Snapshots.load(files["snapshots"]), recording.load(files["out"])[0]
    np.testing.assert_array_equal(kept.observations, batch.obs[::3])
    states = [np.float32(state["variables"]["state"]) for state in kept.states]
    np.testing.assert_array_equal(states, batch.obs[::3])
    student = make("CartPole-v1", starts=str(files["snapshots"]))
    assert (student.reset(seed=0)[0] == kept.observations).all(axis=1).any()
    with pytest.raises(ValueError, match="has no state that can be taken"):
        record(RecordConfig(env="lodestar/ProbeJoint-v0", steps=5, out=str(tmp_path / "a"), snapshots="b"))


def test_only_whole_episodes_have_a_return():
    step = np.array([3, 4, 0, 1, 2, 0, 1])
    truncated = np.array([False, True, False, False, True, False, False])
    none, reward = np.zeros(7, bool), np.arange(7, dtype=np.float32)
    scores = whole_episodes(Transitions(reward, reward, reward, reward, none, truncated, ~none, step))
    assert scores.returns == [2 + 3 + 4] and scores.lengths == [3]


def test_arguments_become_a_configuration_of_the_right_types():
    config = main.parse(["env=a", "out=7", "steps=1e3", "noise=0", "text=true", "env.size=8"])
    assert (config.out, config.steps, config.noise, config.text) == ("7", 1000, 0.0, True)
    assert config.env_options == {"size": 8} and isinstance(config.steps, int) and isinstance(config.noise, float)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("env=a", r"out= is missing"),
        ("out=a", r"env= is missing"),
        ("env=a out=a noise=2", r"noise=2.0 is out of range; give a number in \[0, 1\]"),
        ("env=a out=a step=3", r"key=step is unknown; did you mean steps\?"),
        ("env=a out=a steps=many", r"steps=many is not a whole number"),
        ("env=a out=a text=7", r"text=7 is not true or false"),
        ("env=a out=a agent.x=7", r"key=agent.x is unknown"),
        ("env=a fron=a", r"key=fron is unknown; did you mean from\?"),
        ("from=a snapshots=b", r"snapshots= is of a policy that acts, and from=a was recorded"),
        ("from=a policy=b", r"policy= is of a policy that acts, and from=a was recorded; leave it out"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        main.parse(arguments.split())


def test_the_command_explains_itself_and_answers_mistakes_with_a_sentence(capsys):
    assert main(["--help"]) == 0 and "policy=" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["env=Pendulum-v1", "out=x", "steps=0"]) == 2
    assert capsys.readouterr().err == "error: steps=0 is out of range; give a number at least 1\n"
    assert main(["policy=nowhere", "out=x"]) == 2
    assert "nowhere is no run's folder" in capsys.readouterr().err


def test_the_replay_of_a_run_and_a_pickle_become_recordings(tmp_path, capsys):
    from runners.train import main as train

    off = [
        "video=false",
        "eval_episodes=0",
        "control=none",
        "total_timesteps=128",
        "max_episode_steps=30",
        "preset=none",
    ]
    out = tmp_path / "a.safetensors"
    for agent, options in (("dqn", []), ("dyna", ["agent.learning_starts=1000"])):
        run = tmp_path / agent
        assert train(["env=CartPole-v1", f"agent={agent}", "n_envs=2", f"run_dir={run}", *off, *options]) == 0
        assert main([f"from={run}", f"out={out}"]) == 0
        batch, meta = recording.load(out)
        assert batch.shape == (128,) and meta["env_options"] == {"max_episode_steps": 30}
        assert meta["env"] == "CartPole-v1" and meta["episodes"] == batch.ended.sum() > 2
        assert (batch.reward == 1).all() and set(batch.action) == {0, 1} and batch.action.dtype == np.int64
        continues = ~batch.ended[:-1] & (batch.step[1:] > 0)
        np.testing.assert_array_equal(batch.next_obs[:-1][continues], batch.obs[1:][continues])
        assert (np.abs(batch.obs[batch.step == 0]) <= 0.05).all() and batch.step.max() < 30
    assert main([f"from={run}", f"out={out}", "env=Pendulum-v1"]) == 2
    assert (
        "observations recorded, of shape (4,) and type float32, are not those of Pendulum-v1" in capsys.readouterr().err
    )
    (tmp_path / "buffer.pkl").write_bytes(b"\x80\x04}.")
    assert main([f"from={tmp_path}/buffer.pkl", f"out={out}"]) == 2
    assert "buffer.pkl is a pickle, which runs whatever code is in it; add trust=true" in capsys.readouterr().err
    assert main([f"from={tmp_path}/buffer.pkl", f"out={out}", "trust=true"]) == 2
    assert "holds a dict, not a replay buffer" in capsys.readouterr().err
