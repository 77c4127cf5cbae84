"""Real runs, real faults: what a user sees, and what is left on the disk."""

import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

import rewards
from lodestar.state import Unsaveable, pack
from rewards.base import Reward, RewardConfig
from runners.run import checkpoint, exits
from runners.run.child import is_controlled
from runners.run.packages import name_collision
from runners.run.progress import read_csv
from runners.train import main
from tests.glossary import explain

ROOT = Path(__file__).parents[2]
FAST = ["n_envs=2", "agent.n_steps=32", "agent.n_epochs=1", "eval_episodes=2", "video=false", "log_every=64"]
PLAIN = ["env=faulty_worlds:Plain-v0", "reward=task", "total_timesteps=300", *FAST]


def _status(folder):
    return json.loads((folder / "status.json").read_text())


def _fork(action):
    """Run `action` in a process of its own; returns the started process."""
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(action()))
    process.start()
    return process


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with everything switched on: (folder, what it printed)."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("finished") / "run"
    printed = io.StringIO()
    arguments = [
        "env=CartPole-v1",
        "reward=[task,rnd,count]",
        "total_timesteps=1500",
        "eval_episodes=3",
        "agent.n_steps=64",
    ]
    with contextlib.redirect_stdout(printed):
        assert main([*arguments, f"run_dir={folder}", "n_envs=4", "seed=1"]) == 0
    return folder, printed.getvalue()


def test_a_run_says_what_it_does_and_ends_with_the_tasks_truth(finished):
    folder, printed = finished
    lines = printed.splitlines()
    assert lines[0] == "reward: task + rnd (/ return, non-episodic) + 0.01 * count"
    assert lines[1] == "run: ppo on CartPole-v1, 1,500 steps, 4 environments, seed 1, cpu"
    assert f"folder: {folder}" in lines
    assert "the task's own scores over 3 episodes of the trained policy" in lines
    assert any(line.startswith("  task return  ") for line in lines)
    assert f"video:       {folder / 'video.mp4'}" in lines
    assert f"curve:       {folder / 'curve.png'}" in lines
    assert lines[-2].endswith(f"-m tensorboard.main --logdir {folder}")
    assert lines[-1].endswith("then open http://localhost:6006")


def test_a_run_leaves_everything_in_its_folder(finished):
    folder, _ = finished
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {
        "config.yaml", "command.txt", "versions.json", "status.json", "metrics.csv", "result.json",
        "tensorboard", "checkpoints", "video.mp4", "curve.png",
    }  # fmt: skip
    status = _status(folder)
    assert (status["state"], status["exit_code"], status["error"], status["step"]) == ("finished", 0, None, 1536)
    scores = json.loads((folder / "result.json").read_text())
    assert list(scores) == ["this run", "this run, mode", "random"] and len(scores["random"]["returns"]) == 3
    assert "env=CartPole-v1 'reward=[task,rnd,count]'" in (folder / "command.txt").read_text()


def test_tensorboard_shows_the_configuration_and_the_video(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = finished
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    (text,) = events.Tensors("configuration/text_summary")
    assert b"\n    seed: 1\n" in text.tensor_proto.string_val[0]
    assert {"_hparams_/session_start_info", "_hparams_/experiment"} <= set(events.summary_metadata)
    (shown,) = events.Images("video")
    assert shown.step == 1536 and shown.encoded_image_string.startswith(b"GIF89a")


@pytest.mark.parametrize(
    ("agent", "env"),
    [
        ("dqn", "CartPole-v1"),
        pytest.param("sac", "Pendulum-v1", marks=pytest.mark.nightly),
        pytest.param("dyna", "Pendulum-v1", marks=pytest.mark.nightly),
    ],
)
def test_a_run_too_short_to_learn_logs_its_rewards_and_histograms_where_asked(agent, env, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    where = [f"env={env}", f"agent={agent}", "agent.learning_starts=1000", f"run_dir={tmp_path / 'run'}"]
    quick = ["preset=none", "total_timesteps=300", "log_every=100", "eval_episodes=0", "video=false", "control=none"]
    assert main([*where, *quick, "reward=[task,rnd]", "histograms=true"]) == 0
    rows = read_csv(tmp_path / "run" / "metrics.csv")
    assert [float(row["reward/task_share"]) for row in rows] == [1.0] * len(rows)  # rnd is 0 until it has a scale
    assert {"reward/task", "reward/rnd", "reward/total"} <= set(rows[-1]) and float(rows[-1]["reward/rnd"]) > 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"scores/task", "scores/rnd"} < set(events.Tags()["histograms"])
    last = events.Histograms("scores/rnd")[-1].histogram_value
    assert last.num == 300 and last.sum / last.num == pytest.approx(float(rows[-1]["reward/rnd"]), rel=1e-4)


def test_histograms_without_tensorboard_are_refused(capsys):
    assert main(["env=CartPole-v1", "histograms=true", "logger=[]"]) == 2
    assert "histograms=true has nowhere to go with logger=[]; add tensorboard" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["logger", "sync_tensorboard"])
