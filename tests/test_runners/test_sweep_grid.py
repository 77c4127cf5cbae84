"""What a grid's command line means: which jobs, which arguments, which names."""

import json
from importlib import import_module

import pytest

from runners.run.config import UsageError
from runners.sweep.grid import alternatives, expand, folder_name

CARTPOLE = "env=CartPole-v1"


def _names(*argv, folder):
    return [job.name for job in expand(list(argv), folder)]


@pytest.mark.parametrize(
    ("argument", "texts"),
    [
        ("reward=task,rnd,[task,count]", ["task", "rnd", "[task,count]"]),
        ("seed=range(5)", ["0", "1", "2", "3", "4"]),
        ("seed=range(1,7,2)", ["1", "3", "5"]),
        ("seed=range(2),7", ["0", "1", "7"]),
        ("agent.learning_rate=1e-3,3e-4", ["0.001", "0.0003"]),
        ("agent.learning_rate=1e-3,0.001", ["0.001"]),
        ("agent.net_arch=[32,32],[64]", ["[32,32]", "[64]"]),
        ("reward.clip.goal='a pole, upright',\"it's up\"", ['"a pole, upright"', '"it\'s up"']),
        ("reward.clip.goal='a pole, upright'", ["'a pole, upright'"]),
        ("max_episode_steps=null,10", ["null", "10"]),
        ("name=", [""]),
    ],
)
def test_commas_and_ranges_name_alternatives_and_a_quoted_sentence_is_one(argument, texts):
    assert alternatives(argument)[1] == texts


def test_every_combination_is_a_job_and_every_cells_first_seed_comes_first(tmp_path):
    jobs = expand(["env=CartPole-v1,Acrobot-v1", "reward=task,rnd", "seed=3,4"], tmp_path)
    assert [job.name for job in jobs] == [
        f"{env}/ppo-{reward}/s{seed}"
        for seed in (3, 4)
        for env in ("CartPole-v1", "Acrobot-v1")
        for reward in ("task", "task+rnd")
    ]
    assert jobs[0].folder == tmp_path / "jobs" / "CartPole-v1/ppo-task/s3"
    arguments = dict(argument.split("=", 1) for argument in jobs[-1].argv)
    assert arguments.pop("run_dir") == str(jobs[-1].folder)
    assert arguments == {"env": "Acrobot-v1", "reward": "rnd", "seed": "4", "control": "none", "video": "false"}


def test_only_the_lowest_seed_has_a_video_unless_the_user_asks(tmp_path):
    videos = ["video=false" not in job.argv for job in expand([CARTPOLE, "seed=5,2,9"], tmp_path)]
    assert videos == [False, True, False]
    asked = expand([CARTPOLE, "seed=1,2", "video=true", "control=auto"], tmp_path)
    assert all("video=true" in job.argv and "control=auto" in job.argv for job in asked)


def test_options_of_a_reward_that_a_job_does_not_use_are_left_out_and_what_is_then_twice_runs_once(tmp_path):
    names = _names(CARTPOLE, "reward=task,rnd", "reward.rnd.weight=1,2", folder=tmp_path)
    assert names == [
        "CartPole-v1/ppo-task/s0",
        "CartPole-v1/ppo-task+rnd/rnd.weight=1/s0",
        "CartPole-v1/ppo-task+rnd/rnd.weight=2/s0",
    ]


def test_options_of_an_agent_or_an_environment_go_to_those_that_have_them(tmp_path):
    names = _names(CARTPOLE, "agent=ppo,dqn", "agent.n_steps=64,128", "agent.learning_rate=0.1", folder=tmp_path)
    assert names == [
        "CartPole-v1/ppo-task/n_steps=64/s0",
        "CartPole-v1/ppo-task/n_steps=128/s0",
        "CartPole-v1/dqn-task/s0",
    ]
    jobs = expand(["env=CartPole-v1,lodestar/DeepSea-v0", "env.size=5,6"], tmp_path)
    assert [job.name for job in jobs] == [
        "CartPole-v1/ppo-task/s0",
        "lodestar-DeepSea-v0/ppo-task/env.size=5/s0",
        "lodestar-DeepSea-v0/ppo-task/env.size=6/s0",
    ]


