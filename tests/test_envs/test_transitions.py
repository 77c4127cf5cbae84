import numpy as np
from scripted import ScriptedWorld

from envs.steps import Chunk, Cursor, from_gym_step, modalities_of_one
from envs.transitions import Transitions, concatenate, stack


def batch(n=2, value=0.0, **fields):
    return Transitions(
        obs={"a": np.full((n, 2), value, np.float32)},
        action=np.zeros(n, np.int64),
        reward=np.full(n, value, np.float32),
        next_obs={"a": np.full((n, 2), value + 1, np.float32)},
        terminated=np.zeros(n, bool),
        truncated=np.zeros(n, bool),
        valid=np.ones(n, bool),
        step=np.zeros(n, np.int64),
        **fields,
    )


def test_stack_then_flatten_keeps_time_major_order():
    rollout = stack([batch(2, 0.0), batch(2, 1.0), batch(2, 2.0)])
    assert rollout.shape == (3, 2)
    assert rollout.flatten().reward.tolist() == [0, 0, 1, 1, 2, 2]
    assert rollout[1].next_obs["a"].tolist() == [[2, 2], [2, 2]]
    assert concatenate([batch(2), batch(3)]).shape == (5,)


def test_ended_ignores_rows_that_are_no_transitions():
    rows = batch(3).replace(
        terminated=np.array([True, True, False]),
        truncated=np.array([False, False, True]),
        valid=np.array([True, False, True]),
    )
    assert rows.ended.tolist() == [True, False, True]


def test_at_obs_asks_about_the_state_before_the_action():
    rows = batch(2, frame=np.ones((2, 4, 4, 3), np.uint8), obs_frame=np.zeros((2, 4, 4, 3), np.uint8)).replace(
        extras={"clip": np.ones((2, 8)), "obs_clip": np.zeros((2, 8)), "goal": np.ones((2, 1))}
    )
    before = rows.at_obs()
    assert before.next_obs is rows.obs
    assert before.frame.max() == 0
    assert before.extras["clip"].max() == 0
    assert "goal" not in before.extras  # it spoke about next_obs


def test_gym_builder_counts_steps_and_carries_the_frame_before():
    world, cursor = ScriptedWorld(0), Cursor(1)
    obs, info = world.reset()
    cursor.begin(modalities_of_one(info))
    first_frame = info["frame"]
    steps = []
    for _ in range(3):
        action = int((3 * obs[0] + obs[1] + obs[2]) % 3)
        next_obs, reward, terminated, truncated, info = world.step(action)
        row = from_gym_step(cursor, obs, action, reward, next_obs, terminated, truncated, info)
        steps.append(int(row.step[0]))
        if len(steps) == 1:
            assert (row.obs_frame[0] == first_frame).all()
            assert row.obs_text[0] == "world 0, episode 0, step 0"
        assert row.text[0] == f"world 0, episode 0, step {len(steps)}"
        obs = next_obs
    assert steps == [0, 1, 2]
    assert terminated and row.terminated[0]


def test_chunk_gives_back_rows_in_time_order_and_saves_the_waiting_ones():
    chunk = Chunk(3)
    chunk.add(batch(2, 0.0), {"x": np.zeros(2)})
    chunk.add(batch(2, 1.0), {"x": np.ones(2)})
    copy = Chunk(3)
    copy.load_state_dict(chunk.state_dict())
    for each in (chunk, copy):
        assert not each.full
        each.add(batch(2, 2.0), {"x": np.full(2, 2.0)})
        assert each.full
        rollout, raw = each.take()
        assert rollout.shape == (3, 2)
        assert rollout.reward[:, 0].tolist() == raw["x"][:, 1].tolist() == [0, 1, 2]
        assert not each.full


def test_a_chunk_doubles_its_room_up_to_its_length_and_keeps_its_rows():
    chunk, room = Chunk(150), []
    for t in range(150):
        assert not chunk.full
        chunk.add({"x": np.full(2, t)}, np.full((2, 1), -t))
        room.append(chunk._capacity)
    assert chunk.full and room[0] == room[63] == 64 and room[64] == room[127] == 128 and room[128] == 150
    rows, more = chunk.take()
    assert rows["x"][:, 1].tolist() == list(range(150)) and more.shape == (150, 2, 1) and (more[1:] < 0).all()
    chunk.add({"x": np.full(2, 7)}, np.zeros((2, 1)))
    assert chunk.count == 1 and chunk.take()[0]["x"].tolist() == [[7, 7]]


def test_chunk_grows_only_as_far_as_it_is_filled():
    chunk = Chunk(10**9)  # must not ask for terabytes
    for value in range(200):
        chunk.add(batch(1, value))
    (rollout,) = chunk.take()
    assert rollout.reward[:, 0].tolist() == list(range(200))