def test_what_a_run_logs_reaches_weights_and_biases(how, tmp_path, monkeypatch):
    """Offline; its own process, as W&B leaves threads and a service behind."""
    pytest.importorskip("wandb")
    fast = [argument for argument in FAST if argument != "video=false"]
    run = ["env=CartPole-v1", "total_timesteps=4096", *fast, f"run_dir={tmp_path / 'run'}"]
    code = f"from runners.train import main; main({[*run, 'logger=[wandb]']!r})"
    if how == "sync_tensorboard":
        code = "import wandb; run = wandb.init(mode='offline', sync_tensorboard=True); "
        code += f"from runners.train import main; main({run!r}); run.finish()"
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True)
    (log,) = tmp_path.glob("**/offline-run-*/*.wandb")
    assert log.read_bytes().count(b"rollout/ep_rew_mean") >= 2
    if how == "logger":
        assert b"final/return" in log.read_bytes()
        assert len([*tmp_path.glob("**/offline-run-*/**/*.mp4")]) == 1


def test_every_tag_a_run_writes_is_in_the_glossary_and_in_both_logs(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = finished
    rows = read_csv(folder / "metrics.csv")
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"rollout/ep_rew_mean", "rollout/ep_learned_mean", "reward/task", "reward/rnd_share", "time/fps"} <= tags
    closing = {tag for tag in tags if tag.startswith("final/")}
    assert tags - closing <= set(rows[0]) and not closing & set(rows[0])
    assert closing == {f"final/{name}" for name in ("return", "mode_return", "random_return", "length", "success")}
    scores = json.loads((folder / "result.json").read_text())
    for tag, policy in (("final/return", "this run"), ("final/mode_return", "this run, mode")):
        (event,) = events.Scalars(tag)
        assert event.step == 1536 and event.value == pytest.approx(scores[policy]["task_return"])
    assert all(map(explain, closing))
    assert not [tag for tag in set(rows[0]) - {"step"} if explain(tag) is None]
    assert [int(row["step"]) for row in rows] == [1024, 1536]
    written = [event.value for event in events.Scalars("rollout/ep_rew_mean")]
    np.testing.assert_allclose([float(row["rollout/ep_rew_mean"]) for row in rows], written, rtol=1e-6)


def test_the_film_shows_the_episode_with_a_lane_for_every_stream(finished):
    import imageio.v2 as imageio

    folder, _ = finished
    with imageio.get_reader(folder / "video.mp4") as film:
        images = [np.asarray(image) for image in film]
    assert len(images) >= 8 and images[0].shape == (512, 448, 3)  # 299 + 3 lanes of 64 + 8, in multiples of 16
    assert images[0][:299].mean() > 200  # CartPole's white
    assert 15 < images[-1][450:].mean() < 80  # lanes on dark ground


