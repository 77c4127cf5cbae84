"""Bradley-Terry: the likelihood by hand, a reward found again, and judges that fail."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

import rewards
from envs.transitions import Transitions
from rewards.adapters.sb3 import relabelling
from rewards.base import JudgeUse
from rewards.check import check_reward
from rewards.llm.judges.base import SegmentJudge
from rewards.preference.bradley_terry import BradleyTerry, BradleyTerryConfig, contrast
from rewards.preference.segments import Segments

BOX, PUSH = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
SMALL = {"length": 2, "seed_steps": 4, "every": 8, "queries": 6, "epochs": 3, "hidden": 8, "features": 8}


def made(seed=0, spaces=(BOX, PUSH), **changes):
    return BradleyTerry(BradleyTerryConfig(**{**SMALL, **changes}), *spaces, seed=seed)


def walk(steps=200, envs=4, seed=0, reward=lambda x, a: x[..., 0]):
    """States drawn anew at every step, in episodes without end; the task pays `reward(next state, action)`."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (steps + 1, envs, 2)).astype(np.float32)
    action = rng.uniform(-1, 1, (steps, envs, 1)).astype(np.float32)
    nothing = np.zeros((steps, envs), bool)
    return Transitions(
        obs=x[:-1],
        action=action,
        reward=reward(x[1:], action).astype(np.float32),
        next_obs=x[1:],
        terminated=nothing,
        truncated=nothing,
        valid=~nothing,
        step=np.arange(steps)[:, None] + np.zeros((1, envs), np.int64),
    )


class Says(SegmentJudge):
    """Answers whatever `answer(first, second)` returns."""

    name = "says"

    def __init__(self, answer):
        self.answer, self.asked = answer, 0

    def compare(self, first, second):
        self.asked += first.shape[1]
        return self.answer(first, second)


def test_it_keeps_the_contract_before_and_after_it_has_learnt():
    check_reward(BradleyTerry)
    check_reward(made())
    check_reward(made(draw="disagreement", relabel=False, judge_options={"mistakes": 0.3, "skip": 0.2}))
    check_reward(made(spaces=(BOX, spaces.Discrete(3)), members=1, held_out=0.0, normalize_obs="bounds"))


def test_it_gives_nothing_before_the_first_fit():
    reward = made()
    assert not reward.score(walk().flatten()).any()
    assert reward.update(walk(steps=1)) == {"labels": 0.0}


def test_a_reward_is_found_again_from_comparisons_alone():
    settings = {"length": 5, "queries": 200, "budget": 200, "epochs": 30, "hidden": 32, "features": 32}
    batch, other = walk(), walk(seed=1).flatten()
    reward = made(**settings)
    metrics = reward.update(batch)
    score = reward.score(other)
    assert np.corrcoef(score, other.reward)[0, 1] > 0.95
    assert np.abs(score).max() <= 1
    assert metrics["labels"] == 200
    assert metrics["agreement"] == 1
    assert metrics["accuracy"] > 0.8
    noisy = made(**settings, judge_options={"mistakes": 0.1})
    metrics = noisy.update(batch)
    assert np.corrcoef(noisy.score(other), other.reward)[0, 1] > 0.9
    assert metrics["agreement"] == pytest.approx(0.9, abs=0.06)


def test_a_reward_of_actions_is_found_too():
    batch, other = (walk(seed=seed, reward=lambda x, a: -(a[..., 0] ** 2)) for seed in (0, 1))
    reward = made(length=2, queries=300, budget=300, epochs=50, hidden=32, features=32)
    reward.update(batch)
    assert np.corrcoef(reward.score(other.flatten()), other.flatten().reward)[0, 1] > 0.85


def test_the_sum_over_a_segment_decides_and_mistakes_flatten_the_likelihood():
    reward = made(mistakes=0.1, held_out=0.0)
    pairs = torch.randn(5, 2, 2, 3, generator=torch.Generator().manual_seed(0))
    each = reward.members(pairs.reshape(-1, 3)).reshape(3, 5, 2, 2)
    logits = reward._logits(pairs)
    assert torch.allclose(logits, each[:, :, 1].sum(-1) - each[:, :, 0].sum(-1), atol=1e-6)
    p = 0.9 / (1 + math.exp(-2)) + 0.05
    loss = reward._loss(torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1.0, 0.0, 0.5]))
    assert loss.tolist() == pytest.approx([-math.log(p), -math.log(1 - p), -0.5 * math.log(p * (1 - p))], rel=1e-5)
    sure = made(mistakes=0.0)._loss(torch.tensor([200.0, -200.0]), torch.tensor([1.0, 1.0]))
    assert sure.tolist() == pytest.approx([0.0, 200.0])


