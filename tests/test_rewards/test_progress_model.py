"""Windows of frames scored by a real server that looks at them: by hand, beside training, relabelled, with faults."""

import json
import math
import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from model_server import ModelServer, breaks_off, hangs, says, status
from rollouts import blank

from lodestar.state import pack, unpack
from rewards.adapters.driver import EpisodeTracker
from rewards.check import check_reward
from rewards.llm.judges.windows import FrameProgress, TokenShare, WindowGrade
from rewards.mix.mix import Mix, Stream
from rewards.vision.progress_model import Frames, ProgressModel, ProgressModelConfig, file_name

SPACES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)
GOAL = "the picture is bright"
LATE = 20.0  # seconds in which a process has surely started


def brightness(image):
    return float(image.mean()) / 255


def thinks(text, images):
    """Bright is good, in each of the three forms."""
    p = min(max(brightness(images[-1]), 1e-6), 1 - 1e-6)
    if "Grade" in text:
        return json.dumps({"score": 1 + round(4 * p)})
    if "For each frame" in text:
        return json.dumps({"progress": [brightness(image) for image in images], "success": float(p > 0.5)})
    return {" Yes": math.log(p / 2), "yes": math.log(p / 4), "No": math.log((1 - p) * 3 / 4), "Maybe": math.log(1 / 4)}


@pytest.fixture(scope="module")
def server():
    with ModelServer(thinks) as running:
        yield running


def options(server, **more):
    return {"model": "tiny", "url": server.url, "attempts": 1, "timeout": 5.0, **more}


def make(server, judge="progress", ask="at_once", more=None, **settings):
    given = {"every": 2, "window": 3, "size": 8, "goal": GOAL, **settings}
    judge_options = {} if server is None else options(server, **(more or {}))
    return ProgressModel(ProgressModelConfig(judge=judge, judge_options=judge_options, ask=ask, **given), *SPACES)


def windows_of(levels, ended=(), n=1):
    """A rollout (T, n) whose frames have these brightnesses, each with its own corner; episodes end where named."""
    shape = (len(levels), n)
    frame = np.broadcast_to(np.uint8(levels)[:, None, None, None, None], (*shape, 8, 8, 3)).copy()
    frame[:, :, 0, 0] = 255 - frame[:, :, 1, 1]  # no frame has one colour only
    truncated = np.zeros(shape, bool)
    truncated[list(ended)] = True
    step, count = np.zeros(shape, np.int64), 0
    for t in range(len(levels)):
        step[t], count = count, 0 if t in ended else count + 1
    return blank(*shape, frame=frame, truncated=truncated, step=step)


def seen(level):
    """The brightness of a frame of `windows_of`."""
    return (63 * level + 255 - level) / 64 / 255


def test_a_token_is_worth_its_share_of_yes_and_no(server, tmp_path):
    frame = np.full((8, 8, 3), 51, np.uint8)
    np.save(tmp_path / "a.npy", frame)
    judge = TokenShare(**options(server), goal=GOAL, folder=str(tmp_path))
    answers = judge.label(["a"])
    # yes: 0.2 / 2 + 0.2 / 4, no: 0.8 * 3 / 4
    assert answers.value[0] == pytest.approx(0.15 / 0.75) and not answers.failed[0]
    asked = server.seen[-1][1]
    assert (asked["logprobs"], asked["top_logprobs"], asked["max_tokens"]) == (True, 20, 1)
    gone = judge.label(["b"])
    assert gone.failed[0] and "are gone" in gone.failure
    judge.close()


def test_progress_is_that_of_the_last_frame_and_success_and_a_grade_its_fifth(server, tmp_path):
    for name, level in (("a", 255), ("b", 204)):
        np.save(tmp_path / f"{name}.npy", np.full((8, 8, 3), level, np.uint8))
    common = {**options(server), "goal": GOAL, "folder": str(tmp_path)}
    assert FrameProgress(**common).label(["a b"]).value[0] == pytest.approx((0.8 + 1) / 2)
    assert WindowGrade(**common).label(["a b"]).value[0] == pytest.approx(3 / 4)
    server.plan.append(says('{"progress": [0.5], "success": 1}'))
    assert "answered 1 progresses to 2 frames" in FrameProgress(**common).label(["a b"]).failure
    server.plan.append(says("Yes, of course"))
    assert "gave no probability of yes or no (its candidates: none)" in TokenShare(**common).label(["a"]).failure