def test_evaluate_reads_a_run_and_repeats_its_numbers(finished, capsys):
    from runners.evaluate import main as evaluate

    folder, printed = finished
    assert evaluate([f"run={folder}", "episodes=3", "seed=1", "video=false"]) == 0
    output = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("  task return  "))
    assert row in output
    assert output.startswith("CartPole-v1, agent ppo, reward task+rnd+count, 3 episodes")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run=nowhere"], "error: run=nowhere is no run's folder (it has no config.yaml); give one below runs/"),
        (["rum=x"], "error: key=rum is unknown; did you mean run?"),
        (["run=x", "episodes=0"], "error: episodes=0 is out of range; give a number at least 1"),
    ],
)
def test_evaluate_refuses_in_one_sentence(arguments, sentence, capsys):
    from runners.evaluate import main as evaluate

    assert evaluate(arguments) == 2
    assert capsys.readouterr().err.strip() == sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["env=CartPol-v1"], "did you mean 'CartPole-v1'?"),
        (
            ["env=Pendulum-v1", "agent=dqn"],
            "DQN cannot choose actions from Box(-2.0, 2.0, (1,), float32); use agent=sac",
        ),
        (["env=CartPole-v1", "reward=rnd", "reward.rnd.weight=-1"], "weight=-1 must be finite and at least 0"),
        (["env=CartPole-v1", "reward.task.gamma=7"], "gamma=7.0 is out of range"),
        (["env=CartPole-v1", "resume=must"], "resume=must, but"),
        (["env=CartPole-v1", "device=mps"], "device=mps is not on this machine (it has cpu"),
        (["env=lodestar/CartPoleUpright-v0", "reward=clip", "reward.clip.goal="], "reward.clip.goal is empty"),
        (["env=CartPole-v1", "reward=clip", "reward.clip.goal=" + "word " * 200], "characters, the limit is 500"),
        (["env=FrozenLake-v1", "reward=clip"], 'give reward.clip.goal="what you want to see"'),
    ],
)
def test_a_run_that_cannot_begin_is_one_sentence_and_leaves_no_folder(tmp_path, capsys, arguments, sentence):
    assert main([*arguments, f"root={tmp_path}"]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error and error.startswith("error: ") and "\n" not in error
    assert not list(tmp_path.iterdir())


def test_not_a_number_stops_before_anything_is_learnt_from_it(tmp_path, capsys):
    arguments = [*PLAIN, "env=faulty_worlds:NotANumber-v0", "checkpoint_every=1", f"run_dir={tmp_path / 'run'}"]
    assert main(arguments) == 4
    error = capsys.readouterr().err
    assert (
        "environment 0 gave the reward nan at step 19 of its episode (stream task)" in error
        and "Traceback" not in error
    )
    assert (_status(tmp_path / "run")["state"], _status(tmp_path / "run")["exit_code"]) == ("failed", 4)
    (state, step) = checkpoint.load(tmp_path / "run" / "checkpoints")
    assert step == 192  # the 100th step of environment 0 lies in the fourth rollout of 2 x 32
    assert all(np.isfinite(array).all() for array in pack(state["agent"])[1].values())


def test_an_environment_that_raises_is_named_with_its_line(tmp_path, capsys):
    assert main([*PLAIN, "env=faulty_worlds:Raises-v0", f"run_dir={tmp_path / 'run'}"]) == 6
    error = capsys.readouterr().err
    assert error.startswith("error: the environment failed after ") and "KeyError: 'the door'" in error
    assert "faulty_worlds.py:" in error and "Traceback" not in error


def test_arithmetic_that_fails_in_an_environment_is_no_divergence(tmp_path, capsys):
    assert main([*PLAIN, "env=faulty_worlds:Divides-v0", f"run_dir={tmp_path / 'run'}"]) == 6
    error = capsys.readouterr().err
    assert error.startswith("error: the environment failed after ")
    assert "FloatingPointError: divide by zero encountered in divide (" in error and "faulty_worlds.py:" in error


def test_an_environment_that_changes_the_working_directory_does_not_move_the_run(tmp_path, capsys, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    world = ["env=faulty_worlds:Wanders-v0", f"env.to={there}"]
    assert main([*PLAIN, *world, "run_dir=runs/one", "checkpoint_every=64"]) == 0
    assert Path.cwd() == there and not list(there.iterdir())
    assert checkpoint.load(here / "runs" / "one" / "checkpoints")[1] == 320
    assert (here / "runs" / "one" / "result.json").exists()
    printed = capsys.readouterr().out
    assert "folder: runs/one\n" in printed and f"curve:       {Path('runs', 'one', 'curve.png')}\n" in printed


def test_a_video_that_fails_costs_evaluate_a_sentence(finished, capsys, monkeypatch):
    from runners.evaluate import main as evaluate
    from runners.run import video

    def fail(*given):
        raise OSError(errno.EROFS, "Read-only file system", str(given[3]))

    monkeypatch.setattr(video, "record_video", fail)
    assert evaluate([f"run={finished[0]}", "episodes=2"]) == 0
    printed = capsys.readouterr().out
    assert "task return" in printed and "video: none (OSError: [Errno 30] Read-only file system" in printed


def test_a_state_that_no_checkpoint_holds_is_one_sentence():
    sentence = "the state at /mix/mean is an array of float128"
    assert exits.explain(Unsaveable(sentence), "training", 64) == (1, sentence)


def test_a_run_that_was_killed_before_it_began_is_begun_by_the_same_command(tmp_path, capsys):
    run = tmp_path / "run"
    (run / "crashes").mkdir(parents=True)
    (run / "crashes" / "worker-0.txt").touch()  # backend=workers
    (run / ".lock").touch()
    (run / "log.txt").touch()  # a job of a sweep
    assert main([*PLAIN, f"run_dir={run}"]) == 0


def test_what_kills_left_in_a_run_is_removed_when_it_goes_on(tmp_path):
    run = tmp_path / "run"
    arguments = [*PLAIN, f"run_dir={run}"]
    assert main(arguments) == 0
    (run / "status.json").write_text(json.dumps({**_status(run), "state": "stopped"}))
    for name in ("best/tmp-77-64", "checkpoints/tmp-77-64"):
        (run / name).mkdir(parents=True)
    for name in ("status.json.tmp-77", "best/LATEST.tmp-77", "checkpoints/LATEST.tmp-77"):
        (run / name).touch()
    assert main(arguments) == 0
    assert [path for path in run.rglob("*") if "tmp-77" in path.name] == []


def test_an_environment_that_calls_exit_fails_the_run(tmp_path, capsys):
    assert main([*PLAIN, "env=faulty_worlds:Exits-v0", f"run_dir={tmp_path / 'run'}"]) == 6
    assert "error: the environment failed after " in (error := capsys.readouterr().err) and "SystemExit: 0" in error
    assert (_status(tmp_path / "run")["state"], _status(tmp_path / "run")["exit_code"]) == ("failed", 6)


def test_an_evaluation_that_failed_is_repeated_without_training(tmp_path, capsys):
    run = [*PLAIN, "env=faulty_worlds:Raises-v0", "total_timesteps=128", f"run_dir={tmp_path / 'run'}"]
    assert main([*run, "eval_episodes=3"]) == 6  # its hundredth step is in the third episode
    assert _status(tmp_path / "run")["step"] == 128 and "failed after 128 steps" in capsys.readouterr().err
    assert main([*run, "eval_episodes=2"]) == 0
    assert "continues at step 128" in capsys.readouterr().out and _status(tmp_path / "run")["state"] == "finished"


def test_an_environment_without_a_time_limit_ends_in_a_sentence(tmp_path, capsys):
    world = ["env=CliffWalking-v1", "eval_episodes=3", "eval_steps=200"]
    assert main([*PLAIN, *world, f"run_dir={tmp_path / 'run'}"]) == 0
    assert "max_episode_steps=1000, say, gives the environment a time limit" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "result.json").read_text())["random"]["cut"] == 1


