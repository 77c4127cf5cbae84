import json
import subprocess
import sys
from pathlib import Path

import pytest

import rewards
from envs.make import goals
from runners.cli import presets
from runners.cli.compose import compose, fill_goals
from runners.run.config import RENAMED, TrainConfig, UsageError, from_dict, load, nearest_name, save, to_dict

ROOT = Path(__file__).parents[2]
CARTPOLE = "env=CartPole-v1"


def test_a_bonus_is_added_to_the_task_and_a_list_says_it_outright():
    assert list(compose([CARTPOLE])[0].reward) == ["task"]
    assert list(compose([CARTPOLE, "reward=rnd"])[0].reward) == ["task", "rnd"]
    assert list(compose([CARTPOLE, "reward=[rnd]"])[0].reward) == ["rnd"]
    assert list(compose([CARTPOLE, "reward=[rnd,task,count]"])[0].reward) == ["rnd", "task", "count"]


def test_values_arrive_with_the_types_of_the_dataclasses():
    config, _ = compose(
        [CARTPOLE, "total_timesteps=1e6", "agent.n_steps=1e2", "agent.learning_rate=1", "reward=rnd",
         "reward.rnd.weight=linear:1:0:200000", "agent.net_arch=[32,32]", "max_episode_steps=null", "seed=7"]
    )  # fmt: skip
    assert (config.total_timesteps, config.seed, config.max_episode_steps) == (1_000_000, 7, None)
    assert type(config.total_timesteps) is int
    assert (config.agent.n_steps, config.agent.learning_rate, config.agent.net_arch) == (100, 1.0, [32, 32])
    assert config.reward["rnd"].weight == "linear:1:0:200000"
    assert type(config.reward["rnd"]) is rewards.get("rnd").Config


@pytest.mark.parametrize(
    "text",
    [
        "runs of mine",
        "it's",
        'a "quoted" word',
        "a, b",
        "x=y",
        "back\\slash",
        'end\\"',
        "tail\\",
        "[odd",
        "a: b",
        "{",
        "#1",
    ],
)
def test_a_text_needs_no_quotes_of_its_own(text):
    assert compose([CARTPOLE, f"root={text}"])[0].root == text


def test_a_judge_is_told_what_it_needs_in_braces():
    options = "reward.bradley_terry.judge_options={mistakes: 0.1, order: [speed, -gap], cached: a/b.jsonl}"
    config = compose(["env=Pendulum-v1", "reward=bradley_terry", options])[0]
    told = config.reward["bradley_terry"].judge_options
    assert told == {"mistakes": 0.1, "order": ["speed", "-gap"], "cached": "a/b.jsonl"}


