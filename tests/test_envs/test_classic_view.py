"""Pictures of array programs beside those of the originals."""

import numpy as np
import pytest

from envs.batched.base import BatchedEnv
from envs.classic.view import ClassicPainter
from envs.make import make, make_vec
from envs.render import frame

WORLDS = {  # id -> low and high of the states drawn
    "lodestar/CartPoleUpright-v0": ((-2.2, 0, -np.pi, 0), (2.2, 0, np.pi, 0)),
    "MountainCar-v0": ((-1.2, 0), (0.6, 0)),
    "MountainCarContinuous-v0": ((-1.2, 0), (0.6, 0)),
    "lodestar/PendulumUpright-v0": ((-np.pi, 0), (np.pi, 0)),
    "Acrobot-v1": ((-np.pi, -np.pi, 0, 0), (np.pi, np.pi, 0, 0)),
}


@pytest.mark.parametrize("size", [64, 96])
@pytest.mark.parametrize("env_id", WORLDS)
def test_a_picture_is_the_originals_but_for_its_edges(env_id: str, size: int) -> None:
    env = make(env_id, frame_size=size, seed=0)
    env.reset()
    states = np.random.default_rng(0).uniform(*WORLDS[env_id], (20, len(WORLDS[env_id][0])))
    theirs = []
    for state in states:
        env.unwrapped.state = state
        theirs.append(frame(env, size))
    ours = ClassicPainter(env.unwrapped, size).draw(states)
    env.close()
    gap = np.abs(ours.astype(int) - np.stack(theirs))
    assert gap.mean(axis=(1, 2, 3)).max() < 1.0  # levels of 255
    for ours_one, theirs_one in zip(ours, theirs):
        (ink, place), (their_ink, their_place) = weigh(ours_one), weigh(theirs_one)
        assert ink == pytest.approx(their_ink, rel=0.3)  # as much ink
        np.testing.assert_allclose(place, their_place, atol=1.5)  # at the same place, pixels


def weigh(picture: np.ndarray) -> tuple[float, np.ndarray]:
    """How dark a picture is in all, and the centre of that darkness."""
    dark = 255.0 - picture.mean(axis=-1)
    rows, columns = np.indices(dark.shape)
    return dark.sum(), np.array([(dark * rows).sum(), (dark * columns).sum()]) / dark.sum()


def test_steps_and_resets_show_the_state_they_return_and_ends_the_last_of_an_episode() -> None:
    envs = make_vec("MountainCar-v0", 3, seed=0, backend="batched", frame_size=64, max_episode_steps=5)
    view = ClassicPainter(envs.world, 64)
    _, infos = envs.reset()
    np.testing.assert_array_equal(infos["frame"], view.draw(envs.state["x"]))
    for step in range(1, 6):
        before = envs.state["x"].copy()
        _, _, _, truncated, infos = envs.step(np.full(3, 2))
        np.testing.assert_array_equal(infos["frame"], view.draw(envs.state["x"]))
        assert truncated.all() == (step == 5)
    last = infos["final_info"]["frame"]
    assert not np.array_equal(last, infos["frame"])
    one = make("MountainCar-v0", frame_size=64, seed=0)
    one.reset()
    one.unwrapped.state = before[0]
    *_, info = one.step(2)
    assert np.abs(last[0].astype(int) - info["frame"]).mean() < 0.5


def test_pictures_are_taken_by_themselves_when_frames_are_asked_for() -> None:
    envs = make_vec("lodestar/CartPoleUpright-v0", 2, backend="auto", frame_size=32)
    assert isinstance(envs, BatchedEnv)
    assert envs.reset()[1]["frame"].shape == (2, 32, 32, 3)