def test_a_run_goes_on_when_nobody_reads_what_it_prints(tmp_path):
    read, write = os.pipe()

    def action():
        os.close(read)
        os.dup2(write, 1)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        return main([*PLAIN, f"run_dir={tmp_path / 'run'}"])

    process = _fork(action)
    os.close(write)
    os.close(read)
    process.join(120)
    assert process.exitcode == 0 and _status(tmp_path / "run")["state"] == "finished"


def test_debugging_shows_the_traceback_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LODESTAR_DEBUG", "1")
    assert main([*PLAIN, "env=faulty_worlds:Raises-v0", f"run_dir={tmp_path / 'run'}"]) == 6
    assert "Traceback" in capsys.readouterr().err


class Refuses(Reward):
    """Fails when it learns; its control is said to be a lie."""

    @staticmethod
    def config():
        return RewardConfig()

    def score(self, batch, memory=None):
        return np.zeros(batch.shape, np.float32)

    def update(self, batch):
        raise RuntimeError("the annotator is gone")


def test_a_reward_that_fails_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rewards.table, "registered", {"refuses": Refuses})
    monkeypatch.setattr(Refuses, "__module__", "rewards.refuses")
    assert main([*PLAIN, "reward=refuses", f"run_dir={tmp_path / 'run'}"]) == 7
    assert "error: the reward failed after 64 steps: RuntimeError: the annotator is gone" in capsys.readouterr().err


