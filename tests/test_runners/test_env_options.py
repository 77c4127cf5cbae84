"""Options of the environment, `env.<name>`, reach every place where a run makes one, and belong to what a run is."""

import json

import pytest

from runners.evaluate import main as evaluate
from runners.run.build import load_run
from runners.run.config import load
from runners.train import main

FAST = ["total_timesteps=200", "n_envs=2", "eval_episodes=2", "video=false", "control=none"]
PPO = ["agent.n_steps=32", "agent.n_epochs=1"]
PAYS_3 = ["env=faulty_worlds:Level-v0", "env.level=3"]  # a step, in episodes of 40


@pytest.mark.parametrize(
    "agent",
    [
        ["agent=ppo", "backend=workers", *PPO],
        ["agent=dqn", "agent.learning_starts=50", "agent.buffer_size=500"],
        pytest.param(["agent=ppo", "backend=gym", *PPO], marks=pytest.mark.nightly),
        pytest.param(["agent=a2c"], marks=pytest.mark.nightly),
    ],
    ids=lambda agent: "-".join(agent[:2]),
)
def test_training_and_evaluation_now_and_later_happen_in_the_world_that_was_asked_for(agent, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main([*PAYS_3, *FAST, *agent, "log_every=64", f"run_dir={folder}"]) == 0
    assert "on faulty_worlds:Level-v0 (level=3), 200 steps" in capsys.readouterr().out
    assert load(folder / "config.yaml").env_options == {"level": 3}
    scores = json.loads((folder / "result.json").read_text())
    assert scores["this run"]["returns"] == scores["random"]["returns"] == [120.0, 120.0]
    trained = (folder / "metrics.csv").read_text().splitlines()
    column = trained[0].split(",").index("rollout/ep_rew_mean")
    assert {row.split(",")[column] for row in trained[1:]} - {""} == {"120"}
    assert evaluate([f"run={folder}", "episodes=3", "video=false"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("faulty_worlds:Level-v0 (level=3), ")
    returns = next(line.split()[2:] for line in printed.splitlines() if line.startswith("  task return  "))
    assert len(returns) == len(scores) and {*returns} == {"120.00"}


def test_a_run_in_a_world_with_other_options_is_another_run(tmp_path, capsys):
    begin = [*PAYS_3, *FAST, *PPO]
    assert main([*begin, f"run_dir={tmp_path / 'run'}"]) == 0
    assert main([*begin, f"run_dir={tmp_path / 'run'}"]) == 0
    assert "is finished already" in capsys.readouterr().out
    for changed in (["env.level=4"], ["env.sticky=0.25"]):
        assert main([*begin, *changed, f"run_dir={tmp_path / 'run'}"]) == 2
        assert "holds another run (it differs in env_options." in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["batched", "device"])
def test_array_programs_heed_options_and_the_policy_fits_them(backend, tmp_path):
    folder = tmp_path / "run"
    world = ["env=lodestar/NoisyRooms-v0", "env.rooms=2", "env.noise=on_demand", "env.bits=3", f"backend={backend}"]
    assert main([*world, *FAST, *PPO, f"run_dir={folder}"]) == 0
    config, model, *_ = load_run(folder)
    assert config.env_options == {"rooms": 2, "noise": "on_demand", "bits": 3}
    assert model.observation_space.shape == (2 * 25 + 1 + 3,)


def test_what_disturbs_is_there_in_training_evaluation_and_film(tmp_path, capsys):
    folder = tmp_path / "run"
    world = ["env=CartPole-v1", "env.sticky=0.25", "env.noisy_tv=on_demand"]
    assert main([*world, *FAST, *PPO, "video=true", f"run_dir={folder}"]) == 0
    printed = capsys.readouterr().out
    assert "on CartPole-v1 (sticky=0.25, noisy_tv=on_demand), 200 steps" in printed
    assert f"video:       {folder / 'video.mp4'}" in printed
    model = load_run(folder).model
    assert model.action_space.n == 2 + 1 and model.observation_space.shape == (4 + 16,)


@pytest.mark.filterwarnings("error:.*render_mode")
def test_worlds_of_cells_are_filmed_and_what_cannot_be_drawn_is_said_so_without_a_warning(tmp_path, capsys):
    for env_id, film in (
        ("lodestar/NoisyRooms-v0", f"{tmp_path / 'run'}/video.mp4"),
        ("faulty_worlds:Plain-v0", "none (this environment cannot be drawn)"),
    ):
        folder = tmp_path / "run" if film.endswith("mp4") else tmp_path / "other"
        short = [*FAST, *PPO, "max_episode_steps=40"]
        assert main([f"env={env_id}", *short, "video=true", f"run_dir={folder}"]) == 0
        assert f"video:       {film}\n" in capsys.readouterr().out
        assert (folder / "video.mp4").exists() == film.endswith("mp4")


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        (["env=lodestar/DeepSea-v0", "env.size=1"], "size=1 is out of range; give at least 2"),
        (["env=CartPole-v1", "env.sticky=1"], "sticky=1.0 is out of range; give a probability of 0 or more"),
        (["env=Pendulum-v1", "env.noisy_tv=on_demand"], 'mode "on_demand" needs Discrete actions'),
        (["env=MiniGrid-DoorKey-5x5-v0", "env.mission=true"], "mission='true' is unknown; give"),
        (["env=MiniGrid-DoorKey-5x5-v0", "env.width=5"], "cannot be made with the arguments ['width']"),
        (
            ["env=CartPole-v1", "env.sticky=0.25", "backend=batched"],
            "sticky=0.25 is not supported by the array program of CartPole-v1",
        ),
        (
            ["env=CartPole-v1", "env.sutton_barto_reward=true", "backend=batched"],
            "sutton_barto_reward=True is not supported by the array program of CartPole-v1 (of its options, none)",
        ),
        (["env=faulty_worlds:Plain-v0", "env.level=3"], "env.level=3 is no option of faulty_worlds:Plain-v0; it has"),
    ],
)
def test_an_option_that_cannot_be_is_one_sentence_before_training(world, sentence, tmp_path, capsys):
    assert main([*world, *FAST, f"root={tmp_path}"]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error and error.startswith("error: ") and "\n" not in error
    assert not list(tmp_path.glob("*/*/*"))