def test_a_text_in_quotes_loses_them():
    assert compose([CARTPOLE, 'root="a b"'])[0].root == "a b"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("lr=abc", "lr=abc is unknown; did you mean agent.learning_rate?"),
        ("gamma=99", "gamma=99 is unknown; did you mean agent.gamma?"),
        ("sed=1", "sed=1 is unknown; did you mean seed?"),
        ("reward.rnd.wieght=2", "reward.rnd.wieght=2 is unknown; did you mean reward.rnd.weight?"),
        ("reward.rdn.weight=2", "reward.rdn.weight=2 is unknown; did you mean reward.rnd.weight?"),
        ("agent.gamma=99", "agent.gamma=99.0 is out of range; give a number in (0, 1]"),
        ("agent.learning_rate=abc", "agent.learning_rate='abc' is neither a number nor"),
        ("agent.n_steps=1.5", "agent.n_steps=1.5 is not a whole number"),
        ("reward=rdn", "reward=rdn is unknown; did you mean rnd?"),
        ("agent=poo", "agent=poo is unknown; did you mean ppo?"),
        ("preset=nnone", "preset=nnone is unknown; did you mean none?"),
        ("resume=allways", "resume='allways' is unknown; give one of auto, never, must"),
        ("seed=-1", "seed=-1 is out of range; give a number in [0, 2147483648)"),
        ("seed=0,1", "seed=0,1 is not a whole number"),
        (
            "total_timesteps=0",
            "total_timesteps=0 is out of range; give a number in [1, 1e+15]",
        ),
        ("total_timesteps=inf", "total_timesteps=inf is not a whole number"),
        ("video=perhaps", "video=perhaps is not true or false"),
        ("device=gpu", "device=gpu is no device; give auto, cpu, cuda, cuda:N or mps"),
        ("run_dir=runs/../../x", "run_dir=runs/../../x leaves its folder by '..'"),
        ("root=../x", "root=../x leaves its folder by '..'"),
        ("reward=task,rnd", "reward=task,rnd names alternatives; to add rewards up write 'reward=[task,rnd]'"),
        ("reward=[rnd,rnd]", "reward=[rnd,rnd] names a reward twice"),
        ("reward=[]", "reward=[] teaches nothing"),
        ("reward.count.weight=1", "belongs to the reward count, which this run does not use (task+rnd); add it: "),
        ("nothing", "'nothing' is no key=value"),
        ("seed", "'seed' is no key=value; did you mean seed=...?"),
        ("+seed=1", "'+seed' is no key"),
        ("~seed=1", "'~seed' is no key"),
        ("agent@x=ppo", "'agent@x' is no key"),
        ("root=" + "x" * 5000, "root has 5,000 characters; give at most 4,000"),
    ],
)
def test_every_mistake_is_one_sentence_with_the_nearest_name(arguments, sentence):
    with pytest.raises(UsageError) as error:
        compose([CARTPOLE, "reward=rnd", *([arguments] if isinstance(arguments, str) else arguments)])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_environment_is_asked_for():
    with pytest.raises(UsageError, match="env= is missing, as in env=CartPole-v1"):
        compose(["reward=rnd"])


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("lodestar/NoisyRooms-v0 env.noise=off env.rooms=1e1", {"noise": "off", "rooms": 10}),
        ("lodestar/DeepSea-v0 env.size=20 env.stochastic=true", {"size": 20, "stochastic": True}),
        ("MiniGrid-DoorKey-8x8-v0 env.mission=words env.max_steps=null", {"mission": "words", "max_steps": None}),
        ("MiniGrid-DoorKey-8x8-v0 env.size=6", {"size": 6}),
        ("CartPole-v1 env.sticky=0.25 env.noisy_tv=on_demand", {"sticky": 0.25, "noisy_tv": "on_demand"}),
        ("CartPole-v1 env.sticky=0", {"sticky": 0.0}),
        ("Pendulum-v1 env.g=9.5", {"g": 9.5}),
        ("highway-fast-v0 env.config={lanes_count:2}", {"config": {"lanes_count": 2}}),
        ("FrozenLake-v1 env.desc=[SF,FG] env.is_slippery=false", {"desc": ["SF", "FG"], "is_slippery": False}),
        ("faulty_worlds:Any-v0 env.level=3 env.word=x env.deep=true", {"level": 3, "word": "x", "deep": True}),
    ],
)
def test_options_of_the_environment_keep_their_types(arguments, options, tmp_path):
    config, _ = compose(["env=" + arguments.split()[0], *arguments.split()[1:]])
    assert config.env_options == options
    assert [type(value) for value in config.env_options.values()] == [type(value) for value in options.values()]
    save(config, tmp_path / "config.yaml")
    again = load(tmp_path / "config.yaml")
    assert again.env_options == options and again.key() == config.key()
    assert config.key() != compose(["env=" + arguments.split()[0]])[0].key()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "lodestar/DeepSea-v0 env.sise=20",
            "env.sise=20 is no option of lodestar/DeepSea-v0; it has env.size, env.stochastic, env.mapping_seed, "
            "env.physics, env.sticky, env.noisy_tv",
        ),
        (
            "CartPole-v1 env.seed=3",
            "env.seed=3 is no option of CartPole-v1; it has env.sutton_barto_reward, env.physics, env.sticky",
        ),
        ("CartPole-v1 env.render_mode=human", "env.render_mode=human is no option of CartPole-v1"),
        ("lodestar/DeepSea-v0 size=20", "size=20 is unknown; did you mean env.size?"),
        ("lodestar/DeepSea-v0 env.size=many", "env.size=many is not a whole number"),
        ("lodestar/DeepSea-v0 env.stochastic=1", "env.stochastic=1 is not true or false"),
        ("MiniGrid-DoorKey-8x8-v0 env.size=big", "env.size=big is not a whole number or a number"),
        ("CartPole-v1 env.sticky=often", "env.sticky=often is not a number or null"),
        ("CartPole-v1 env_options={sticky:0.25}", "env_options={sticky:0.25} is unknown"),
    ],
)
def test_a_mistake_in_an_option_of_the_environment_is_one_sentence(arguments, sentence):
    with pytest.raises(UsageError) as error:
        compose(["env=" + arguments.split()[0], *arguments.split()[1:]])
    assert sentence in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UsageError, match="env= is missing"):
        compose(["env.sticky=0.25"])


