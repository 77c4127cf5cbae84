"""A run that is killed and started again ends where the uninterrupted one does, to the last bit."""

import json
import multiprocessing
import os
import pty
import shutil
import signal
import sys
import time

import numpy as np
import pytest
import torch

from lodestar.state import pack
from runners.cli.compose import compose
from runners.evaluate import evaluation
from runners.evaluation.evaluator import Evaluator
from runners.run import checkpoint
from runners.run import progress as running
from runners.run.build import build, load_run
from runners.run.config import load
from runners.run.policies import initialise
from runners.run.progress import read_csv
from runners.run.value import replace_arguments
from runners.sweep.display import progress
from runners.train import main

SMALL = ["eval_episodes=0", "video=false", "control=none", "log_every=100"]
PPO = ["env=CartPole-v1", "n_envs=4", "agent.n_steps=64", "agent.batch_size=64", "agent.n_epochs=1"]
PPO += ["total_timesteps=3000", "checkpoint_every=500", *SMALL]
CLIP = ["env=lodestar/CartPoleUpright-v0", "reward=clip", "n_envs=2", "agent.n_steps=64", "agent.n_epochs=2"]
CLIP += ["total_timesteps=768", "checkpoint_every=128", *SMALL]
DQN = ["env=CartPole-v1", "agent=dqn", "agent.learning_starts=200", "agent.buffer_size=1500"]
DQN += ["agent.target_update_interval=300", "total_timesteps=2500", "checkpoint_every=333", *SMALL]
GSDE = ["env=Pendulum-v1", "agent=sac", "agent.use_sde=true", "agent.train_freq=50", "agent.learning_starts=100"]
GSDE += ["agent.net_arch=[16]", "total_timesteps=600", "checkpoint_every=130", *SMALL]
DYNA = ["env=Pendulum-v1", "agent=dyna", "agent.model_hidden=[16]", "agent.net_arch=[16]", "agent.batch_size=16"]
DYNA += ["agent.members=2", "agent.model_steps=20", "agent.learning_starts=100", "agent.updates_per_step=1"]
DYNA += ["agent.rollouts_per_step=4", "agent.rollout=50", "total_timesteps=500", "checkpoint_every=100", *SMALL]
WORLD = ["env=MiniGrid-Empty-5x5-v0", "agent=world_model", "agent.latent=16", "agent.hidden=16", "agent.embed=16"]
WORLD += ["agent.groups=4", "agent.classes=4", "agent.batch_size=4", "agent.batch_length=8", "agent.horizon=3"]
WORLD += ["agent.train_ratio=8", "agent.learning_starts=100", "agent.rollout=25", "n_envs=2", "total_timesteps=500"]
WORLD += ["checkpoint_every=100", *SMALL]
SQIRL = ["env=MiniGrid-Empty-5x5-v0", "agent=sqirl", "n_envs=4", "agent.episodes=4", "agent.net_arch=[8]"]
SQIRL += ["agent.epochs=1", "total_timesteps=6000", "checkpoint_every=100", *SMALL]


@pytest.fixture(autouse=True)
def _heard_hang_ups():
    """Whoever starts the tests by nohup hands down that hang-ups are ignored, and a run goes on then."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def _run(arguments, folder):
    return main([*arguments, f"run_dir={folder}"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run of some arguments; each is run once."""
    found = {}

    def run(arguments):
        key = tuple(arguments)
        if key not in found:
            found[key] = tmp_path_factory.mktemp("whole") / "run"
            assert _run(arguments, found[key]) == 0
        return found[key]

    return run


STOPPED = [*PPO, "reward=task", "total_timesteps=768", "checkpoint_every=256", "log_every=256"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after 512 of 768 steps."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    _kill_after(STOPPED, folder, 512)
    for later in (folder / "checkpoints").glob("*768"):
        shutil.rmtree(later)
    (folder / "checkpoints" / "LATEST").write_text("step_000000000512\n")
    return folder


def _kill_after(arguments, folder, step, number=signal.SIGKILL):
    """Start the run in a process of its own and kill it once a checkpoint at or after `step` is there."""

    def work():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it is pytest-timeout's
        os._exit(_run(arguments, folder))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    deadline = time.monotonic() + 120
    latest = folder / "checkpoints" / "LATEST"
    while not latest.exists() or int(latest.read_text()[5:17]) < step:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, number)
    process.join(60)
    return process.exitcode


