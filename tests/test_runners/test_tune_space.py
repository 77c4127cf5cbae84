"""The ranges of a search: where they come from, what a command line may say of them, and that they fit their fields."""

import dataclasses

import optuna
import pytest

import agents
import rewards
from lodestar.settings import declarations
from runners.cli.compose import compose
from runners.list import main as show
from runners.run.config import UsageError
from runners.tune.config import Space, space, spaces, values_of


def config(*argv):
    return compose(["env=CartPole-v1", *argv])[0]


def keys(found):
    return [one.key for one in found]


@pytest.mark.parametrize("name", agents.names())
def test_every_agents_ranges_name_its_fields_and_its_edges_are_accepted(name):
    cls = agents.get(name).Config
    world = "Pendulum-v1" if name in ("sac", "td3", "tqc", "crossq") else "CartPole-v1"
    source = f"env={world}"
    if agents.get(name).driver == "recording":
        source = "data=pendulum"
    found = spaces(compose([source, f"agent={name}"])[0], [], {})
    assert found
    for one in found:
        field = one.key.removeprefix("agent.")
        assert field in {f.name for f in dataclasses.fields(cls)}
        for value in one.values:
            assert getattr(cls(**{field: value}), field) == value


@pytest.mark.parametrize("name", [name for name in rewards.TABLE if name != "task"])
def test_every_rewards_ranges_can_be_tried(name):
    for field, declared in declarations(rewards.get(name).Config).items():
        assert not declared.tune or space(field, declared.tune)


def test_a_bonus_has_a_tunable_weight_and_the_task_has_none():
    found = spaces(config("reward=rnd"), [], {})
    assert "reward.rnd.weight" in keys(found) and "reward.task.weight" not in keys(found)


def test_a_class_replaces_a_range_of_its_base_and_takes_one_back():
    by_key = {one.key: one for one in spaces(config("reward=count"), [], {})}
    assert by_key["reward.count.weight"] == Space("reward.count.weight", (1e-4, 1.0), "log")
    assert "reward.re3.learning_rate" not in keys(spaces(config("reward=re3"), [], {}))


def test_what_the_command_sets_stays_unless_it_is_chosen():
    run = config("agent.gamma=0.9")
    assert "agent.gamma" not in keys(spaces(run, [], {}, {"agent.gamma"}))
    assert keys(spaces(run, ["agent.gamma"], {}, {"agent.gamma"})) == ["agent.gamma"]
    assert values_of(run, spaces(run, ["agent.gamma"], {})) == {"agent.gamma": 0.9}


def test_a_range_of_the_command_line_takes_the_place_of_the_declared_one():
    found = spaces(config(), ["agent.gamma"], {"agent.learning_rate": [1e-5, 1e-3, "log"]})
    assert keys(found) == ["agent.gamma", "agent.learning_rate"]
    assert found[1] == Space("agent.learning_rate", (1e-5, 1e-3), "log")


def test_whole_fields_are_tried_in_whole_numbers():
    assert space("agent.n_epochs", (2, 20, "log"), int) == Space("agent.n_epochs", (2, 20), "log", True)
    assert not space("agent.gamma", (0, 1), float).whole


def test_suggestions_lie_in_their_ranges_and_repeat():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    tried = [space("a", (1e-4, 1e-2, "log")), space("b", (2, 5), int), space("c", (32, 64, "choice"), int)]
    for _ in range(30):
        trial = study.ask()
        for one in tried:
            value = one.suggest(trial)
            assert one.nearest(value) == one.suggest(trial) == value
    assert {trial.params["b"] for trial in study.trials} == {2, 3, 4, 5}


def test_the_nearest_value_of_a_range():
    one = space("agent.entropy_weight", (1e-5, 0.1, "log"))
    assert (one.nearest(0.0), one.nearest(1.0), one.nearest(0.01), one.nearest("auto")) == (1e-5, 0.1, 0.01, None)
    assert space("k", (False, True, "choice")).nearest(1) is None


def test_a_range_is_shown_as_a_command_line_gives_it():
    assert str(space("a", (1e-5, 0.01, "log"))) == "[1e-05,0.01,log]"
    assert str(space("a", (32, 64, "choice"))) == "[32,64,choice]"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([1], r"tune.k=\[1\] is no range; give \[low,high\]"),
        ([2, 1], r"the lower end first"),
        ([0, 1, "log"], r"a lower end above 0 for a logarithm"),
        ([3, "choice"], r"two alternatives or more"),
        (["a", "b"], r"is no range; give"),
        ([True, False], r"is no range; give"),
    ],
)
def test_what_is_no_range_is_refused_with_what_would_be(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        space("k", given)


def test_keys_that_cannot_be_tried_are_refused_with_the_nearest_or_the_fix():
    with pytest.raises(UsageError, match=r"tune=agent.learning_rat is unknown; did you mean agent.learning_rate"):
        spaces(config(), ["agent.learning_rat"], {})
    with pytest.raises(UsageError, match=r"tune=agent.anneal has no range of its own; give one"):
        spaces(config(), ["agent.anneal"], {})
    with pytest.raises(UsageError, match=r"tune=env is unknown"):
        spaces(config(), ["env"], {})


def test_the_list_of_options_shows_the_ranges(capsys):
    assert show(["noveld", "re3", "ppo"]) == 0
    lines = {line.split("=")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert lines["agent.learning_rate"].endswith("{tune: [1e-05,0.01,log]}")
    assert lines["reward.noveld.alpha"].endswith("{tune: [0.0,1.0]}")
    assert "{tune" not in lines["reward.re3.learning_rate"]  # it learns nothing