def test_the_same_reward_written_twice_is_one_job(tmp_path):
    assert _names(CARTPOLE, "reward=rnd,[task,rnd]", folder=tmp_path) == ["CartPole-v1/ppo-task+rnd/s0"]


def test_presets_may_be_swept(tmp_path):
    assert _names(CARTPOLE, "preset=none,debug", folder=tmp_path) == [
        "CartPole-v1/ppo-task/preset=none/s0",
        "CartPole-v1/ppo-task/preset=debug/s0",
    ]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([CARTPOLE, "reward=taks"], r"reward=taks is unknown; did you mean task\?"),
        (["env=CartPole-v1,CartPol-v1"], r"unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ([CARTPOLE, "agent.gamma=0.9,2"], r"gamma.*\(in the job agent.gamma=2\)"),
        ([CARTPOLE, "agent.learning_rat=1"], r"did you mean agent.learning_rate\?"),
        ([CARTPOLE, "reward.rnd.weight=1"], r"belongs to the reward rnd, which this run does not use"),
        ([CARTPOLE, "seed=interval(0,1)"], r"cannot be counted; give alternatives"),
        ([CARTPOLE, "seed=0,x"], r"seed=x is not a whole number"),
        ([CARTPOLE, "seed=-1,0"], r"seed=-1 is out of range"),
        ([CARTPOLE, "agent.n_steps=${oc.env:HOME},1"], r"refused"),
        ([CARTPOLE, "reward._target_=os.system,b"], r"refused"),
        ([CARTPOLE, "+seed=1,2"], r"'\+seed' is no key"),
        ([CARTPOLE, "seed=range(1000000)"], r"more than 10,000 jobs"),
        (["--multirun"], r"is no key=value"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_runs(tmp_path, argv, words):
    with pytest.raises(UsageError, match=words):
        expand(argv, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["sweep", "tune", "transfer"])
def test_every_command_of_many_runs_refuses_a_folder_for_one_in_the_same_sentence(command, capsys):
    own = {"tune": ["tune=agent.gamma=[0.9,0.99]"], "transfer": ["over=env.size=[3,5,3]"]}.get(command, [])
    assert import_module(f"runners.{command}.__main__").main([CARTPOLE, *own, "run_dir=x"]) == 2
    sentence = "run_dir= cannot be given here, as every run has its own folder; give name= or root="
    assert capsys.readouterr().err == f"error: {sentence}\n"


def test_a_folder_that_holds_another_run_is_refused(tmp_path):
    job = expand([CARTPOLE], tmp_path)[0]
    job.folder.mkdir(parents=True)
    (job.folder / "status.json").write_text(json.dumps({"state": "finished", "key": "another"}))
    with pytest.raises(UsageError, match=r"holds a run with another configuration; give another name="):
        expand([CARTPOLE], tmp_path)


@pytest.mark.parametrize("text", ["../../etc", "/root", "..", ".hidden", "a b;rm -rf $HOME", "x" * 300, "", "ä/é"])
def test_a_name_never_leaves_its_folder(text):
    name = folder_name(text)
    assert name and len(name) <= 80 and "/" not in name and not name.startswith(".")
    assert name == folder_name(text) and name.isascii()


def test_two_ids_that_would_share_a_folder_do_not(tmp_path, monkeypatch):
    import gymnasium as gym

    for name in ("grid/Two-v0", "grid-Two-v0"):
        monkeypatch.setitem(gym.registry, name, gym.spec("CartPole-v1"))
    names = _names("env=grid/Two-v0,grid-Two-v0", folder=tmp_path)
    assert len({*names}) == 2 and all(name.startswith("grid-Two-v0/ppo-task") for name in names)