def _final(folder):
    state, step = checkpoint.load(folder / "checkpoints")
    _, arrays = pack({key: state[key] for key in ("agent", "mix", "driver", "random")})
    return step, {key: value for key, value in arrays.items() if "ep_info_buffer" not in key}


def _assert_same_run(first, second):
    (step, expected), (other_step, found) = _final(first), _final(second)
    assert step == other_step
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    rows = [read_csv(folder / "metrics.csv") for folder in (first, second)]
    for row in rows[0] + rows[1]:
        row.pop("time/fps"), row.pop("time/time_elapsed")
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        pytest.param([*PPO, "reward=task"], 1000, id="ppo-task", marks=pytest.mark.nightly),
        pytest.param([*PPO, "reward=rnd"], 1500, id="ppo-rnd"),
        pytest.param(
            [*PPO, "reward=[task,rnd]", "agent.overlap=true"], 1500, id="ppo-overlap", marks=pytest.mark.nightly
        ),
        pytest.param([*CLIP, "agent.overlap=true"], 256, id="clip-overlap", marks=pytest.mark.nightly),
        pytest.param(
            [*PPO, "reward=[task,rnd,count]", "reward.rnd.episodic=false"],
            1000,
            id="ppo-streams",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            [*PPO, "reward=count", "backend=gym", "agent.gru=8"], 1000, id="ppo-gru", marks=pytest.mark.nightly
        ),
        pytest.param(GSDE, 260, id="sac-gsde", marks=pytest.mark.nightly),
        pytest.param([*PPO, "reward=task", "backend=workers"], 1000, id="ppo-workers", marks=pytest.mark.nightly),
        pytest.param(
            [*PPO, "agent=sb3_ppo", "reward=[task,rnd]", "reward.rnd.episodic=false"],
            1000,
            id="sb3-critic",
            marks=pytest.mark.nightly,
        ),
        pytest.param([*DQN, "reward=rnd"], 999, id="dqn-rnd", marks=pytest.mark.nightly),
        pytest.param(CLIP, 256, id="ppo-clip", marks=pytest.mark.nightly),
        pytest.param([*DYNA, "reward=[task,rnd]"], 200, id="dyna-rnd", marks=pytest.mark.nightly),
        pytest.param([*DYNA, "agent.preset=dhmbpo", "reward=task"], 300, id="dyna-svg", marks=pytest.mark.nightly),
        pytest.param([*WORLD, "reward=[task,rnd]"], 200, id="world_model-rnd", marks=pytest.mark.nightly),
        pytest.param([*SQIRL, "reward=[task,rnd]"], 2000, id="sqirl-rnd", marks=pytest.mark.nightly),
    ],
)
def test_kill_9_and_the_same_command_again_end_with_the_same_weights(whole, tmp_path, arguments, step):
    assert _kill_after(arguments, tmp_path / "killed", step) == -signal.SIGKILL
    status = json.loads((tmp_path / "killed" / "status.json").read_text())
    assert status["state"] == "running" and status.get("step", 0) < 2500
    assert _run(arguments, tmp_path / "killed") == 0
    _assert_same_run(whole(arguments), tmp_path / "killed")