def test_a_floor_takes_off_what_the_members_do_not_agree_on():
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    plain = made()
    each = plain.members(rows).detach()
    assert torch.equal(plain.mean(rows), each.mean(dim=0)) and (each.std(dim=0) > 0).all()
    half, least = made(floor=0.5).mean(rows), made(floor=0.0).mean(rows)
    assert torch.allclose(least, each.min(dim=0).values) and torch.allclose(half, (each.mean(dim=0) + least) / 2)


def test_members_look_at_labels_of_their_own():
    reward = made()
    pairs = torch.randn(3, 4, 2, 2, 3, generator=torch.Generator().manual_seed(0))
    each = torch.stack([reward._logits(pairs[k])[k] for k in range(3)])
    assert torch.allclose(reward._logits(pairs), each, atol=1e-6)


def test_labels_held_out_teach_nothing_and_judge_the_rest():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(6, 2, 1, 2)).astype(np.float32), np.zeros((6, 2, 1, 1), np.float32)
    held, other = np.array([False] * 4 + [True] * 2), walk(steps=5).flatten()

    def fitted(labels):
        reward = made()
        reward.labelled.add(*columns, np.array(labels, np.float32), held)
        return reward.fit_labels(), reward.score(other)

    (one, score), (two, same), (_, different) = map(
        fitted, ([0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 1, 1], [1, 1, 0, 1, 0, 0])
    )
    np.testing.assert_array_equal(score, same)
    assert one["accuracy"] + two["accuracy"] == 1 and np.abs(score - different).max() > 0.01


def test_queries_follow_the_schedule_and_end_with_the_budget():
    reward = made(seed_steps=20, every=40, queries=6, budget=14)
    batch = walk(steps=60, envs=2)
    labels = [reward.update(batch[t : t + 5])["labels"] for t in range(0, 60, 5)]  # 10 transitions at a time
    assert labels == [0, 6, 6, 6, 6, 12, 12, 12, 12, 14, 14, 14]
    assert reward.labelled.asked == 14


def test_ties_are_targets_of_one_half():
    reward = made(length=1, epochs=100, held_out=0.0, enough=1.0, normalize_obs="bounds")
    places = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0]], np.float32)
    states = walk(steps=1, envs=3).replace(next_obs=places[None], action=np.zeros((1, 3, 1), np.float32))
    first = states[:, [0] * 10 + [1] * 10 + [0] * 20]  # better, worse, better
    second = states[:, [1] * 10 + [0] * 10 + [2] * 20]
    label = np.repeat(np.float32([0.0, 1.0, 0.5, 0.5]), 10)
    label[0] = 1.0  # a mistake, so that no pass gets all of them right and ends the session
    assert reward.learn_from(first, second, label)["ties"] == 0.5
    good, bad, same = reward.score(states.flatten())
    assert good - bad > 1
    assert abs(good - same) < 0.3


def test_unanswered_pairs_are_dropped_and_do_not_count_against_the_budget():
    reward = made(queries=10, budget=100)
    reward.judge = Says(lambda a, b: np.where(np.arange(10) < 4, np.nan, np.arange(10) % 2))
    metrics = reward.update(walk())
    assert (metrics["labels"], metrics["dropped"], metrics["failed"]) == (6, 0.4, 0)
    assert reward.labelled.asked == 10
    assert reward.judge_use() == JudgeUse(asked=10, answered=6, labels=6)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda a, b: 1 / 0, r"the judge says failed and was left out of a session: division by zero"),
        (lambda a, b: np.full(6, np.nan), r"the judge says answered none of 6 pairs"),
        (lambda a, b: np.full(5, 1.0), r"answered \[1. 1. 1. 1. 1.\] to 6 pairs; give one number in \[0, 1\]"),
        (lambda a, b: np.full(6, 2.0), r"to 6 pairs; give one number in \[0, 1\]"),
        (lambda a, b: None, r"to 6 pairs; give one number in \[0, 1\]"),
    ],
)
def test_a_judge_that_fails_leaves_the_reward_as_it_was(answer, said):
    reward = made()
    batch = walk()
    reward.update(batch)
    score, labels = reward.score(batch.flatten()), len(reward.labelled)
    reward.judge = Says(answer)
    metrics = reward.update(batch)
    assert metrics["failed"] == 1
    assert metrics["labels"] == labels
    assert np.array_equal(reward.score(batch.flatten()), score)
    [note] = reward.notes()
    assert re.search(said, note)
    reward.judge = Says(lambda a, b: np.arange(6) % 2)
    assert reward.update(batch)["failed"] == 0
    assert reward.notes() == []


