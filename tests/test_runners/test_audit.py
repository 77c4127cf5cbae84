import csv
import json

import gymnasium as gym
import numpy as np
import pytest

from runners.audit.__main__ import logged_folders, main
from runners.audit.page import write
from runners.audit.recorder import AuditedStep, Recorder, stream_metrics
from runners.audit.streams import OneStep, RecordTask, StreamReader
from runners.audit.verdict import ALARM, SOUND, UNKNOWN, judge
from runners.audit.wrapper import audit
from runners.run.config import UsageError

ROWS = 20
FLAT = np.zeros(ROWS)
UP = np.linspace(0.0, 1.0, ROWS)
DOWN = np.linspace(1.0, 0.0, ROWS)


def write_run(folder, task, learned, untrained, trained, share=0.0, control=None):
    """A run's folder with rows of these returns, and closing evaluations around these means."""
    folder.mkdir(exist_ok=True)
    header = "step,rollout/ep_rew_mean,rollout/ep_learned_mean,reward/task_share,reward/rnd_share,reward/rnd_corr"
    lines = [header]
    for row in range(ROWS):
        lines.append(f"{1000 * (row + 1)},{task[row]},{learned[row]},{1 - share},{share},0.25")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    spread = np.tile([-0.01, 0.01], 10)
    scores = {"random": untrained, "this run": trained, "control: clip.weights=untrained": control}
    result = {name: {"returns": list(mean + spread)} for name, mean in scores.items() if mean is not None}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.mark.parametrize(
    ("task", "learned", "untrained", "trained", "share", "control", "state"),
    [
        (UP, 2 * UP, 0.0, 1.0, 0.1, None, SOUND),
        # It fell while the learned return rose.
        (DOWN, UP, 0.0, 0.1, 0.1, None, ALARM),
        # The task did not move, what the agent learns from did.
        (FLAT, UP, 0.0, 0.0, 0.1, None, ALARM),
        # Nothing rose, but the agent lives on the bonus.
        (FLAT, 1 + FLAT, 0.0, 0.0, 0.9, None, ALARM),
        (FLAT, 1 + FLAT, 0.0, 0.0, 0.1, None, UNKNOWN),
        # The agent's reward was the task's.
        (UP, UP, 0.0, 1.0, 0.0, None, UNKNOWN),
        # An untrained model taught as much, or not.
        (UP, 2 * UP, 0.0, 1.0, 0.1, 0.9, ALARM),
        (UP, 2 * UP, 0.0, 1.0, 0.1, 0.5, SOUND),
    ],
)
def test_the_verdict_follows_both_returns(tmp_path, task, learned, untrained, trained, share, control, state):
    verdict = judge(write_run(tmp_path / "run", task, learned, untrained, trained, share, control))
    assert verdict.state == state, verdict.reasons


def test_a_fall_that_came_back_is_sound_and_is_told(tmp_path):
    task = np.concatenate([np.linspace(0.4, 0.0, 12), np.linspace(0.1, 1.0, 8)])
    verdict = judge(write_run(tmp_path / "run", task, UP, 0.0, 1.0))
    assert verdict.state == SOUND
    assert verdict.alarm_steps[0] == 10_000
    assert "it came back" in verdict.reasons[-1]


def test_the_command_says_it_by_its_exit_code(tmp_path, capsys):
    sound = write_run(tmp_path / "a", UP, 2 * UP, 0.0, 1.0)
    hacked = write_run(tmp_path / "b", FLAT, UP, 0.0, 0.0)
    unknown = write_run(tmp_path / "c", UP, UP, 0.0, 1.0)
    assert [main([str(folder)]) for folder in (sound, hacked, unknown)] == [0, 1, 9]
    assert main([str(tmp_path)]) == 1
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    assert "holds no metrics.csv" in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 2


def test_controls_are_no_runs_of_their_own(tmp_path):
    run = write_run(tmp_path / "run", UP, 2 * UP, 0.0, 1.0)
    (run / "control" / "run").mkdir(parents=True)
    (run / "control" / "run" / "metrics.csv").write_text("step\n")
    assert logged_folders(tmp_path) == [run]
    with pytest.raises(UsageError, match=r"holds no metrics\.csv"):
        judge(tmp_path)


