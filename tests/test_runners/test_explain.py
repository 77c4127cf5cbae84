"""What `lodestar explain` says, where it can be known by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, Normal

import lodestar as ld
from envs.make import make
from envs.transitions import Transitions
from runners.explain import measures, page
from runners.explain.__main__ import main
from runners.explain.episodes import OUTSIDE, PlayedRows
from runners.explain.formula import fit_polynomials
from runners.explain.policy import PolicyView, view
from runners.explain.reading import hidden_parts, imitate, saliency

QUICK = {"total_timesteps": 128, "n_envs": 2, "eval_episodes": 1, "video": False, "control": "none"}
SMALL = {"agent.n_steps": 32, "agent.batch_size": 32, "agent.net_arch": [8]}


def reader(weights):
    """A policy of two actions whose logit is linear in the observation."""
    linear = torch.tensor(weights, requires_grad=True)

    def distributions(obs, memory):
        logit = torch.as_tensor(np.asarray(obs, np.float32)) @ linear
        return [Categorical(logits=torch.stack([0 * logit, logit], -1))]

    model = SimpleNamespace(
        action_space=spaces.Discrete(2), observation_space=spaces.Box(-9, 9, (len(weights),), np.float32)
    )
    return PolicyView(model, distributions, lambda x: x[:, 0], [linear])


def rows(scaled, weights, lengths, obs=None):
    """Episodes of these lengths with these rewards."""
    count = sum(lengths)
    obs = np.zeros((count, 1), np.float32) if obs is None else obs
    ended, step = np.zeros(count, bool), np.concatenate([np.arange(n) for n in lengths])
    ended[np.cumsum(lengths) - 1] = True
    reward = np.float32(scaled.get("task", scaled.get(OUTSIDE)))
    batch = Transitions(obs, np.zeros(count, int), reward, obs, ended, ~ended & False, ended | True, step)
    episode, chosen = np.repeat(np.arange(len(lengths)), lengths), torch.arange(count)[:, None] % 2
    scaled = {name: np.float32(values) for name, values in scaled.items()}
    sums = [float(reward[episode == i].sum()) for i in range(len(lengths))]
    return PlayedRows(batch, episode, scaled, weights, dict.fromkeys(scaled, 1.0), chosen, None, {}, sums, 0)


def test_a_policy_that_reads_one_entry_has_all_its_saliency_there():
    obs = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    seen = reader([0.0, 4.0, 0.0])
    parts = hidden_parts(seen.model.observation_space, names=("a", "b", "c"))
    found = saliency(seen, obs, None, parts)
    assert [part.label for part in parts] == ["a", "b", "c"]
    assert found[0] == found[2] == 0.0 and 0.2 < found[1] < 1.0
    sure = reader([0.0, 1e9, 0.0])  # an entry of the same sign changes nothing, one of the other sign everything
    assert set(sure.movement(obs, -obs)) == {1.0} and set(sure.movement(obs, 2 * obs)) == {0.0}


def test_a_continuous_action_moves_in_shares_of_its_range():
    box = SimpleNamespace(action_space=spaces.Box(-2, 2, (1,)))
    seen = PolicyView(box, lambda obs, memory: [Normal(torch.as_tensor(obs[:, 0]), torch.ones(len(obs)))])
    assert seen.movement(np.float32([[0.0], [1.0]]), np.float32([[1.0], [-1.0]])).tolist() == [0.25, 0.5]


def test_cells_lie_as_on_the_screen_and_an_image_is_hidden_in_patches():
    env = make("MiniGrid-Empty-5x5-v0")
    obs, _ = env.reset(seed=0)
    cells = [part for part in hidden_parts(env.observation_space, env) if part.cell is not None]
    image = env.unwrapped.gen_obs()["image"]
    for part in cells:
        row, column = part.cell
        assert obs[part.places][:11].argmax() == image[column, row, 0]  # MiniGrid's image begins with x
    assert len(cells) == 49 and [p.label for p in hidden_parts(env.observation_space, env)[49:]] == ["direction"]
    patches = hidden_parts(spaces.Box(0, 255, (3, 16, 24), np.uint8))
    assert len(patches) == 64 and patches[-1].cell == (7, 7)
    assert sorted(np.concatenate([p.places for p in patches])) == [*range(3 * 16 * 24)]


def test_a_tree_imitates_a_threshold_exactly_and_stands_beside_the_most_common_action():
    rng = np.random.default_rng(0)
    read, episode = rng.uniform(-1, 1, (300, 2)), np.repeat(np.arange(6), 50)
    read[:2] = [[0.3, -0.01], [0.3, 0.01]]  # no state lies between the last below and the first above
    read[np.abs(read[:, 1]) < 0.01, 1] = 0.5
    actions = (read[:, 1] > 0).astype(int)[:, None]
    found = imitate(read, ["x", "angle"], actions, episode, True, ["left", "right"])
    assert found["fidelity"] == 1.0 and found["rows"] == 100
    assert found["constant"] == max(np.mean(actions[200:]), 1 - np.mean(actions[200:]))
    assert [line.split("- ")[-1] for line in found["rules"]][1::2] == ["class: left", "class: right"]
    assert "angle" in found["rules"][0]
    still = imitate(read, ["x", "angle"], 0 * actions, episode, True, ["left", "right"])
    assert (still["fidelity"], still["constant"], still["rules"]) == (1.0, 1.0, ["always left"])
    numbers = imitate(read, ["x", "angle"], np.where(actions, 2.0, -2.0), episode, False, [])
    assert numbers["fidelity"] == pytest.approx(1.0) and numbers["constant"] < 0.1


def test_polynomials_of_a_policy_that_is_one_are_found_again():
    rng = np.random.default_rng(0)
    read = rng.uniform(-2, 2, (300, 2))
    actions = np.stack([0.5 - 2 * read[:, 0] + 0.25 * read[:, 0] * read[:, 1], np.zeros(300)], -1)
    held_out = np.arange(300) >= 200
    found = fit_polynomials(read, ["angle", "speed"], actions, held_out, [-9, -9], [9, 9])
    assert found["fidelity"] == pytest.approx(1.0, abs=1e-4)
    first, second = found["lines"]
    terms = first.removeprefix("action 0 = ").split(" ")
    assert [word for word in terms if word[0] not in "+-"] == ["angle", "angle", "speed"]
    numbers = [float(word) for word in terms if word[0] in "+-"]
    assert numbers == pytest.approx([0.5, -2, 0.25], abs=2e-3)
    assert second == "action 1 = 0"
    # Predictions are cut at the bounds of the actions, as those of the policy are.
    cut = fit_polynomials(read, ["angle", "speed"], actions.clip(-1, 1), held_out, [-1, -1], [1, 1])
    assert 0.8 < cut["fidelity"] < 1


def test_contributions_are_weighted_sums_and_shares():
    played = rows({"task": [1, 1, 1, 1, 1], "bonus": [0, 4, 0, -4, 2]}, {"task": 1.0, "bonus": 0.5}, [2, 3])
    found = measures.contributions(played)
    assert found["task"]["sum"] == 2.5 == np.mean(played.returns) and found["bonus"]["sum"] == 0.5
    assert found["task"]["share"] == 0.5 == found["bonus"]["share"]
    assert found["bonus"]["curve"][0] == -0.0 and found["bonus"]["curve"][10] == 4.0  # not weighted


def test_what_is_to_come_is_discounted_within_an_episode():
    assert measures.to_go(np.array([1.0, 2, 4, 8]), np.array([0, 3, 4]), 0.5).tolist() == [3, 4, 4, 8]


def test_signs_steps_and_disagreement_by_hand():
    weights = {"task": 1.0, "bonus": 1.0, OUTSIDE: 0.0}
    played = rows({OUTSIDE: [0] * 4, "task": [0] * 4, "bonus": [0] * 4}, weights, [2, 2], np.ones((4, 1), np.float32))
    found = {"task": np.array([1.0, 1, -1, -1]), "bonus": np.array([-3.0, 2, -2, 3]), OUTSIDE: np.zeros(4)}
    assert measures.flips(played, found) == {"task": 0.0, "bonus": 0.5}
    assert np.flatnonzero(measures.disagreement(found)).tolist() == [0, 3]
    assert measures.highest_rows(np.array([5.0, 4, 9, 1]), played.episode, 2, 2) == [2, 0]
    seen = reader([0.0])
    before = seen.parameters[0].detach().clone()
    by_episode = {"task": torch.tensor([[1.0]]), "bonus": torch.tensor([[0.0]]), OUTSIDE: torch.tensor([[9.0]])}
    assert measures.steps(played, seen, by_episode) == {"task": pytest.approx(1.0), "bonus": 0.0}
    against = measures.steps(played, seen, by_episode | {"bonus": torch.tensor([[-0.5]])})
    assert against["bonus"] == pytest.approx(1.0, abs=0.1) and against["task"] == pytest.approx(4.0, abs=0.4)
    assert torch.equal(seen.parameters[0], before)


def test_the_gradient_of_the_episodes_adds_up_to_that_of_all_rows():
    obs = np.float32([[1], [2], [3]])
    played, seen = rows({"task": [0, 0, 0]}, {"task": 1.0}, [1, 2], obs), reader([0.0])
    found = measures.gradients(played, seen, {"task": np.array([2.0, 4.0, 6.0])})["task"]
    # d log p / d weight = obs / 2 for action 1 (the second row), -obs / 2 for action 0.
    assert found[:, 0].tolist() == pytest.approx([2 * -0.5 / 3, (4 * 1.0 + 6 * -1.5) / 3])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return ld.train("CartPole-v1", {"task": {}, "rnd": {"warmup": 16}}, run_dir=str(folder / "a"), **QUICK, **SMALL)


def test_a_run_is_explained_in_its_folder_and_its_streams_add_up_to_its_returns(trained, capsys):
    weights = [p.clone() for p in trained.policy.policy.parameters()]
    assert main([f"run={trained.folder}", "episodes=3", "steps=40"]) == 0
    printed, found = capsys.readouterr().out, json.loads((trained.folder / "explain.json").read_text())
    assert found["streams"]["task"]["sum"] == pytest.approx(found["task_return"]) and found["episodes"] == 3
    assert "agent ppo" in printed and "angular velocity" in printed and "explain.html" in printed
    html = (trained.folder / "explain.html").read_text()
    assert html.count("data:image/png") == 4 + len(found["moments"]["disagreement"])  # and 4 of rnd
    assert "http" not in html.replace("http-equiv", "")
    again = trained.explain(3, steps=40, out=str(trained.folder / "again"))
    assert json.loads(json.dumps(again)) == found
    assert all(torch.equal(a, b) for a, b in zip(weights, trained.policy.policy.parameters()))


def test_what_a_run_says_is_escaped_on_the_page(tmp_path):
    stream = {"weight": 1.0, "sum": 0.0, "share": 1.0, "curve": [0.0, 1.0]}
    shot = {"moment": [0, 1], "numbers": {"<b>": 1.0}, "action": "<i>", "text": "<script>x</script>"}
    found = {"env": "<u>", "agent": "ppo", "reward": "task", "step": 1, "episodes": 2, "steps": 2, "cut": 0}
    found |= {"sampled": True, "task_return": 0.0, "streams": {"<s>": stream}, "moments": {"<s>": [shot]}}
    found |= {"reads": [{"part": "<a>", "moved": 0.5, "cell": [0, 1]}], "tree": None, "left_out": ["<em>"]}
    found |= {"polynomials": {"fidelity": 0.5, "lines": ["<b>"]}}
    found |= {"equations": ["<b>"], "splits": {"count": 1, "of": ["<b>"], "parts": [{"part": "<i>", "shares": [1.0]}]}}
    html = page.write(tmp_path / "x.html", found, {(0, 1): np.zeros((8, 8, 3), np.uint8)}).read_text()
    assert not any(tag in html for tag in ("<b>", "<i>", "<script", "<u>", "<s>", "<a>", "<em>"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run=nowhere"], "error: run=nowhere is no run's folder (it has no config.yaml); give one below runs/"),
        (["run=x", "episodes=1"], "error: episodes=1 is out of range; give a number at least 2"),
        (["run=x", "episode=3"], "error: key=episode is unknown; did you mean episodes?"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.strip() == sentence


def test_a_run_from_elsewhere_needs_trust(trained, tmp_path, capsys):
    saved = (trained.folder / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(saved.replace("env: CartPole-v1", "env: evil:CartPole-v1"))
    assert main([f"run={tmp_path}"]) == 2
    assert "which imports the module evil; add trust=true" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("env", "agent", "options", "lacks"),
    [
        ("MiniGrid-DoorKey-5x5-v0", "ppo", {}, False),
        ("CartPole-v1", "ppo", {"agent.gru": 8, "agent.sequence": 32, **SMALL}, False),
        ("CartPole-v1", "a2c", {}, False),
        ("Pendulum-v1", "ppo", SMALL, False),
        ("Pendulum-v1", "sb3_ppo", {}, False),
        ("Pendulum-v1", "sac", {}, False),
        ("Pendulum-v1", "crossq", {}, False),
        ("Pendulum-v1", "td3", {}, True),
        ("CartPole-v1", "dqn", {}, True),
        ("CartPole-v1", "recurrent_ppo", {}, True),
        ("lodestar/PixelPendulum-v0", "ppo", {"agent.n_steps": 64}, False),
    ],
)
def test_every_kind_of_agent_is_explained_as_far_as_it_can_be(env, agent, options, lacks, tmp_path):
    reward = {"task": {}, "rnd": {"scale": "none"}}  # a scale would still be warming up
    run = ld.train(env, reward, agent, run_dir=str(tmp_path / "a"), **QUICK, **options)
    found = run.explain(3, steps=30)
    assert bool(view(run.policy, agent).lacks) == lacks == any(agent in words for words in found["left_out"])
    assert ("explains" in found["streams"]["rnd"]) == (not lacks)
    assert found["tree"] is not None or "Pixel" in env