@pytest.mark.parametrize(("value", "said"), [(1.0, "for the same side"), (0.5, "that both are equal")])
def test_labels_that_all_say_the_same_teach_nothing(value, said):
    reward = made()
    reward.judge = Says(lambda a, b: np.full(6, value))
    metrics = reward.update(walk())
    assert (metrics["failed"], metrics["labels"]) == (1, 6)
    assert not reward.score(walk().flatten()).any()
    assert f"all 6 labels so far are {said}" in reward.notes()[0]


def test_disagreement_asks_about_the_pairs_that_members_see_differently():
    reward = made(draw="disagreement", queries=5, pool=50, length=1)
    reward.update(walk(steps=60))
    every = reward.inputs_of(*reward.read(reward.segments.pick(np.arange(50))))
    sums = reward.step_rewards(every).sum(dim=-1).detach().numpy()
    spread = lambda i, j: (1 / (1 + np.exp(sums[:, i] - sums[:, j]))).std(axis=0)  # noqa: E731
    asked = [spread(*reward.draw(5)).mean() for _ in range(20)]
    i, j = np.random.default_rng(0).integers(50, size=(2, 2000))
    assert np.min(asked) > np.quantile(spread(i, j)[i != j], 0.8)


def test_a_segment_is_never_compared_with_itself():
    reward = made(pool=3, length=1)
    reward.update(walk(steps=3, envs=1))
    one, two = reward.draw(500)
    assert (one != two).all()
    assert set(one) == set(two) == {0, 1, 2}


def test_a_session_ends_when_enough_labels_are_right_or_those_held_out_get_no_better():
    easy = made(length=5, queries=100, epochs=200, hidden=32, features=32, held_out=0.0)
    metrics = easy.update(walk())
    assert metrics["train_accuracy"] >= 0.97
    assert metrics["passes"] < 200
    hopeless = made(queries=200, epochs=200, held_out=0.3, patience=3, judge_options={"mistakes": 0.5})
    metrics = hopeless.update(walk())
    assert metrics["passes"] < 200


def test_passes_end_by_the_labels_held_out_by_those_learnt_and_by_their_number(monkeypatch):
    def passes(errors, right=(), **options):
        reward = made(**{"patience": 2, "epochs": 20, "enough": 0.9, **options})
        held = np.arange(20) < 10
        columns = np.zeros((20, 2, 2, 2)), np.zeros((20, 2, 2, 1)), np.arange(20) % 2
        reward.labelled.add(*(column.astype(np.float32) for column in columns), held)
        errors, right = iter([*errors, *[errors[-1]] * 20]), iter([*right, *[0.0] * 30])
        monkeypatch.setattr(reward, "_held_out", lambda x, y: (0.75, next(errors)))
        monkeypatch.setattr(reward, "_one_pass", lambda *given: (next(right), float(len(given[-1]))))
        metrics = reward.fit_labels()
        assert metrics["loss"] == 10 and metrics["accuracy"] == 0.75
        return metrics["passes"]

    assert passes([3, 2, 2, 1]) == 6 and passes([1]) == 3
    assert passes(range(99, 0, -1)) == 20
    assert passes(range(99, 0, -1), right=[0.5, 0.9]) == 2


def test_one_segment_is_no_pair_and_labels_count_in_the_statistics():
    reward = made(seed_steps=0)
    assert reward.update(walk(steps=2, envs=1)) == {"labels": 0.0}
    assert reward.update(walk(steps=8, envs=1))["labels"] == 6
    assert reward.statistics.count == pytest.approx(6 * 2 * 2)


def test_agreement_and_ties_are_shares_of_the_labels():
    reward, batch = made(), walk(steps=2, envs=5)
    batch = batch.replace(reward=np.array([[0, 1, 2, 3, 4]] * 2, np.float32))
    metrics = reward.learn_from(batch[:, [0, 1, 2, 3, 4]], batch[:, [1, 0, 3, 4, 4]], np.float32([1, 0, 0, 0.5, 0]))
    assert metrics["ties"] == pytest.approx(1 / 5) and metrics["agreement"] == 3 / 4