def test_a_run_without_options_is_written_as_before_there_were_any():
    config, _ = compose([CARTPOLE])
    assert "env_options" not in to_dict(config) and config.env_label == "CartPole-v1"
    assert compose([CARTPOLE, "env.sticky=0.25"])[0].env_label == "CartPole-v1 (sticky=0.25)"
    one, two = (
        compose([CARTPOLE, *order])[0]
        for order in (["env.sticky=0", "env.noisy_tv=always"], ["env.noisy_tv=always", "env.sticky=0"])
    )
    assert one.key() == two.key()


@pytest.mark.parametrize(
    "payload",
    [
        "_target_=os.system",
        "reward._target_=torch.hub.load",
        "agent._target_=subprocess.run",
        "reward={_target_:os.system}",
        "root=${oc.env:HOME}",
        "seed=${oc.decode:1}",
        "hydra.run.dir=/tmp/x",
        "hydra.searchpath=[file:///tmp]",
        "hydra/launcher=basic",
        "preset=../../etc/passwd",
        "agent=../x",
        "reward=os:system",
        "reward=[torch.hub:load]",
        "agent=stable_baselines3:PPO",
        "agent.policy.__class__=x",
        "--config-dir=/tmp",
        "--multirun",
    ],
)
def test_a_configuration_is_data_and_executes_nothing(payload):
    with pytest.raises(UsageError):
        compose([CARTPOLE, payload])


def test_config_yaml_comes_back_as_it_was(tmp_path):
    config, _ = compose([CARTPOLE, "reward=[task,count]", "agent=dqn", "reward.count.weight=0.5", "seed=3"])
    save(config, tmp_path / "config.yaml")
    again = load(tmp_path / "config.yaml")
    assert to_dict(again) == to_dict(config) and again.key() == config.key()
    assert type(again.agent) is type(config.agent)


def test_a_run_saved_before_there_was_an_option_keeps_what_it_did():
    config, _ = compose([CARTPOLE, "reward=[hindsight,byol_hindsight]"])
    values = to_dict(config)
    assert from_dict(values).reward["hindsight"].skip
    for options in values["reward"].values():
        del options["skip"]
    saved = from_dict(values)
    assert not saved.reward["hindsight"].skip
    assert not saved.reward["byol_hindsight"].skip


def test_a_config_yaml_cannot_name_classes(tmp_path):
    values = to_dict(compose([CARTPOLE])[0])
    values["reward"] = {"os:system": {}}
    with pytest.raises(UsageError, match="does not fit this version"):
        from_dict(values)
    (tmp_path / "config.yaml").write_text("!!python/object/apply:os.mkdir [executed]")
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "config.yaml")


def test_the_key_ignores_where_a_run_is_kept_and_nothing_else():
    base = compose([CARTPOLE, "reward=rnd"])[0].key()
    for same in ("root=elsewhere", "checkpoint_every=7", "video=false", "log_every=5", "resume=must", "preset=none"):
        assert compose([CARTPOLE, "reward=rnd", same])[0].key() == base, same
    for other in ("seed=1", "reward.rnd.weight=2", "agent.gamma=0.9", "agent=a2c", "total_timesteps=5", "n_envs=2"):
        assert compose([CARTPOLE, "reward=rnd", other])[0].key() != base, other