def test_the_page_shows_verdict_streams_and_picture(tmp_path):
    page = write(judge(write_run(tmp_path / "run", FLAT, UP, 0.0, 0.0, share=0.9))).read_text()
    assert '<b style="color:#b5483f">alarm</b>' in page
    assert '<td>rnd</td><td class="n">90%</td><td class="n">90%</td><td class="n">0.25</td>' in page
    assert "data:image/png;base64" in page


def test_metrics_of_streams_have_the_values_by_hand():
    task = np.array([0.0, 1.0])
    steps = []
    for near in ([1.0, 3.0], [2.0, 0.0]):
        parts = {"near": np.array(near)}
        rewards = np.array(near) + task
        steps.append(AuditedStep(task, rewards, np.zeros(2, bool), parts, np.array([True, True]), updated=False))
    metrics = stream_metrics(steps)
    # |near| averages 1.5 and what it leaves, the task, 0.5.
    assert metrics["reward/near_share"] == 0.75
    assert metrics["reward/rest_share"] == 0.25
    assert metrics["reward/rest_corr"] == pytest.approx(1.0)
    assert metrics["reward/near_corr"] == pytest.approx(np.corrcoef([1, 3, 2, 0], [0, 1, 0, 1])[0, 1])
    assert metrics["reward/total"] == 2.0


def test_episodes_have_both_returns_and_rows_that_reset_do_not_count(tmp_path):
    recorder = Recorder(tmp_path / "audit", 1, 10)
    for step in range(7):
        ended = np.array([step in (2, 6)])
        valid = np.array([step != 3])
        recorder.add(AuditedStep(np.ones(1), np.full(1, 2.0), ended, {}, valid, updated=step > 2))
    recorder.close()
    with (tmp_path / "audit" / "episodes.csv").open() as file:
        episodes = [list(row.values()) for row in csv.DictReader(file)]
    assert episodes == [["3", "3", "6", "3", "0"], ["6", "3", "6", "3", "1"]]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    with pytest.raises(ValueError, match="a folder of its own"):
        Recorder(tmp_path / "run", 1, 10)


def test_a_task_that_is_not_there_is_refused_with_what_is():
    step = OneStep(None, 0, None, {"success": 1.0, "words": "x"})
    with pytest.raises(ValueError, match=r"task=KEY \(the info has success\)"):
        StreamReader("", None).task(step)
    assert StreamReader("success", None).task(step) == 1.0
    assert StreamReader(lambda obs, action, next_obs, info: 3 * info["success"], None).task(step) == 3.0
    with pytest.raises(ValueError, match="neither a key"):
        StreamReader(3, None)
    with pytest.raises(ValueError, match=r"streams\['a'\]"):
        StreamReader("", {"a": 3})


def test_terms_of_a_robots_reward_are_streams():
    step = OneStep(None, 0, None, {"reward_forward": 1.5, "reward_ctrl": -0.5, "x": 3.0})
    assert StreamReader("", None).stream_values(step) == {"forward": 1.5, "ctrl": -0.5}
    assert StreamReader("", {"far": "x"}).stream_values(step) == {"far": 3.0}


class Backwards(gym.RewardWrapper):
    """The opposite of the task."""

    def reward(self, reward):
        return -2.0 * float(reward)


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
def test_a_vector_is_followed_in_each_auto_reset_mode(tmp_path, mode):
    def make():
        return Backwards(RecordTask(gym.make("CartPole-v1", max_episode_steps=3)))

    env = gym.vector.SyncVectorEnv([make] * 2, autoreset_mode=mode)
    env = audit(env, tmp_path / "audit", every=4)
    env.reset(seed=0)
    for _ in range(8):
        ended = np.logical_or(*env.step(np.zeros(2, int))[2:4])
        if mode == gym.vector.AutoresetMode.DISABLED and ended.any():
            env.reset(options={"reset_mask": ended})
    env.close()
    with (tmp_path / "audit" / "episodes.csv").open() as file:
        episodes = [(row["task"], row["learned"], row["length"]) for row in csv.DictReader(file)]
    assert episodes == [("3", "-6", "3")] * 4


