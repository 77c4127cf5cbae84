"""Claims measured without training runs: figures by hand, and what is asked of whom."""

import numpy as np
import pytest

from benchmarks import results
from benchmarks.checks import (
    average_reward,
    bad_prompts,
    hilp,
    hilp_prompts,
    in_context,
    mbtl_gravity,
    models,
    offline,
    offline_fresh,
    offline_shelf,
    pseudo_counts,
    stitching,
    student,
)
from benchmarks.worlds import Wear
from envs.recording import episodes
from rewards.llm.judges import prompts


def test_the_ratio_is_the_share_of_what_true_rewards_bring_over_random(tmp_path, monkeypatch):
    rows = [
        {"seed": seed, "preferences": -300 + seed, "true": -200, "cloning": -600, "random": -1200, "data": -700}
        | {"agreement": 0.9, "accuracy": 0.8, "correlation": 0.95}
        for seed in (0, 1, 2)
    ]
    results.append_rows(tmp_path / "offline.csv", rows[:1])  # of an interrupted study
    asked = []
    monkeypatch.setattr(offline, "SEEDS", 3)
    monkeypatch.setattr(offline, "compare", lambda seed: asked.append(seed) or {**rows[seed], "seed": seed})
    figures = offline.run(tmp_path)
    assert figures["offline_preferences"] == -299 and figures["offline_true"] == -200
    assert figures["offline_preferences_ratio"] == pytest.approx((1200 - 299) / (1200 - 200))
    assert asked == [1, 2] and len(results.read_rows(tmp_path / "offline.csv")) == 3


def test_there_are_six_good_sentences_and_ten_bad_ones_over_three_worlds():
    assert len(bad_prompts.GOOD) == 6 and len(bad_prompts.BAD) == 10
    assert len({env for env, _ in bad_prompts.GOOD}) == len({env for env, _ in bad_prompts.BAD}) == 3
    assert not set(bad_prompts.GOOD) & set(bad_prompts.BAD)


def test_figures_are_shares_of_stopped_sentences(tmp_path, monkeypatch):
    verdicts = iter(["usable"] * 5 + ["weak"] + ["do not train with this"] * 7 + ["weak"] * 2 + ["usable"])

    def one(env, sentence, kind, frames):
        return {"env": env, "kind": kind, "sentence": sentence, "verdict": next(verdicts)}

    monkeypatch.setattr(bad_prompts, "one", one)
    figures = bad_prompts.run(tmp_path)
    assert figures == {"stop_bad_prompt": 0.9, "stop_bad_prompt_outright": 0.7, "stop_good_prompt": 1 / 6}
    assert len(results.read_rows(tmp_path / "bad-prompts.csv")) == 16


@pytest.mark.nightly
def test_a_row_tells_the_verdict_and_its_reasons(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env, sentence = bad_prompts.BAD[0]
    row = bad_prompts.one(env, sentence, "bad", 60)
    assert row["verdict"] == "do not train with this" and row["auroc"] < 0.5 and "Spearman" in row["reasons"]


def test_an_auroc_by_hand_counts_ties_by_half():
    helpful = np.array([True, True, False, False])
    assert models.auroc(np.array([3.0, 1.0, 2.0, 1.0]), helpful) == pytest.approx((2 + 0 + 0.5) / 4)


@pytest.mark.parametrize("world", models.WORLDS)
def test_captions_labelled_by_hand_are_not_those_of_the_question(world):
    labelled = models.read_labels(world)
    assert len(labelled.captions) == len(set(labelled.captions)) == len(labelled.helpful) >= 29
    assert 0.3 < labelled.helpful.mean() < 0.9
    examples = {caption for caption, _ in prompts.background(world).examples}
    assert len(examples) == 4 and not examples & set(labelled.captions)


def test_a_rank_correlation_by_hand_shares_ranks_between_ties():
    rank = pseudo_counts.rank_correlation
    assert rank(np.array([1.0, 4.0, 9.0]), np.array([1, 2, 30])) == pytest.approx(1)
    assert rank(np.array([3.0, 2.0, 1.0]), np.array([1, 2, 3])) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert rank(np.array([0.0, 5.0, 5.0, 6.0]), np.array([1, 2, 3, 4])) == pytest.approx(0.9**0.5)
    assert rank(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0, 1, 0, 1])) == pytest.approx(0)