@pytest.mark.nightly
def test_being_killed_twice_makes_no_difference(whole, tmp_path):
    arguments = [*PPO, "reward=rnd"]
    _kill_after(arguments, tmp_path / "killed", 1000)
    _kill_after(arguments, tmp_path / "killed", 2000)
    assert _run(arguments, tmp_path / "killed") == 0
    _assert_same_run(whole(arguments), tmp_path / "killed")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([*PPO, "reward=task"], id="ppo"),
        pytest.param([*PPO, "reward=[task,rnd]", "agent.gru=8"], id="ppo-gru", marks=pytest.mark.nightly),
        pytest.param([*PPO, "agent=sb3_ppo", "reward=rnd"], id="sb3_ppo", marks=pytest.mark.nightly),
        pytest.param([*DQN, "reward=rnd"], id="dqn", marks=pytest.mark.nightly),
        pytest.param([*DYNA, "reward=task"], id="dyna", marks=pytest.mark.nightly),
        pytest.param([*WORLD, "reward=task"], id="world_model", marks=pytest.mark.nightly),
        pytest.param([*SQIRL, "reward=task"], id="sqirl", marks=pytest.mark.nightly),
    ],
)
def test_a_run_that_is_killed_after_its_last_step_is_only_reported(tmp_path, arguments):
    arguments = [*arguments, "total_timesteps=600", "eval_episodes=2"]
    assert _run(arguments, tmp_path / "run") == 0
    result = (tmp_path / "run" / "result.json").read_text()
    rows = read_csv(tmp_path / "run" / "metrics.csv")
    (tmp_path / "run" / "result.json").unlink()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    (tmp_path / "run" / "status.json").write_text(json.dumps({**status, "state": "stopped", "exit_code": 143}))
    assert _run(arguments, tmp_path / "run") == 0
    again = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (again["state"], again["step"], again["exit_code"]) == ("finished", status["step"], 0)
    assert (tmp_path / "run" / "result.json").read_text() == result
    assert read_csv(tmp_path / "run" / "metrics.csv") == rows


ASKED = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129, signal.SIGUSR1: 138, signal.SIGALRM: 142}