def test_a_second_run_on_the_same_folder_is_refused_with_the_first_ones_pid(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps({"state": "running", "pid": 4242, "key": "x"}))
    with FileLock(folder / ".lock"):
        assert main([*PLAIN, f"run_dir={folder}"]) == 8
    assert (
        f"run_dir={folder} is in use by process 4242; wait for it, or give another run_dir" in capsys.readouterr().err
    )
    assert _status(folder)["pid"] == 4242


def test_a_locked_run_is_skipped_when_looking_for_one_to_continue(tmp_path):
    (first,) = _stopped_runs(tmp_path)
    with FileLock(first / ".lock"):
        assert main([*PLAIN, f"root={tmp_path}"]) == 0
    assert _status(first)["state"] == "stopped"
    assert len(list(first.parent.iterdir())) == 2


def _stopped_runs(root):
    assert main([*PLAIN, f"root={root}"]) == 0
    runs = list(root.glob("*/*/*"))
    for run in runs:
        (run / "status.json").write_text(json.dumps({**_status(run), "state": "stopped"}))
    return runs


def test_a_folder_with_another_run_is_refused_with_the_difference(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main([*PLAIN, f"run_dir={folder}"]) == 0
    assert main([*PLAIN, f"run_dir={folder}", "seed=5", "agent.gamma=0.9"]) == 2
    assert "holds another run (it differs in agent.gamma=0.99, seed=0); give another run_dir" in capsys.readouterr().err
    assert main([*PLAIN, f"run_dir={folder}"]) == 0
    assert "is finished already; nothing to do" in capsys.readouterr().out
    assert main([*PLAIN, f"run_dir={folder}", "resume=never"]) == 2
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    assert main([*PLAIN, f"run_dir={tmp_path / 'thesis'}"]) == 2
    assert "is not empty and holds no run" in capsys.readouterr().err


def test_a_full_disk_costs_checkpoints_but_not_the_training(tmp_path):
    folder = tmp_path / "run"

    def action():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # logs fit, the policy does not
        sys.stdout = (tmp_path / "printed").open("w", buffering=1)
        return main([*PLAIN, "checkpoint_every=64", f"run_dir={folder}"])

    process = _fork(action)
    process.join(120)
    assert process.exitcode == 5
    printed = (tmp_path / "printed").read_text()
    assert printed.count("no checkpoint at step") == 2  # the first, and the last: not every try in between
    assert "the earlier ones are intact, training continues" in printed
    assert "the task's own scores over" in printed
    assert _status(folder)["exit_code"] == 5 and _status(folder)["step"] == 320


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main([*PLAIN, f"root={tmp_path / 'runs'}"]) == 5
    assert "Permission denied" in capsys.readouterr().err


def test_a_path_through_a_file_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([*PLAIN, f"root={tmp_path / 'file' / 'runs'}"]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_a_second_ctrl_c_exits_at_once(tmp_path):
    folder = tmp_path / "run"
    process = _fork(lambda: main([*PLAIN, "env=faulty_worlds:Sleeps-v0", f"run_dir={folder}"]))
    deadline = time.monotonic() + 60
    while not (folder / "metrics.csv").exists() or len(read_csv(folder / "metrics.csv")) < 2:
        assert time.monotonic() < deadline and process.is_alive()
        time.sleep(0.01)
    time.sleep(0.3)  # by now it sleeps inside a step
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.2)
    assert process.is_alive()
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    process.join(20)
    assert process.exitcode == 130 and time.monotonic() - began < 2


class Paid(Reward):
    """Pays one; without meaning, nothing."""

    control = {"weight": 0.0}
    role = "goal"

    def score(self, batch, memory=None):
        return np.ones(batch.shape, np.float32)


PLUGIN = "import numpy as np\nfrom rewards.base import Reward\n\n\nclass Paid(Reward):\n"
PLUGIN += "    role, control = 'goal', {'weight': 0.0}\n\n    def score(self, batch, memory=None):\n"
PLUGIN += "        return np.ones(batch.shape, np.float32)\n"


def test_the_control_runs_beside_and_its_crash_costs_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rewards.table, "registered", {"paid": Paid})  # unknown to the other process: it crashes
    assert main([*PLAIN, "reward=paid", f"run_dir={tmp_path / 'run'}"]) == 0
    printed = capsys.readouterr().out
    assert "control: paid.weight=0.0, beside this run (control=none switches it off)" in printed
    assert f"the control run failed; its output is in {tmp_path / 'run' / 'control' / 'run' / 'log.txt'}" in printed
    assert "reward=paid is unknown" in (tmp_path / "run" / "control" / "run" / "log.txt").read_text()
    assert _status(tmp_path / "run")["state"] == "finished"