def test_windows_are_scored_every_few_steps_and_at_the_end_and_the_reward_is_what_they_gained(server):
    reward, levels = make(server), [10, 20, 30, 40, 250, 60, 70]
    batch = windows_of(levels, ended=[4])  # windows after steps 1, 3 and 4; a new episode, a window after its step 1
    mix = Mix([Stream("progress_model", reward, gamma=0.9)])
    batch = mix.embed(batch)
    assert batch.frame is None
    first, memory = mix.score(batch)
    phi = [seen(20) / 2, seen(40) / 2, (seen(250) + 1) / 2, seen(70) / 2]
    gained = [0, phi[0], 0, phi[1] - phi[0], phi[2] - phi[1], 0, phi[3]]
    assert first["progress_model"].ravel().tolist() == pytest.approx(gained, abs=1e-4)
    images = [len([p for p in body["messages"][0]["content"] if p["type"] == "image_url"]) for _, body in server.seen]
    assert sorted(images[-4:]) == [1, 1, 2, 3]
    count = len(server.seen)
    again, _ = mix.score(batch)
    assert len(server.seen) == count and np.array_equal(first["progress_model"], again["progress_model"])
    assert mix.update(batch, first)["progress_model/scored"] == 4
    assert (np.count_nonzero(memory["progress_model"]["seen"], axis=1) == 1).all()
    reward.close()


def test_a_long_episode_keeps_its_first_frame_and_the_newest(server):
    reward = make(server, every=1)
    kept, memory = reward.recall(windows_of([10, 20, 30, 40, 50]), reward.initial_memory(1))
    names = [reward.frames.keep(windows_of([level]).frame[0, 0]) for level in (10, 40, 50)]
    assert memory["seen"][0].tolist() == names and len(np.unique(kept)) == 6
    reward.close()


def test_a_window_that_several_environments_show_is_asked_about_once(server):
    reward, count = make(server, every=1), len(server.seen)
    scores, _ = reward.scan(windows_of([77, 78], n=4), reward.initial_memory(4))
    assert len(server.seen) == count + 2 and (scores == scores[:, :1]).all() and scores.all()
    reward.close()


def test_beside_training_a_replay_is_relabelled_when_the_answers_come(server):
    reward = make(server, ask="beside", every=1)
    mix = Mix([Stream("progress_model", reward, gamma=0.9)])
    batch = mix.embed(windows_of([100, 110, 120, 130], ended=[3]))
    kept, _ = mix.keep(batch, mix.initial_memory(1))
    rows = batch.replace(extras=kept).flatten()[[2, 0, 3, 1]]
    scored, _ = reward.score(batch[0], reward.initial_memory(1))
    assert not scored.ready.any()
    assert not mix.relabel(rows)["progress_model"].any()
    metrics, until = {}, time.monotonic() + LATE
    while metrics.get("progress_model/scored", 0) < 4 and time.monotonic() < until:
        metrics = mix.update(batch, mix.score(batch)[0])
        time.sleep(0.02)
    assert metrics["progress_model/answered"] == 4 and metrics["progress_model/failed"] == 0
    phi = [seen(100) / 2, seen(110) / 2, seen(120) / 2, (seen(130) + (seen(130) > 0.5)) / 2]
    gained = np.diff([0, *phi])[[2, 0, 3, 1]]
    np.testing.assert_allclose(mix.relabel(rows)["progress_model"], gained, atol=1e-4)
    state, other = unpack(*pack(reward.state_dict())), make(server, ask="beside", every=1)
    other.load_state_dict(deepcopy(state))
    assert other.score(batch[0], other.initial_memory(1))[0].value == pytest.approx(phi[0], abs=1e-4)
    reward.close()
    other.close()


@pytest.mark.parametrize("plan", [status(500), breaks_off, hangs(0.5), says("none"), status(400)])
def test_a_fault_of_the_server_is_no_score_and_a_sentence(server, plan):
    reward = make(server, every=1, more={"timeout": 0.2})
    batch, memory = windows_of([201, 202]), reward.initial_memory(1)
    server.plan += [plan] * 20
    scores, _ = reward.scan(batch[:1], memory)
    assert not scores.any() and reward.annotator.failure and reward.annotator.metrics()["failed"] >= 3
    server.plan.clear()
    until = time.monotonic() + LATE
    while not scores.any() and time.monotonic() < until:
        reward.annotator._asker.breaker.until = 0.0  # it may be tried again
        scores, _ = reward.scan(batch[1:], memory)
    assert scores.all()
    reward.close()


def test_a_judge_that_failed_too_often_is_left_alone(server):
    reward, count = make(server, every=1), len(server.seen)
    server.plan += [status(500)] * 40
    reward.scan(windows_of(range(150, 190)), reward.initial_memory(1))
    # Those in flight are not called back.
    assert len(server.seen) - count <= 5 + 8 and reward.annotator._asker.breaker.open
    server.plan.clear()
    reward.close()