def test_relabelling_changes_rewards_of_old_transitions_and_frozen_ones_stay():
    rewarded = {}
    for relabel in (True, False):
        config = BradleyTerryConfig(**{**SMALL, "seed_steps": 50, "every": 1000, "relabel": relabel})
        mix = rewards.make({"bradley_terry": config}, BOX, PUSH)
        assert mix.relabelable is relabel
        buffer = relabelling(ReplayBuffer)(200, BOX, PUSH, mix=mix, update_every=50)
        batch = walk(steps=50, envs=1)
        first = np.arange(20), np.zeros(20, int)
        for t in range(50):
            row = batch[t]
            buffer.add(row.obs, row.next_obs, row.action, row.reward, np.array([False]), [{}])
            if t == 30:
                assert not buffer.rewards[first].any()  # nothing has been learnt yet
        assert mix.streams["bradley_terry"].reward.labelled.fits == 1
        rewarded[relabel] = buffer.rewards[first]
    assert rewarded[True].any()
    assert not rewarded[False].any()


def test_labels_from_a_judge_of_frames_reach_a_reward_that_reads_embeddings():
    goal = "pole vertically upright on top of the cart"
    options = {"judge": "clip", "judge_options": {"goal": goal}, "of": "frame", "length": 1, "epochs": 30}
    reward = made(**options, queries=60, budget=60, seed_steps=0, held_out=0.0)
    assert reward.requires == {"frame"}
    assert reward.embedding == reward.judge.embedding
    assert not reward.keeps_frames
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(60, 2, len(reward.judge.reward.goal)))
    toward = rng.uniform(-3, 3, (60, 2, 1))
    seen = toward * reward.judge.reward.goal + 0.1 * noise
    seen = (seen / np.linalg.norm(seen, axis=-1, keepdims=True)).astype(np.float16)
    batch = walk(steps=60, envs=2).replace(extras={reward.embedding: seen})
    metrics = reward.update(batch)
    assert metrics["labels"] == 60
    score = reward.score(batch.flatten())
    assert np.corrcoef(score, reward.judge.reward.score(batch.flatten()))[0, 1] > 0.9


