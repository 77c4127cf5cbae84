import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from paths import LINE, TWO, path

import rewards
from envs.recording import save
from rewards.check import check_reward, random_rollout
from rewards.demonstrations.discriminator import DemosDiscriminator, DemosDiscriminatorConfig

BOX, THREE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def walk(steps, step=1.0, action=1):
    """One episode along the line."""
    batch = path(step * np.arange(steps + 1))
    return batch.replace(action=np.full_like(batch.action, action))


@pytest.fixture
def demos(tmp_path):
    """Walks to the right, which action 1 makes."""
    save(file := tmp_path / "demos.safetensors", walk(40).flatten(), {})
    return str(file)


def made(demos, **options):
    return DemosDiscriminator(DemosDiscriminatorConfig(demos=demos, **options), LINE, TWO)


@pytest.mark.parametrize(
    "form, logit, reward",
    [
        ("gail", 0.0, math.log(2)),  # D = 1/2
        ("gail", math.log(3), math.log(4)),  # D = 3/4
        ("gail", -100.0, 0.0),
        ("airl", math.log(3), math.log(3)),  # log(3/4) - log(1/4)
        ("airl", -100.0, -20.0),
    ],
)
def test_what_a_discriminator_says_is_worth(demos, form, logit, reward):
    one = made(demos, form=form)
    one.logit = lambda *columns: torch.full((len(columns[0]),), logit)
    assert one.score(walk(3).flatten()) == pytest.approx([reward] * 3, abs=1e-6)


def test_the_shaping_term_of_airl_is_a_potential_that_ends_with_the_episode(demos):
    one = made(demos, form="airl", gamma=0.5, normalize_obs="none")
    one.judge = lambda rows: torch.full((len(rows), 1), 2.0)  # g
    one.potential = lambda rows: 3 * rows  # h
    batch = walk(3).flatten()
    batch.terminated[-1] = True
    # g + gamma h(s') - h(s) at s = 0, 1, 2
    assert one.score(batch).tolist() == [2 + 1.5 - 0, 2 + 3 - 3, 2 + 0 - 6]


@pytest.mark.parametrize("own, discount", [(None, 0.5), (0.9, 0.9)])
def test_the_shaping_term_of_airl_takes_the_discount_of_the_learner(demos, own, discount):
    options = {"demos": demos, "form": "airl", "gamma": own}
    mix = rewards.make({"discriminator": options}, LINE, TWO, gamma=0.5)
    one = mix.streams["discriminator"].reward
    assert one.discount == discount
    one.judge = lambda rows: torch.zeros(len(rows), 1)
    one.potential = lambda rows: torch.ones(len(rows), 1)
    assert one.score(walk(3).flatten()) == pytest.approx([discount - 1] * 3, abs=1e-6)


def test_a_reward_inside_of_another_takes_the_discount_of_the_learner_too(demos):
    gate = {"of": "discriminator", "of_options": {"demos": demos, "form": "airl"}}
    mix = rewards.make({"gate": gate}, LINE, TWO, gamma=0.5)
    assert mix.streams["gate"].reward.of.discount == 0.5


@pytest.mark.parametrize("form", ["gail", "airl"])
@pytest.mark.parametrize("of", ["action", "next_obs"])
def test_what_demonstrations_do_earns_more_than_what_they_do_not(demos, form, of):
    one = made(demos, form=form, of=of, learning_rate=1e-2, batch_size=32)
    rng = np.random.default_rng(0)
    for _ in range(30):
        right = rng.random((60, 1)) < 0.5
        moves = path(np.cumsum(np.r_[0, np.where(right[:, 0], 1, -1)]) + 20)
        one.update(moves.replace(action=right.astype(np.int64)))
    good, bad = walk(20), walk(20, -1.0, 0)
    bad = bad.replace(obs=bad.obs + 20, next_obs=bad.next_obs + 20)
    assert one.score(good.flatten()).mean() > one.score(bad.flatten()).mean() + 0.3


def test_an_agent_that_does_what_was_recorded_cannot_be_told_apart(demos):
    one = made(demos, learning_rate=1e-2)
    for _ in range(50):
        metrics = one.update(walk(40))
    assert metrics["loss"] == pytest.approx(math.log(2), abs=0.01)
    assert one.score(walk(40).flatten()) == pytest.approx([math.log(2)] * 40, abs=0.05)


def test_sqil_gives_one_to_recorded_transitions_and_says_that_a_replay_must_hold_them(demos):
    one = made(demos, form="sqil")
    assert one.score(walk(50).flatten()).tolist() == [1] * 40 + [0] * 10
    assert one.score(walk(5, 0.5).flatten()).tolist() == [0] * 5
    assert one.update(walk(5)) == {} and "replay must hold them" in one.notes()[1]


def test_sqil_reads_the_action_unless_it_is_of_the_change(demos):
    other = walk(10, action=0).flatten()
    assert not made(demos, form="sqil").score(other).any()
    assert made(demos, form="sqil", of="next_obs").score(other).all()


def test_sqil_knows_an_action_that_a_replay_gives_back_rounded(tmp_path):
    push = spaces.Box(-1, 1, (1,), np.float32)
    recorded = walk(20).flatten()
    action = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    recorded = recorded.replace(action=action)
    save(file := tmp_path / "push.safetensors", recorded, {})
    one = DemosDiscriminator(DemosDiscriminatorConfig(demos=str(file), form="sqil"), LINE, push)
    assert one.score(recorded.replace(action=action * np.float32(1 - 1e-6))).all()
    assert not one.score(recorded.replace(action=action * np.float32(0.9) + 0.05))[1:].any()


@pytest.mark.parametrize(
    "space, options",
    [
        (BOX, {"penalty": 0.0}),
        (BOX, {"form": "airl", "of": "next_obs"}),
        (BOX, {"form": "sqil"}),
        (spaces.Box(0, 255, (1, 36, 36), np.uint8), {}),
    ],
)
def test_every_form_keeps_the_contract(tmp_path, space, options):
    save(file := tmp_path / "random.safetensors", random_rollout(space, THREE, seed=1).flatten(), {})
    config = DemosDiscriminatorConfig(demos=str(file), features=8, hidden=8, **options)
    check_reward(DemosDiscriminator(config, space, THREE), seeds_differ=config.form != "sqil")


def test_recordings_that_cannot_be_imitated_are_refused_in_a_sentence(demos, tmp_path):
    with pytest.raises(ValueError, match=r"reward\.discriminator\.demos is empty; name a recording"):
        made("")
    with pytest.raises(ValueError, match=r"reward\.discriminator\.demos='none\.safetensors' is no file"):
        made("none.safetensors")
    save(few := tmp_path / "few.safetensors", walk(3).flatten(), {})
    with pytest.raises(ValueError, match="holds 3 transitions; record at least 10"):
        made(str(few))
    with pytest.raises(ValueError, match=r"the observations recorded, of shape \(1,\) and type float32, are not those"):
        DemosDiscriminator(DemosDiscriminatorConfig(demos=demos), BOX, TWO)
    with pytest.raises(
        ValueError, match=r"the actions recorded, of shape .* between 1 and 1, are not those of this run"
    ):
        DemosDiscriminator(DemosDiscriminatorConfig(demos=demos), LINE, spaces.Discrete(1))
