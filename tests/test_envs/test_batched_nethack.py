"""NetHack's games in one process are, step by step, the games of single environments."""

import numpy as np
import pytest

pytest.importorskip("nle")
from envs.batched.nethack import BatchedNetHack
from envs.make import make_batched, make_vec
from envs.transitions import Rollout
from envs.vector.in_process import InProcess

N = 3
OURS = "lodestar/NetHackScore-v0"


def assert_same(ours, theirs, ended) -> None:
    for mine, other in zip(ours[:4], theirs[:4]):
        np.testing.assert_array_equal(mine, other)
    infos, others = ours[4], theirs[4]
    assert infos["text"].tolist() == others["text"].tolist()
    assert ("final_obs" in infos) == ("final_obs" in others) == ended
    if ended:
        mask = others["_final_info"]
        np.testing.assert_array_equal(infos["_final_obs"], mask)
        np.testing.assert_array_equal(infos["final_obs"][mask], others["final_obs"][mask])
        final, other = infos["final_info"], others["final_info"]
        assert final["text"][mask].tolist() == other["text"][mask].tolist()
        for name in ("r", "l"):
            np.testing.assert_array_equal(final["episode"][name][mask], other["episode"][name][mask])


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("NetHackScore-v0", {}),
        pytest.param(
            "NetHackScore-v0",
            {"crop": 5, "message": False, "penalty_step": -1.0, "character": "val-hum-fem-neu"},
            marks=pytest.mark.nightly,
        ),
        (OURS, {"status": True, "leak": True}),
        ("lodestar/NetHackOracle-v0", {"spawn_monsters": False}),
        pytest.param("lodestar/NetHackStaircase4-v0", {"level": 2}, marks=pytest.mark.nightly),
    ],
)
def test_games_in_one_process_are_those_of_single_environments(env_id, options):
    settings = {"seed": 7, "text": True, "max_episode_steps": 50, **options}
    ours = make_vec(env_id, N, backend="auto", **settings)
    theirs = make_vec(env_id, N, backend="gym", **settings)
    assert isinstance(ours, BatchedNetHack) and isinstance(theirs, InProcess)
    (obs, infos), (other, others) = ours.reset(), theirs.reset()
    np.testing.assert_array_equal(obs, other)
    assert infos["text"].tolist() == others["text"].tolist()
    rng, ends = np.random.default_rng(0), 0
    for _ in range(220):
        actions = rng.integers(ours.single_action_space.n, size=N)
        step = ours.step(actions)
        ended = bool((step[2] | step[3]).any())
        assert_same(step, theirs.step(actions), ended)
        ends += ended
    assert ends >= 4
    for vec in (ours, theirs):
        vec.close()


def test_resets_take_seeds_for_all_or_each_and_a_mask():
    ours, theirs = (make_vec(OURS, N, backend=backend, text=True) for backend in ("batched", "gym"))
    for seed in (5, [9, 2, 4]):
        np.testing.assert_array_equal(ours.reset(seed=seed)[0].copy(), theirs.reset(seed=seed)[0])
    mask = np.array([False, True, False])
    np.testing.assert_array_equal(
        ours.reset(seed=1, options={"reset_mask": mask})[0], theirs.reset(seed=1, options={"reset_mask": mask})[0]
    )
    with pytest.raises(ValueError, match=r"2 seeds do not fit 3 games; give as many, or one number"):
        ours.reset(seed=[1, 2])


def test_a_snapshot_is_played_again_and_goes_on_exactly():
    rng = np.random.default_rng(1)
    plan = rng.integers(28, size=(500, N))
    env = make_vec(OURS, N, backend="batched", text=True, max_episode_steps=300)
    env.reset(seed=2)
    for row in plan[:350]:
        env.step(row)
    snapshot = env.snapshot()
    obs, said = env._obs.copy(), env.modalities["text"].tolist()
    fresh = make_vec(OURS, N, backend="batched", text=True, max_episode_steps=300)
    np.testing.assert_array_equal(fresh.restore(snapshot), obs)
    assert fresh.modalities["text"].tolist() == said
    for row in plan[350:]:
        step, other = env.step(row), fresh.step(row)
        assert_same(step, other, bool((step[2] | step[3]).any()))
    with pytest.raises(ValueError, match=r"the snapshot holds 3 environments, not 2; make as many"):
        make_vec(OURS, 2, backend="batched").restore(snapshot)


def test_a_snapshot_is_not_changed_by_later_steps():
    env = make_vec(OURS, N, backend="batched")
    with pytest.raises(RuntimeError, match=r"no episode to take a snapshot of; call reset\(\) first"):
        env.snapshot()
    env.reset(seed=2)
    env.step(np.array([1, 2, 3]))
    snapshot = env.snapshot()
    assert snapshot["actions"].tolist() == [[1], [2], [3]] and snapshot["steps"].tolist() == [1, 1, 1]
    env.step(np.array([4, 4, 4]))
    assert snapshot["actions"].tolist() == [[1], [2], [3]] and snapshot["steps"].tolist() == [1, 1, 1]


def test_texts_come_to_a_rollout_with_the_states_they_are_about():
    env = make_vec(OURS, N, backend="auto", text=True, max_episode_steps=4)
    rollout = Rollout(4, env, frozenset({"text"}))
    obs, infos = env.reset(seed=0)
    greetings = infos["text"].tolist()
    assert all("Agent" in text or "moon" in text for text in greetings)
    rollout.begin(obs, infos)
    for t in range(4):
        rollout.write(t, slice(0, N), *env.step(np.full(N, 22)))
    batch = rollout.transitions(frozenset({"text", "obs_text"}))
    assert batch.text.shape == (4, N)
    assert batch.obs_text[0].tolist() == greetings
    assert rollout.truncated[3].all()
    assert not any("welcome" in text for text in batch.text[3])  # the end of this episode, not the next


def test_tensors_and_frames_are_refused():
    with pytest.raises(ValueError, match=r'array="torch" is not there for NetHack, .* leave array out'):
        make_batched(OURS, 1, array="torch")
    with pytest.raises(ValueError, match=r'frame_size=32 is not supported by .* backend="gym"'):
        make_vec(OURS, 1, backend="batched", frame_size=32)
