"""Every environment has one sentence that says what counts as progress, for judges of what it tells."""

import pytest

from envs.family import families, family_of
from envs.make import make, spec_of

IDS = [env_id for family in families().values() for env_id in family.ids]


@pytest.mark.parametrize("env_id", IDS)
def test_every_listed_environment_has_an_aim_of_one_sentence(env_id):
    spec = spec_of(env_id)
    aim = family_of(spec).aim(spec)
    assert 10 < len(aim) < 250 and aim == aim.strip()
    assert "." not in aim[:-1] and "\n" not in aim


@pytest.mark.parametrize(
    ("env_id", "aim"),
    [
        ("MiniGrid-DoorKey-8x8-v0", "get the key, open the door and reach the green goal square"),
        ("MiniGrid-Unlock-v0", "get the key and unlock the door"),
        ("MiniGrid-UnlockPickup-v0", "get the key, unlock the door and pick up the box behind it"),
        ("MiniGrid-ObstructedMaze-1Dl-v0", "get the key, unlock the locked door and pick up the blue ball behind it"),
        ("MiniGrid-MemoryS7-v0", "see which thing is in the first room, and go to the same thing at the end of the"),
        ("BabyAI-GoToRedBall-v0", "go to the thing or the door that the mission names"),
        ("BabyAI-BossLevel-v0", "do what the mission says"),
        ("HalfCheetah-v5", "run forward as fast as possible"),
        ("merge-v0", "drive on to the end of the road, let cars merge from the side and crash into nobody"),
    ],
)
def test_aims_are_those_of_the_task_that_the_id_names(env_id, aim):
    spec = spec_of(env_id)
    assert family_of(spec).aim(spec).startswith(aim)


def test_an_environment_that_nobody_knows_has_no_aim():
    assert family_of(make("FrozenLake-v1").spec).aim(spec_of("FrozenLake-v1")) == ""