def test_mistakes_are_refused_when_the_audit_is_made(tmp_path):
    env = gym.make("CartPole-v1")
    with pytest.raises(ValueError, match="every=0"):
        audit(env, tmp_path, every=0)
    with pytest.raises(ValueError, match="no environment of Gymnasium"):
        audit("CartPole-v1", tmp_path)
    with pytest.raises(ValueError, match="not a vector"):
        audit(gym.vector.SyncVectorEnv([lambda: env]), tmp_path, task=lambda *step: 0.0)


def test_stable_baselines_training_is_followed_before_and_after_its_first_update(tmp_path):
    from stable_baselines3 import PPO

    import lodestar as ld

    env = Backwards(RecordTask(gym.make("CartPole-v1", max_episode_steps=4)))
    PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1).learn(32, callback=ld.Audit(tmp_path / "audit"))
    with (tmp_path / "audit" / "episodes.csv").open() as file:
        episodes = [tuple(row.values()) for row in csv.DictReader(file)]
    assert episodes[0] == ("4", "4", "-8", "4", "0")
    assert [episode[4] for episode in episodes] == ["0"] * 4 + ["1"] * 4
    # Every episode is cut after 4 steps, so nothing moves.
    assert judge(tmp_path / "audit").state == UNKNOWN


def read_returns(folder):
    """(task, learned) of the rows of an audit that have both."""
    with (folder / "metrics.csv").open() as file:
        rows = [(row["rollout/ep_rew_mean"], row["rollout/ep_learned_mean"]) for row in csv.DictReader(file)]
    return [tuple(map(float, row)) for row in rows if all(row)]


def four_steps(env_id):
    """Episodes of four steps, each of reward 1, and nothing that writes their returns into the info."""
    env = gym.make(env_id, max_episode_steps=4)
    return gym.wrappers.TransformReward(env, lambda reward: 1.0)


@pytest.mark.parametrize(("agent", "env_id"), [("SAC", "Pendulum-v1"), ("DQN", "CartPole-v1")])
@pytest.mark.parametrize("has_relabel_callback", [False, True])
def test_agents_that_relabel_their_replay_are_followed_without_a_monitor_or_a_log(
    tmp_path, agent, env_id, has_relabel_callback
):
    import stable_baselines3
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    import lodestar as ld
    import rewards
    from rewards.adapters.sb3 import RelabelCallback

    env = DummyVecEnv([lambda: four_steps(env_id)])
    mix = rewards.make({"task": {"weight": 2.0}}, env.observation_space, env.action_space)
    model = getattr(stable_baselines3, agent)(
        "MlpPolicy",
        env,
        learning_starts=24,
        train_freq=8,
        batch_size=8,
        policy_kwargs={"net_arch": [4]},
        replay_buffer_class=ld.relabelling(ReplayBuffer),
        replay_buffer_kwargs={"mix": mix, "update_every": 10},
    )
    callbacks = [RelabelCallback()] if has_relabel_callback else []
    model.learn(64, callback=[*callbacks, ld.Audit(tmp_path / "audit", every=5)], log_interval=None)
    # Thirteen rows, of which the three before the end of the fifth episode have no task return yet.
    assert read_returns(tmp_path / "audit") == [(4.0, 8.0)] * 10
    verdict = judge(tmp_path / "audit")
    assert verdict.untrained.mean == verdict.trained.mean == 4.0
    with (tmp_path / "audit" / "episodes.csv").open() as file:
        assert [row["updated"] for row in csv.DictReader(file)].count("0") >= 6


def test_a_rollout_scored_later_is_followed_without_a_monitor_and_no_row_is_written_twice(tmp_path):
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv

    import lodestar as ld
    import rewards

    env = DummyVecEnv([lambda: four_steps("CartPole-v1")])
    mix = rewards.make({"task": {"weight": 2.0}}, env.observation_space, env.action_space)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1)
    model.set_logger(Logger(None, []))
    callbacks = [ld.RewardCallback(mix), ld.Audit(tmp_path / "audit")]
    model.learn(64, callback=callbacks)
    model.learn(64, callback=callbacks, reset_num_timesteps=False)
    assert read_returns(tmp_path / "audit") == [(4.0, 8.0)] * 4