@pytest.mark.parametrize(
    ("number", "rollouts"),
    [
        (signal.SIGINT, "long"),
        *(pytest.param(number, "short", marks=pytest.mark.nightly) for number in ASKED),
        pytest.param(signal.SIGTERM, "long", marks=pytest.mark.nightly),
    ],
)
def test_a_signal_saves_and_the_run_goes_on_to_the_same_weights(whole, tmp_path, number, rollouts, monkeypatch):
    code = ASKED[number]
    if rollouts == "long":  # they are cut short, and the state of their beginning is what is saved
        monkeypatch.setattr(running, "SLOW_ROLLOUT_S", 0.0)
    arguments = [*PPO, "reward=task"]
    assert _kill_after(arguments, tmp_path / "stopped", 900, number) == code
    status = json.loads((tmp_path / "stopped" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("stopped", code)
    assert _run(arguments, tmp_path / "stopped") == 0
    _assert_same_run(whole(arguments), tmp_path / "stopped")


def test_a_closed_terminal_saves(tmp_path):
    pid, terminal = pty.fork()
    if not pid:
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
        os._exit(_run([*PPO, "reward=task", "total_timesteps=1e7"], tmp_path / "run"))
    try:
        while not (tmp_path / "run" / "checkpoints" / "LATEST").exists():
            os.read(terminal, 4096)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
        pid = 0
    finally:
        if pid:  # it would train on for hours
            os.kill(pid, signal.SIGKILL)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("stopped", 129)
    assert checkpoint.load(tmp_path / "run" / "checkpoints")[1] == status["step"] > 0


def test_what_ignores_a_hang_up_goes_on(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert _kill_after([*PPO, "reward=task", "total_timesteps=1500"], tmp_path / "run", 500, signal.SIGHUP) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("status", "how"),
    [
        ("", "run_dir"),
        ('{"state": [], "key": 3}', "root"),
        (None, "root"),
        *(
            pytest.param(status, how, marks=pytest.mark.nightly)
            for status, how in [
                ("", "root"),
                ('{"state": "runn', "run_dir"),
                ('{"state": "runn', "root"),
                ("[1, 2]", "run_dir"),
                ("[1, 2]", "root"),
                ('{"state": [], "key": 3}', "run_dir"),
                (None, "run_dir"),
            ]
        ),
    ],
)
def test_a_status_that_cannot_be_read_hides_no_checkpoint(stopped, tmp_path, status, how, capsys):
    run = tmp_path / "CartPole-v1" / "ppo-task" / "20260101-000000-s0"
    shutil.copytree(stopped, run)
    if status is None:
        (run / "status.json").unlink()
    else:
        (run / "status.json").write_text(status)
    assert main([*STOPPED, f"run_dir={run}" if how == "run_dir" else f"root={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert f"{run / 'status.json'} cannot be read; it is written anew" in printed
    assert f"folder: {run}, continues at step 512" in printed
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", 768)


@pytest.mark.parametrize(
    "log", [os.urandom(5000), b"step,rollout/ep_rew_mean\r\n256,20\r\n\xff\xfe\x00,\r\n\xc2\xb2,1\r\n"]
)
def test_a_log_that_cannot_be_read_costs_rows_and_not_the_run(stopped, tmp_path, log, capsys):
    shutil.copytree(stopped, tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_bytes(log)
    assert progress(tmp_path / "run").task_return is None
    assert main([*STOPPED, f"run_dir={tmp_path / 'run'}"]) == 0
    printed = capsys.readouterr().out
    steps = [row["step"] for row in read_csv(tmp_path / "run" / "metrics.csv")]
    if log.startswith(b"step"):
        assert steps == ["256", "768"]
    else:
        assert steps == ["768"] and f"{tmp_path / 'run' / 'metrics.csv'} is no log any more; it is kept as" in printed
        assert (tmp_path / "run" / "broken_metrics.csv").read_bytes() == log
    assert "curve.png" in printed


def test_a_configuration_that_cannot_be_read_is_written_anew(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    whole = load(tmp_path / "run" / "config.yaml")
    (tmp_path / "run" / "config.yaml").write_bytes(b"env: CartPole-v1\nagent: {na\xff")
    assert main([*STOPPED, f"run_dir={tmp_path / 'run'}"]) == 0
    assert load(tmp_path / "run" / "config.yaml").key() == whole.key()


def test_a_broken_newest_checkpoint_costs_some_steps_and_no_numbers(whole, tmp_path, capsys):
    arguments = [*PPO, "reward=task"]
    _kill_after(arguments, tmp_path / "broken", 1500)
    newest = max((tmp_path / "broken" / "checkpoints").glob("step_*"))
    with (newest / checkpoint.ARRAYS_FILE).open("r+b") as file:
        file.truncate(1000)
    assert _run(arguments, tmp_path / "broken") == 0
    assert f"{newest.name}/arrays.safetensors is corrupt" in capsys.readouterr().out
    _assert_same_run(whole(arguments), tmp_path / "broken")


def test_the_same_command_finds_its_unfinished_run_and_leaves_finished_ones_alone(tmp_path):
    short = replace_arguments(PPO, ["reward=task", f"root={tmp_path}", "total_timesteps=1500"])
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(main(short)))
    process.start()
    while not list(tmp_path.glob("CartPole-v1/ppo-task/*/checkpoints/step_*")):
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    (run,) = (tmp_path / "CartPole-v1" / "ppo-task").iterdir()
    assert main([*short, "seed=1"]) == 0  # another configuration starts afresh
    assert main(short) == 0
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert len((run / "command.txt").read_text().splitlines()) == 2
    assert main(short) == 0  # the finished one is not touched
    assert len(list((tmp_path / "CartPole-v1" / "ppo-task").iterdir())) == 3
    assert len((run / "command.txt").read_text().splitlines()) == 2


def test_a_run_that_is_extended_ends_as_the_longer_one_would_have(whole, tmp_path, capsys):
    longer = [*PPO, "reward=rnd"]
    shorter = replace_arguments(longer, ["total_timesteps=1024", f"root={tmp_path}"])
    assert main(shorter) == 0
    (run,) = (tmp_path / "CartPole-v1" / "ppo-task+rnd").iterdir()
    capsys.readouterr()
    assert main(replace_arguments(shorter, ["total_timesteps=3000"])) == 0
    said = capsys.readouterr().out
    assert f"folder: {run}, continues at step 1,024" in said
    assert "note: 3,072 steps will be trained, as they come in rollouts of 256" in said
    _assert_same_run(whole(longer), run)
    assert load(run / "config.yaml").total_timesteps == 3000
    assert main([*shorter, f"run_dir={run}"]) == 2
    assert "holds another run (it differs in total_timesteps=3000)" in capsys.readouterr().err


@pytest.mark.nightly
def test_evaluations_while_training_change_nothing_and_the_best_one_can_be_had_again(whole, tmp_path):
    arguments = [*PPO, "reward=rnd"]
    extra = ["eval_every=700", "eval_episodes=3", "eval_steps=300", "video_every=1500"]
    assert _run(replace_arguments(arguments, extra), tmp_path / "run") == 0
    assert {path.name for path in (tmp_path / "run" / "videos").iterdir()} == {
        "step_000000001536.mp4",
        "step_000000003072.mp4",
    }
    evaluated = {int(row["step"]): float(row["eval/return"]) for row in _rows(tmp_path / "run") if row["eval/return"]}
    assert [*evaluated] == [768, 1536, 2304, 2816]
    trained = load_run(tmp_path / "run", at="best")
    assert evaluated[trained.step] == max(evaluated.values())
    again = evaluation(trained.config, trained.model, trained.mix, 3, trained.config.seed)["this run"]
    assert again["task_return"] == pytest.approx(evaluated[trained.step], rel=1e-7)  # as the log rounds
    step, expected = _final(whole(arguments))
    assert step == 3072
    for key, value in _final(tmp_path / "run")[1].items():
        np.testing.assert_array_equal(value, expected[key], err_msg=key)


def test_what_fails_while_evaluating_costs_no_training_and_no_evaluation_that_was_done(tmp_path, monkeypatch):
    config, _ = compose(replace_arguments(PPO, ["reward=task", "eval_every=1", "video_every=1", "eval_episodes=1"]))
    parts, said, asked = build(config), [], []
    (tmp_path / checkpoint.BEST).touch()  # a file where a folder is to be
    (tmp_path / "videos").touch()
    found = Evaluator(config, tmp_path, parts.mix, lambda: False, said.append)
    assert found(256, parts.model)["eval/return"] > 0 and (found.evaluated, found.filmed) == (256, 256)
    assert [sentence.split(" (")[0] for sentence in said] == [
        "the best policy, of step 256, is not kept",
        "no video at step 256",
    ]
    (tmp_path / "videos").unlink()
    stopped = Evaluator(config, tmp_path, parts.mix, lambda: bool(asked), said.append)
    evaluate = stopped._evaluate
    monkeypatch.setattr(stopped, "_evaluate", lambda *given: (evaluate(*given), asked.append(1))[0])
    assert stopped(256, parts.model)["eval/return"] > 0 and (stopped.evaluated, stopped.filmed) == (256, 0)


def _rows(folder):
    return read_csv(folder / "metrics.csv")


def test_a_run_begins_with_the_weights_of_another(whole, tmp_path, capsys):
    first, state = whole([*PPO, "reward=rnd"]), checkpoint.load(whole([*PPO, "reward=rnd"]) / "checkpoints")[0]
    short = replace_arguments(PPO, ["reward=[task,icm,rnd]", "total_timesteps=1", f"init_from={first}"])
    config, _ = compose([*short, "agent.learning_rate=1e-9"])
    parts = build(config)
    assert initialise(config, parts) == f"from step 3,072 of {first}: agent, rnd"
    before, now = state["agent"]["modules"]["policy"], parts.model.policy.state_dict()
    torch.testing.assert_close(now["pi_head.weight"], before["pi_head.weight"], rtol=0, atol=0)
    heads = now["vf_head.weight"]  # task, icm, rnd, of which icm's value is new
    torch.testing.assert_close(heads[[0, 2]], before["vf_head.weight"], rtol=0, atol=0)
    rnd = pack(parts.mix.streams["rnd"].state_dict())[1]
    for path, array in pack(state["mix"]["streams"]["rnd"])[1].items():
        np.testing.assert_array_equal(rnd[path], array)
    assert _run([*short, "init=agent"], tmp_path / "run") == 0
    assert f"begins from step 3,072 of {first}: agent\n" in capsys.readouterr().out
    assert main([*replace_arguments(DQN, [f"init_from={first}"]), f"run_dir={tmp_path / 'dqn'}"]) == 2
    assert "has agent=ppo, not dqn; give init=rewards" in capsys.readouterr().err
    assert main([*replace_arguments(short, ["env=Acrobot-v1"]), f"run_dir={tmp_path / 'no'}"]) == 2
    assert "does not fit this run's environment, networks, options" in capsys.readouterr().err
    assert not (tmp_path / "dqn").exists() and not (tmp_path / "no").exists()