@pytest.mark.nightly
def test_a_third_partys_reward_trains_beside_its_control(tmp_path, monkeypatch, capsys):
    (tmp_path / "paid.py").write_text(PLUGIN)
    info = tmp_path / "paid-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paid\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lodestar_rl.rewards]\npaid = paid:Paid\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent), str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", path)  # for the control's process
    world = ["env=faulty_worlds:Level-v0", "env.level=3"]
    assert main([*PLAIN, *world, "reward=paid", f"run_dir={tmp_path / 'run'}"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "reward: paid"
    scores = json.loads((tmp_path / "run" / "result.json").read_text())
    assert list(scores) == ["this run", "this run, mode", "random", "control: paid.weight=0.0"], (
        tmp_path / "run" / "control" / "run" / "log.txt"
    ).read_text()
    assert scores["control: paid.weight=0.0"]["task_return"] == 3 * 40  # in the world of the run itself
    assert _status(tmp_path / "run" / "control" / "run")["state"] == "finished"


def test_a_control_is_wanted_for_short_runs_of_rewards_that_name_one(monkeypatch):
    from runners.cli.compose import compose

    monkeypatch.setattr(rewards.table, "registered", {"paid": Paid})
    plain = ["env=CartPole-v1", "reward=paid"]
    assert is_controlled(compose(plain)[0])
    for arguments in ([*plain, "control=none"], [*plain, "total_timesteps=3e5"], [*plain, "reward.paid.weight=0.0"]):
        assert not is_controlled(compose(arguments)[0]), arguments
    assert not is_controlled(compose(["env=CartPole-v1", "reward=rnd"])[0])


@pytest.mark.parametrize("name", ["agents", "envs"])
def test_a_foreign_package_of_one_of_our_names_is_named(name, tmp_path):
    assert name_collision() is None
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "runners.train", "env=CartPole-v1"]
    run = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith(
        f"error: the package {name!r} is {tmp_path / name}, which is not part of lodestar-rl in "
    )
    assert len(run.stderr.splitlines()) == 1


# Seconds to import, and of no use to a run that learns CartPole from its own reward.
UNUSED = "minigrid mujoco numba open_clip optuna pandas pygame ray sklearn sympy torchvision transformers wandb"


@pytest.mark.nightly
def test_a_plain_run_imports_nothing_that_it_does_not_use(tmp_path):
    plain = ["env=CartPole-v1", "total_timesteps=300", *FAST, f"run_dir={tmp_path / 'run'}"]
    script = f"import sys; from runners.train import main; assert main({plain!r}) == 0\n"
    script += f"print([name for name in {UNUSED.split()!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert answer.stdout.splitlines()[-1] == "[]", answer.stdout + answer.stderr