def test_a_bonus_is_scored_at_the_cells_that_were_visited(monkeypatch):
    # Two cells of the second row are visited 50 times each.
    monkeypatch.setattr(pseudo_counts, "EPISODES", 100)
    kind, options = pseudo_counts.ARMS["rnd"]
    monkeypatch.setitem(pseudo_counts.ARMS, "rnd", (kind, {**options, "epochs": 5}))
    row = pseudo_counts.measure("rnd", 0)
    assert list(row) == ["rank_correlation", "times_count", "cells"]
    assert 10 <= row["cells"] <= 55 - 1  # the first cell is never reached
    assert -1 <= row["rank_correlation"] <= 1 and row["times_count"] >= 0
    batch = pseudo_counts._standing_on(np.array([2, 0]), 3)
    assert batch.next_obs.tolist() == [[0, 0, 1], [1, 0, 0]] and batch.valid.all() and not batch.terminated.any()


def test_figures_of_the_counts_are_means_of_the_middle_half(tmp_path, monkeypatch):
    monkeypatch.setattr(
        pseudo_counts,
        "measure",
        lambda arm, seed: {"rank_correlation": (-1, 0.2, 0.5, 0.8, 1)[seed], "times_count": len(arm), "cells": 55},
    )
    results.append_rows(tmp_path / "pseudo_counts.csv", [{"arm": "rdd", "seed": 0}])  # of an older run
    figures = pseudo_counts.run(tmp_path)
    assert len(results.read_rows(tmp_path / "pseudo_counts.csv")) == 5 * 4
    assert set(figures) == {f"{a}_{c}" for a in pseudo_counts.ARMS for c in ("rank_correlation", "times_count")}
    assert figures["rnd_rank_correlation"] == pytest.approx(0.5) and figures["coin_flip_times_count"] == 9


def test_offline_returns_are_normalised_by_random_and_the_best_arm_and_a_run_that_diverged_is_worth_nothing():
    def row(arm, seed, task_return, value=1.0):
        random = "" if task_return == "" else -1200
        return {"arm": arm, "seed": seed, "return": task_return, "random": random, "value": value, "accuracy": ""}

    rows = [row("iql", seed, -200 - seed) for seed in (-1, 0, 1)] + [
        row("cpl_300", 0, -700),
        row("xql_open", 0, "", "inf"),
    ]
    rows += [row("xql", 0, -400, 3.0), row("fdvl_0.6", 0, -450, 11.0), row("fdvl", 0, -450), row("quantile", 0, -600)]
    found = offline_shelf.figures(rows)
    assert found["iql_return"] == 1 and found["cpl_return_300"] == 0.5 and found["xql_open_return"] == 0
    assert found["fdvl_return_0.6"] == found["fdvl_return"] == 0.75 and found["fdvl_astray"] == 0.5
    assert found["xql_astray"] == 0 and found["xql_open_astray"] == 1


def test_arms_of_the_offline_shelf_are_settings_that_its_runner_takes():
    from runners.offline import OfflineConfig

    for options in offline_shelf.arms().values():
        if options.get("algo") == "recoil":
            options["demos"] = ["pendulum_good"]
        config = OfflineConfig(["pendulum"], **options)
        assert len(config.arms) == 1


def test_sources_pull_the_arm_that_their_rule_names():
    learner = in_context.UCB1(1, 0)
    pulled = [int(learner(None, None, reward)[0]) for reward in (None, *[[1.0], [1.0], *[[0.0]] * 8])]
    assert pulled == [*range(10), 0]
    learner.pulls[:] = 1
    learner.pulls[0, 1] = 2
    # Rewards of 1 of 1 and 1 of 2, of 11 pulls.
    index = learner.indices()[0]
    assert index[1] == pytest.approx(0.5 + np.sqrt(np.log(11))) and index[2] == pytest.approx(np.sqrt(2 * np.log(11)))