def test_a_run_of_an_earlier_version_that_waited_for_answers_continues(server):
    reward = make(server, every=1)
    batch, memory = windows_of([211]), reward.initial_memory(1)
    expected, _ = reward.scan(batch, memory)
    state = unpack(*pack(reward.state_dict()))
    del state["annotator"]
    other, count = make(server, every=1), len(server.seen)
    other.load_state_dict(state)
    assert other.scan(batch, memory)[0] == expected and len(server.seen) == count
    reward.close()
    other.close()


def test_the_memory_of_a_run_of_an_earlier_version_meets_the_next_episode(server):
    reward = make(server)
    tracker = EpisodeTracker({"progress_model": reward}, 2, 8)
    tracker.memory["progress_model"] |= {"count": np.array([1, 2]), "latest": np.array([5, 6])}
    tracker.begin({"frame": np.zeros((2, 8, 8, 3), np.uint8)}, np.array([True, False]))
    assert tracker.memory["progress_model"]["latest"].tolist() == [0, 6]
    assert set(tracker.memory["progress_model"]) == set(reward.initial_memory(2))
    reward.close()


def test_recorded_answers_keep_the_contract_and_need_no_server(server, tmp_path):
    cache, batch = str(tmp_path / "answers.sqlite"), windows_of([30, 90, 150, 210], ended=[3])
    first = make(server, cache=cache)
    expected, _ = first.scan(batch, first.initial_memory(1))
    first.close()
    recorded = {"judge_options": {"path": cache}, "goal": GOAL, "every": 2, "window": 3, "size": 8}
    again = ProgressModel(ProgressModelConfig(judge="recorded", ask="at_once", **recorded), *SPACES)
    np.testing.assert_array_equal(again.scan(batch, again.initial_memory(1))[0], expected)
    beside = ProgressModel(ProgressModelConfig(judge="recorded", **recorded), *SPACES)
    memory = beside.initial_memory(1)
    beside.scan(batch, memory)
    assert beside.update(batch)["scored"] == 2
    np.testing.assert_array_equal(beside.scan(batch, memory)[0], expected)
    check_reward(beside, transitions=windows_of([30, 90, 150, 210] * 2, ended=[3, 7], n=2))


def test_a_budget_ends_the_questions(server):
    reward, count = make(server, every=1, budget=2), len(server.seen)
    scores, _ = reward.scan(windows_of([141, 142, 143]), reward.initial_memory(1))
    assert len(server.seen) == count + 2 and (scores != 0).sum() == 2
    reward.close()


def test_the_oldest_frames_make_room_and_equal_ones_share_a_file():
    frames = Frames(capacity=2)
    names = [frames.keep(windows_of([level]).frame[0, 0]) for level in (1, 2, 2, 3)]
    kept = sorted(path.stem for path in Path(frames.path).iterdir())
    assert names[1] == names[2] and kept == sorted(map(file_name, names[2:]))
    frames.close()
    assert not Path(frames.path).exists()


def test_without_a_server_clip_scores_every_frame():
    sentence = "pole vertically upright on top of the cart"
    reward = ProgressModel(ProgressModelConfig(goal=sentence), *SPACES)
    check_reward(reward)
    seen = np.stack([reward.goal, -reward.goal, np.zeros_like(reward.goal)])
    assert reward.rate(seen).tolist() == pytest.approx([1, 0, 0], abs=1e-6)
    assert reward.initial_memory(2) is None


@pytest.mark.parametrize(
    ("judge", "given", "message"),
    [
        ("token", {}, "the judge token needs model; give it among the judge's options"),
        ("token", {"model": "m", "modle": 1}, "has no option 'modle'; did you mean 'model'?"),
        ("token", {"model": "m", "url": "http://localhost:1/v1", "timeout": -1}, "timeout=-1 is out of range"),
        ("recorded", {"path": "nowhere"}, "path='nowhere' is no file"),
    ],
)
@pytest.mark.parametrize("ask", ["beside", "at_once"])
def test_bad_options_are_refused_in_a_sentence(judge, given, message, ask):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        ProgressModel(ProgressModelConfig(judge=judge, judge_options=given, goal=GOAL, ask=ask), *SPACES)


def test_a_server_needs_a_sentence_and_frames(server):
    with pytest.raises(ValueError, match="goal is empty; say what is wanted"):
        make(server, goal=" ")
    reward = make(server)
    with pytest.raises(ValueError, match=r"not none; use frame_size=8"):
        reward.embed(windows_of([1]).replace(frame=None).flatten())
    reward.close()