def test_a_config_can_be_made_by_hand():
    agent = __import__("agents").get("ppo").Config()
    config = TrainConfig(env="CartPole-v1", reward={"rnd": rewards.get("rnd").Config()}, agent=agent)
    assert config.folder() == Path("runs/CartPole-v1/ppo-rnd")
    assert TrainConfig(env="lodestar/A:b/../c-v0", reward={}, agent=agent).folder().parts[1] == "lodestar-A-b-..-c-v0"


def test_initials_last_parts_and_letters_find_the_nearest_name():
    names = ["agent.learning_rate", "agent.batch_size", "seed", "reward.clip.goal"]
    assert nearest_name("lr", names) == "agent.learning_rate"
    assert nearest_name("agent.lr", [*names, "agent.gru", "reward.rnd.learning_rate"]) == "agent.learning_rate"
    assert nearest_name("bs", names) == "agent.batch_size"
    assert nearest_name("goal", names) == "reward.clip.goal"
    assert nearest_name("sede", names) == "seed"
    assert nearest_name("xyzzy", names) is None


def test_a_reward_that_wants_a_goal_takes_the_environments_own():
    class Options:
        goal, baseline = "", ""

    config = TrainConfig(env="CartPole-v1", reward={"seen": Options()}, agent=None)
    fill_goals(config)
    assert config.reward["seen"].goal == "pole vertically upright on top of the cart"
    assert config.reward["seen"].baseline == "pole and cart"
    config = TrainConfig(env="HalfCheetah-v5", reward={"seen": Options()}, agent=None)
    config.env = "FrozenLake-v1"
    with pytest.raises(UsageError, match=r"give reward\.seen\.goal="):
        fill_goals(config)


def test_a_contrast_takes_the_goals_opposite_and_the_model_that_was_taught_the_world(monkeypatch):
    from rewards.vision import encoder

    monkeypatch.setattr(encoder, "model_for", lambda env: "lodestar-96")
    config = compose(["env=highway-fast-v0", "reward=contrast"])[0].reward["contrast"]
    known = goals("highway-fast-v0")[0]
    assert (config.goal, config.negative, config.model) == (known.prompt, known.negative, "lodestar-96")
    for own in ("reward.contrast.model=lodestar", "reward.contrast.weights=some.pt"):
        assert compose(["env=highway-fast-v0", "reward=contrast", own])[0].reward["contrast"].model == "lodestar"
    own = compose(["env=highway-fast-v0", "reward=contrast", "reward.contrast.goal=a red car"])[0].reward["contrast"]
    assert (own.goal, own.negative, own.model) == ("a red car", "", "lodestar-96")


def test_the_control_of_synthesis_needs_no_sentence():
    config, _ = compose(["env=FrozenLake-v1", "reward=synthesis", "reward.synthesis.semantics=constant"])
    assert config.reward["synthesis"].goal == ""


def test_the_published_rewards_for_driving_are_presets():
    road = ["env=highway-fast-v0"]
    made = {name: compose([*road, f"preset={name}"])[0].reward for name in ("vlm_rm", "lord", "roboclip", "vlm_rl")}
    clip, lord, binary = made["vlm_rm"]["clip"], made["lord"]["contrast"], made["roboclip"]["clip"]
    assert (clip.goal, clip.baseline, clip.alpha) == ("A car is driving safely", "A car", 0.5)
    assert (lord.goal, lord.positive_weight, lord.negative_weight, lord.low, lord.high) == ("", [0], [1], -1, 0)
    assert binary.threshold == 0.32
    collided = "Two cars have collided with each other on the road"
    assert (made["vlm_rl"]["synthesis"].negative, lord.negative) == (collided, collided)
    constant = compose([*road, "preset=constant_semantics"])[0].reward["synthesis"]
    assert constant.semantics == "constant" and list(made["vlm_rl"]) == ["synthesis"]


HELP = """
import sys
sys.argv = ["train"]
from runners.train import main
assert main(["--help"]) == 0
heavy = {"torch", "stable_baselines3", "open_clip", "hydra", "matplotlib"} & set(sys.modules)
print("HEAVY", sorted(heavy))
"""


def test_help_lists_everything_without_heavy_imports():
    import agents

    output = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in [*rewards.TABLE, *agents.TABLE, *presets.all_presets(), "total_timesteps=100000", "reward=task"]:
        assert f"  {name} " in output, name
    assert output.splitlines()[-1] == "HEAVY []"