def test_frames_stay_where_the_judge_reads_them_itself():
    assert not made(judge="clip", judge_options={"goal": "pole vertically upright on top of the cart"}).keeps_frames

    class Looks(Says):
        requires = frozenset({"frame"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "rewards.preference.bradley_terry.make_segment_judge", lambda *a, **k: Looks(lambda a, b: np.arange(6) % 2)
        )
        config = BradleyTerryConfig(**SMALL, of="frame")
        mix = rewards.make({"bradley_terry": config}, BOX, PUSH)
    frames = np.random.default_rng(0).integers(0, 255, (4, 2, 64, 64, 3)).astype(np.uint8)
    batch = mix.embed(walk(steps=4, envs=2).replace(frame=frames))
    reward = mix.streams["bradley_terry"].reward
    assert batch.frame is not None
    assert reward.embedding in batch.extras
    mix.update(batch, mix.score(batch)[0])
    assert reward.segments.pool[0].frame.shape == (2, 64, 64, 3)


def test_it_continues_where_it_was_saved_with_a_judge_of_its_own():
    one, two = made(judge_options={"mistakes": 0.4}), made(seed=5, judge_options={"mistakes": 0.4})
    batch = walk(steps=24)
    one.update(batch[:12])
    two.update(walk(steps=24, seed=1))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for reward in (one, two):
        reward.update(batch[12:])
    assert np.array_equal(one.labelled.label, two.labelled.label)
    assert np.array_equal(one.score(batch.flatten()), two.score(batch.flatten()))


def test_images_as_observations_are_refused_with_the_way_out():
    picture = spaces.Box(0, 255, (3, 64, 64), np.uint8)
    with pytest.raises(ValueError, match=r"cannot read the images of .*; take of=frame"):
        made(spaces=(picture, PUSH))


def test_one_member_cannot_disagree():
    with pytest.raises(ValueError, match=r"draw=disagreement needs members of 2 or more"):
        BradleyTerryConfig(draw="disagreement", members=1)


def test_a_judge_that_does_not_exist_is_refused_when_the_reward_is_made():
    with pytest.raises(ValueError, match=r"no judge 'hero'; did you mean 'heron'\?"):
        made(judge="hero")


def test_a_contrast_is_the_cross_entropy_of_what_follows_among_what_follows_elsewhere():
    x, y = torch.tensor([[[2.0, 0.0]]]), torch.tensor([[[0.0, 3.0]]])
    near = math.log(1 + math.exp(-10))  # cosines of 1 and 0 over a temperature of 0.1
    assert contrast(x, x, y).item() == pytest.approx(near, rel=1e-3)
    assert contrast(x, y, x).item() == pytest.approx(10 + near)
    assert contrast(x, x, x).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("of", ["transition", "history"])
def test_a_contrast_teaches_the_states_and_leaves_out_pairs_that_are_equal(of):
    reward = made(goals=1.0, of=of, length=3)
    pairs = torch.randn(3, 4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    equal = reward._contrast(pairs, torch.full((3, 4), 0.5))
    taught = reward._contrast(pairs, torch.ones(3, 4))
    assert equal == 0 and taught > 0
    reward.descend(taught)
    assert reward.update(walk())["labels"] == 6
    with pytest.raises(ValueError, match=r"goals=1\.0 contrasts two steps of a segment; give length=2 or more"):
        made(goals=1.0, length=1)


def test_targets_move_to_the_members_answer_and_labels_stay():
    reward, seen = made(dynamic=0.5, epochs=2, enough=1.0, held_out=0.0, members=1), []
    real = reward._one_pass

    def spied(x, y, targets, learnt):
        seen.append((y.clone(), targets.clone(), reward._chance(reward._logits(x[learnt])).mean(dim=0).detach()))
        return real(x, y, targets, learnt)

    reward._one_pass = spied
    reward.update(walk())
    (label, first, _), (same, second, chance) = seen
    assert torch.equal(label, first) and torch.equal(label, same)
    assert torch.allclose(second, 0.5 * label + 0.5 * chance)


def test_members_of_trees_find_the_threshold_that_labels_are_about_and_say_so():
    def above(x):
        return x.next_obs[..., 1] > 0.3

    model = made(net="trees", queries=60, budget=60, held_out=0.0, mistakes=0.0)
    model.judge = Says(lambda one, two: 0.5 + 0.5 * np.sign(above(two).sum(0) - above(one).sum(0)))
    model.update(walk())
    x = walk(seed=5)
    scores = model.score(x.flatten()).reshape(x.shape)
    assert scores[above(x)].min() > scores[~above(x)].max()
    assert all(trees.importance[:, 0].argmax() == 1 for trees in model.ensemble.members)
    again = made(net="trees")
    again.judge = model.judge
    again.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(again.score(x.flatten()), model.score(x.flatten()))


def test_trees_have_no_states_to_read():
    with pytest.raises(ValueError, match="net=trees has no states that of=history could read; take net=mlp"):
        made(net="trees", of="history")


def test_branches_are_pairs_that_begin_in_the_same_state_and_are_asked_once():
    # Six episodes of three steps, one after the other; they begin in the states 0, 1, 0, 2, 1, 0.
    starts = np.array([0, 1, 0, 2, 1, 0])
    batch = walk(steps=18, envs=1)
    batch.step[:, 0] = np.tile(np.arange(3), 6)
    batch.obs[::3, 0] = starts[:, None]
    batch.truncated[2::3] = True
    asked = []

    def compare(first, second):
        asked.append((first.obs[0, :, 0], second.obs[0, :, 0]))
        return second.reward.sum(0) > first.reward.sum(0)

    reward = made(pairs="branches", budget=50, queries=9, held_out=0.0)
    reward.judge = Says(compare)
    metrics = reward.update(batch)
    # The third 0 has no partner.
    assert metrics["labels"] == 2
    [(first, second)] = asked
    np.testing.assert_array_equal(first, second)
    assert sorted(first) == [0, 1]
    assert [segment.obs[0, 0] for segment in reward.segments.pool] == [2, 0]
    assert reward.update(walk(steps=18, envs=1))["failed"] == 1
    assert "give starts=branches, or a smaller reward.bradley_terry.length" in reward.failure


def test_branches_of_dicts_are_compared_in_all_keys():
    batch = walk(steps=4, envs=1)
    batch.step[:, 0] = [0, 1, 0, 1]
    batch.truncated[1::2] = True
    segments = Segments(2, 10)
    for second_key in (0.0, 1.0):
        obs = {"a": np.zeros((4, 1, 2)), "b": np.array([0, 0, second_key, 0])[:, None]}
        segments.add(batch.replace(obs=obs, next_obs=obs))
        assert len(segments.branches()[0]) == int(second_key == 0)
        segments.drop(np.arange(2))
        assert not len(segments)
