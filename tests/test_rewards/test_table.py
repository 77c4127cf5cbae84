import json

import numpy as np
import pytest
from gymnasium import spaces
from test_mix import rollout

from rewards.check import check_reward
from rewards.design.table import StateTable, TableConfig

BOX, ACTIONS = spaces.Box(-10, 10, (1,), np.float32), spaces.Discrete(2)


@pytest.fixture
def made(tmp_path):
    def make(states=((0.0,), (2.0,)), rewards=((1.0, 2.0), (3.0, 4.0)), actions=ACTIONS):
        (tmp_path / "table.json").write_text(json.dumps({"states": states, "rewards": rewards}))
        return StateTable(TableConfig(file=str(tmp_path / "table.json")), BOX, actions)

    return make


def test_the_nearest_state_decides_and_the_action_is_its_column(made):
    batch = rollout([[0.4], [1.6], [9.0]]).flatten()  # begins at 0, so obs are 0, 0.4, 1.6
    batch = batch.replace(action=np.array([0, 1, 0]))
    assert made().score(batch).tolist() == [1, 2, 3]
    assert made(actions=spaces.Discrete(2, start=5)).score(batch.replace(action=batch.action + 5)).tolist() == [1, 2, 3]
    assert "not 0 in 2 of 2 states" in made().notes()[0]


def test_it_keeps_the_contract(made):
    check_reward(made())


def test_files_that_do_not_fit_and_continuous_actions_are_one_sentence(made):
    with pytest.raises(ValueError, match=r"reward.table.file='' names no file"):
        StateTable(TableConfig(), BOX, ACTIONS)
    with pytest.raises(
        ValueError, match=r"has states \(1, 2\) and rewards \(1, 2\), this environment observations of 1"
    ):
        made(states=((0.0, 1.0),), rewards=((1.0, 2.0),))
    with pytest.raises(ValueError, match=r"a column for each action, not Box"):
        made(actions=BOX)