def test_a_dark_room_has_another_goal_for_each_seed_and_histories_can_be_shuffled_or_mixed():
    room = in_context.make(in_context.ROOM, held_out=True).unwrapped
    goals = set()
    for seed in range(60):
        room.reset(seed=seed)
        room.reset()
        goals.add(tuple(room.goal))
    assert len(goals) == 10 == len(room.goals) and len(in_context.make(in_context.ROOM).unwrapped.goals) == 38
    batch = in_context.histories(in_context.ROOM, in_context.QLearning(4, 0), 4, 30, 0)
    number = np.arange(12).repeat(10)
    batch = batch.replace(obs=number[:, None])
    for arm, of_task in (("shuffled", lambda number: number // 3), ("mixed", lambda number: number % 3)):
        moved = in_context.rearrange(batch, arm, 0)
        order = moved.obs[::10, 0]
        assert moved.step.tolist() == batch.step.tolist() and sorted(order) == list(range(12)) != order.tolist()
        assert of_task(order).tolist() == of_task(np.arange(12)).tolist()


def test_the_best_arm_has_no_regret():
    best = []
    bandit = in_context.gym.make(in_context.BANDIT).unwrapped
    for task in range(in_context.NEW_BANDITS):
        bandit.reset(seed=in_context.SEED + 7000 + task)
        best.append(int(bandit.means.argmax()))
    assert abs(in_context.bandit_regret(lambda *_: np.array(best), 7)) < 3
    assert in_context.bandit_regret(in_context.Uniform(60, 0), 7) > 70


def test_no_walk_leads_from_the_start_to_the_exit_that_is_worth_something_and_halves_of_the_way_do(monkeypatch):
    monkeypatch.setattr(stitching, "WALKS", 40)
    batch = stitching.walks(0)
    parts = episodes(batch)
    lower = np.array([batch.obs[rows.start][1] < 0 for rows in parts])
    earned = np.array([batch.reward[rows].sum() for rows in parts])
    highest = np.array([batch.next_obs[rows][:, 1].max() for rows in parts])
    assert lower.sum() == 40 == (~lower).sum() and not earned[lower].any() and 0.3 < earned[~lower].mean() < 0.7
    assert 0.1 < (highest[lower] > 0.8).mean() < 0.35


def test_figures_of_stitching_are_successes_with_intervals(tmp_path, monkeypatch):
    row = {"mbrcsl": 1.0, "dt": 0.5}
    monkeypatch.setattr(
        stitching, "measure", lambda arm, seed: {"success": row.get(arm, 0), "predicted": 0.9, "recorded": 0.2}
    )
    figures = stitching.run(tmp_path)
    assert len(results.read_rows(tmp_path / "stitching.csv")) == 5 * 6
    assert figures["mbrcsl_success_low"] == 1 and figures["dt_success_high"] == 0.5 and figures["rcsl_success"] == 0
    assert figures["mbrcsl_predicted"] == pytest.approx(0.9) and "dt_predicted" not in figures


@pytest.mark.nightly
def test_the_best_torque_has_no_regret_and_a_wrong_one_has():
    upright, falling = [1.0, 0.0, 0.0], [np.cos(0.3), np.sin(0.3), 0.0]
    holds, pushes, catches, lets_go = offline_fresh.regrets(
        np.array([upright, upright, falling, falling]), np.array([0.0, 2.0, -2.0, 2.0])
    )
    assert holds == 0 and pushes > 0.01
    assert catches < 0.2 < lets_go


def test_the_oracle_of_a_replay_is_at_least_as_good_as_every_other_choice():
    places = np.linspace(0, 1, 8)
    matrix = -np.abs(places[:, None] - places) * (1 + 3 * places)
    values = mbtl_gravity.replayed(matrix, seed=0)
    assert tuple(values) == mbtl_gravity.ARMS and values["oracle"] == max(values.values())
    assert mbtl_gravity.value(matrix, [0, 7]) == pytest.approx(np.maximum(matrix[0], matrix[7]).mean())


# ------------------------------------------------------------------------------------------------- average_reward


def test_mean_rewards_are_those_of_the_long_run():
    # From state 0 the chain alternates, whatever it does; state 1 pays 3 for action 1.
    transition = np.array([[[0.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    reward = np.array([[1.0, 1.0], [0.0, 3.0]])
    assert average_reward.mean_reward(transition, reward, np.full((2, 2), 0.5)) == pytest.approx((1 + 1.5) / 2)
    assert average_reward.best_rate(transition, reward) == pytest.approx(2)


def test_the_machine_wears_as_its_table_says(monkeypatch):
    for name, chance in (("WEAR", 1.0), ("REPAIR", 1.0)):
        monkeypatch.setattr(average_reward, name, chance)
    transition, reward = average_reward.tables()
    machine = Wear(wear=1.0, repair=1.0)
    obs, _ = machine.reset(seed=0)
    for action in [0, 0, 1, *[0] * 12, 1]:
        level = int(obs.argmax())
        obs, paid, terminated, truncated, _ = machine.step(action)
        assert paid == reward[level, action] and not terminated and not truncated
        assert transition[level, action, int(obs.argmax())] == 1


def test_every_arm_is_tuned_alike_and_run_with_what_was_best(tmp_path, monkeypatch):
    asked = []

    def measure(arm, setting, seed):
        asked.append((arm, seed))
        return 0.5 + setting.is_scaled * (arm == "average") / 10 - setting.learning_rate

    monkeypatch.setattr(average_reward, "measure", measure)
    figures = average_reward.run(tmp_path)
    assert len(asked) == 4 * (4 * 3 + 20)
    assert figures["average_reward_rate"] == pytest.approx(0.6 - 1e-3)
    assert figures["average_reward_gamma_99"] == pytest.approx(0.5 - 1e-3)
    assert figures["average_reward_share"] == pytest.approx((0.599 - 0.45) / (0.68 - 0.45), abs=1e-3)
    # What has its row is not run again.
    assert average_reward.run(tmp_path) == figures and len(asked) == 4 * (4 * 3 + 20)


@pytest.mark.parametrize("arm", list(average_reward.ARMS))
def test_a_scaled_arm_can_be_measured(arm):
    assert 0 <= average_reward.measure(arm, average_reward.SETTINGS[1], 0, steps=2048) <= 0.68


def test_a_student_does_as_well_if_it_is_near_in_each_reading_and_above_both_controls():
    means = {"student": 0.6, "minilm": 0.62, "untrained": 0.5, "hashed": 0.59}
    figures = {"student_goal_difference": -0.02, "student_phrases_difference": -0.02}
    for name, value in means.items():
        figures |= {f"student_goal_{name}": value, f"student_phrases_{name}": value}
    assert student.is_as_well(figures)
    assert not student.is_as_well({**figures, "student_phrases_difference": -0.04})
    assert not student.is_as_well({**figures, "student_goal_hashed": 0.62})


def test_the_students_recorded_scores_are_those_of_the_fresh_captions():
    captions = models.read_labels("nethack", models.FRESH_LABELS)
    untrained = student.read_scores("goal", "untrained")
    assert untrained["nethack"].shape == (5, len(captions.captions))
    own = student.read_scores("goal", "student")["nethack"]
    assert student.mean_auroc(own, captions.helpful) == pytest.approx(0.5268, abs=1e-3)


def test_a_bag_of_words_forgets_their_order_and_tells_words_apart():
    vectors = student.hashed_encoder(0)(["open the door", "The door: open!", "lava"])
    assert vectors[0] @ vectors[1] == pytest.approx(1, abs=1e-5) and abs(vectors[0] @ vectors[2]) < 0.2


def test_a_maze_pays_in_the_cells_that_are_rewarded_and_its_recording_stays_out_of_walls():
    zigzag = hilp_prompts.WORLDS["zigzag"]
    assert zigzag.reward(np.array([[0.2, 0.9], [6.9, 0.1], [0.5, 1.2]])).tolist() == [0.3, 1, 0]
    data = zigzag.data(seed=3)
    place = (data.next_obs + 1) / 2 * hilp.SIDE
    assert zigzag.free[tuple(hilp.cell(place).T)].all()
    assert data.reward == pytest.approx(zigzag.reward(place))
    assert np.unique(data.reward).tolist() == pytest.approx([0, 0.3, 1])