def test_list_names_environments_by_family_and_goals(capsys):
    from runners.list import main

    assert main([]) == 0
    output = capsys.readouterr().out
    assert 'lodestar/CartPoleUpright-v0       upright: "pole vertically upright on top of the cart"' in output
    for line in ("environments: classic", "MiniGrid-DoorKey-8x8-v0", "NetHackScore-v0", "HalfCheetah-v5"):
        assert line in output
    assert main(["Pendulum-v1"]) == 0
    assert capsys.readouterr().out.endswith("signals, by column: 0 height, 1 spin, 2 torque\n")
    assert main(["rnd"]) == 0
    assert "  reward.rnd.weight=" in capsys.readouterr().out
    assert main(["icm"]) == 0  # what its Config inherits is explained too, in the words of the class nearest to it
    options = dict(
        line.strip().split(maxsplit=1) for line in capsys.readouterr().out.split("options\n")[1].splitlines()
    )
    assert options["reward.icm.weight=1.0"].startswith("multiplies the scaled reward")
    assert options["reward.icm.features=64"].startswith("size of the embedding")
    assert options["reward.icm.epochs=1"].startswith("passes over the transitions of one update")
    assert main(["dqn"]) == 0
    assert "  agent.learning_starts=1000 " in capsys.readouterr().out
    assert main(["lodestar/DeepSea-v0"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("lodestar/DeepSea-v0: A dive through size x size cells")
    own = "\n  env.size=10\n  env.stochastic=false\n  env.mapping_seed=0"
    options = f"{own}\n  env.physics=null\n  env.sticky=null\n  env.noisy_tv=null\n"
    assert "\n\noptions" + options in output
    assert main(["CartPole-v9"]) == 2
    assert "unknown environment 'CartPole-v9'; did you mean 'CartPole-v1'?" in capsys.readouterr().err
    assert main(["cuont"]) == 2
    assert "did you mean count?" in capsys.readouterr().err


def test_a_third_partys_reward_is_listed_without_importing_it(tmp_path):
    (tmp_path / "novelty.py").write_text('"""Novelty: pays for what is new. More."""\nraise RuntimeError("imported")\n')
    info = tmp_path / "novelty-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: novelty\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lodestar_rl.rewards]\nnovelty = novelty:Novelty\n")
    code = "import rewards; from runners.list import table_text; print(table_text(rewards.table))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert "  novelty                 Novelty: pays for what is new" in run.stdout, run.stderr


def test_the_status_key_is_plain_json():
    assert json.loads(json.dumps(to_dict(compose([CARTPOLE])[0])))["agent"]["name"] == "ppo"


def test_a_preset_in_an_agents_place_is_told_whose_it_is():
    with pytest.raises(UsageError, match=r"agent=dreamer is a preset of world_model; give agent=world_model agent.pre"):
        compose(["env=CartPole-v1", "agent=dreamer"])


def test_the_simulator_as_a_model_is_a_word_not_a_truth():
    config, _ = compose(["env=Pendulum-v1", "agent=dyna", "agent.model=true"])
    assert config.agent.model == "true"


RUN_0_1_0 = Path(__file__).parent / "run_of_0_1_0"


def test_a_run_of_version_0_1_0_is_understood_and_its_checkpoint_refused_in_one_sentence(capsys):
    from runners.evaluate import main

    config = load(RUN_0_1_0 / "config.yaml")
    assert (config.agent_name, config.agent.rollouts_per_step, config.agent.reward_source) == ("dyna", 4, "auto")
    assert main([f"run={RUN_0_1_0}"]) == 2
    error = capsys.readouterr().err
    assert "has format 1, this version reads format 2; use the version of lodestar-rl that wrote it (0.1.0)" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_key_that_was_renamed_or_dropped_is_answered_with_its_new_name(old, new):
    uses = "agent=dyna" if old.startswith("agent.") else f"reward={old.split('.')[1]}"
    with pytest.raises(UsageError, match=f"{old} is now called {new}" if new else f"{old} is gone; leave it out"):
        compose([CARTPOLE, uses, f"{old}=1"])
