"""Our exploration rewards beside another library's: rollouts that hold together, checked work, honest ratios."""

import ast
import importlib.util
import json
import subprocess
import sys
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rewards
from benchmarks import results
from benchmarks.__main__ import CODE
from benchmarks.peers import peers
from benchmarks.speed import exploration as exploration_speed

DRIVER = peers.SCRIPTS / "drive_reward.py"


@pytest.fixture(scope="module")
def driver():
    spec = importlib.util.spec_from_file_location("drive_reward", DRIVER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("observation", exploration_speed.OBSERVATIONS)
def test_rollouts_follow_on_from_one_another_and_never_change(observation, driver):
    shape = driver.SHAPES[observation]
    one, two = islice(driver.rollouts(shape), 2)
    again = next(driver.rollouts(shape))
    assert all(np.array_equal(one[key], again[key]) for key in one)
    whole = {key: np.concatenate([one[key], two[key]]) for key in one}
    assert whole["obs"].shape == (256, 8, *shape)
    assert whole["obs"].dtype == whole["next_obs"].dtype == (np.uint8 if observation == "image" else np.float32)
    continues = ~whole["terminated"][:-1]
    np.testing.assert_array_equal(whole["obs"][1:][continues], whole["next_obs"][:-1][continues])
    assert not np.any(np.all(whole["obs"][1:][~continues] == whole["next_obs"][:-1][~continues], axis=-1))
    np.testing.assert_array_equal(whole["step"][1:], np.where(continues, whole["step"][:-1] + 1, 0))
    assert whole["terminated"].mean() == pytest.approx(0.02, abs=0.01)
    assert set(np.unique(whole["action"])) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("script", ["rllte_rewards", "ours_rewards"])
def test_a_script_has_what_the_driver_asks_for_and_stays_small(script):
    text = (peers.SCRIPTS / f"{script}.py").read_text()
    names = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert "make" in names
    assert 'DISTRIBUTION = "' in text
    assert 'VARIANTS = ("default",' in text
    assert len(text.splitlines()) <= 85


FAKE = """
import torch
DISTRIBUTION, VARIANTS = "numpy", ("default", "equal")
def make(method, shape, envs, variant):
    assert (method, envs) == ("ngu", 8)
    def learn(rows):
        print("what a library prints is not the answer")
        weight = torch.ones(rows.shape[-1], requires_grad=True)
        for _ in range(4):
            (rows @ weight).mean().backward()
        return rows[..., 0]
    return (lambda rollout: torch.from_numpy(rollout["next_obs"]).float().flatten(2)), learn
"""


@pytest.mark.nightly
def test_the_driver_prints_one_line_with_a_row_for_each_variant_and_observation(tmp_path):
    (tmp_path / "fake.py").write_text(FAKE)
    settings = {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(DRIVER), "fake", "ngu"]
    answer = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=120)
    rows = json.loads(answer.stdout)
    assert [row["observation"] for row in rows] == [*exploration_speed.OBSERVATIONS] * 2
    assert [row["variant"] for row in rows] == ["default", "default", "equal", "equal"]
    for row in rows:
        assert list(row) == ["variant", "observation", "version", "transitions", "cpu_seconds"]
        assert row["transitions"] == 128 * 8
        assert 0 < row["cpu_seconds"] < 1


@pytest.fixture
def measure(driver, monkeypatch):
    """The driver's measurement of three rollouts, in this process."""
    monkeypatch.setattr(driver, "ROLLOUTS", 1)
    return driver.measure


def fake(minibatches=4, spoil=lambda scores: scores):
    def learn(rows):
        weight = torch.ones(16, requires_grad=True)
        for _ in range(minibatches):
            (rows @ weight).mean().backward()
        return spoil(rows[..., 0])

    make = (lambda rollout: torch.from_numpy(rollout["next_obs"])), learn
    return SimpleNamespace(DISTRIBUTION="numpy", make=lambda *_: make)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"minibatches": 3}, "3 minibatches instead of 4 in rollout 0"),
        ({"spoil": torch.flatten}, "these are no scores"),
        ({"spoil": torch.zeros_like}, "these are no scores"),
    ],
    ids=["too few minibatches", "wrong shape", "all alike"],
)
def test_the_driver_refuses_less_learning_and_what_is_no_score(shape, reason, measure):
    with pytest.raises(AssertionError, match=reason):
        measure(fake(**shape), "rnd", "vector", "default")


def test_the_driver_leaves_torch_as_it_was(measure):
    before = torch.Tensor.backward
    measure(fake(), "rnd", "vector", "default")
    assert torch.Tensor.backward is before


def test_the_driver_asks_no_learning_of_a_method_that_learns_nothing(measure):
    assert measure(fake(minibatches=0), "re3", "vector", "default")["transitions"] == 1024


@pytest.fixture
def ours(monkeypatch):
    monkeypatch.syspath_prepend(str(peers.SCRIPTS))
    return importlib.import_module("ours_rewards")


@pytest.mark.parametrize("observation", exploration_speed.OBSERVATIONS)
@pytest.mark.parametrize("variant", ["default", "equal"])
def test_ours_scores_and_learns_within_the_driver(observation, variant, measure, ours):
    row = measure(ours, "rnd", observation, variant)
    assert (row["variant"], row["observation"], row["transitions"]) == (variant, observation, 1024)


def test_the_sizes_of_the_other_library_fit_every_method(ours):
    for method in exploration_speed.METHODS:
        config = rewards.get(method).Config(**ours.SIZES | ours.OPTIONS.get(method, {}))
        assert config.features == (32 if method in ("ngu", "pseudocount") else 128)
        assert (config.hidden, config.batch_size) == (256, 256)
        assert rewards.get(method).Config().batch_size == 256


def answers(monkeypatch, seconds, fails=""):
    """Replace processes: seconds by script, variant and observation, one a round."""

    def call(command, settings=None):
        _, _, script, method = command
        if script == "rllte_rewards" and method == fails:
            raise RuntimeError("RuntimeError: shapes")
        rows = []
        for variant in ("default", "equal") if script == "ours_rewards" else ("default",):
            for name in exploration_speed.OBSERVATIONS:
                taken = seconds.get((script, variant, name), [1, 1, 1]).pop(0)
                row = {"variant": variant, "observation": name, "version": "1"}
                rows.append({**row, "transitions": 12, "cpu_seconds": taken})
        return f"noise\n{json.dumps(rows)}\n"

    monkeypatch.setattr(peers, "call", call)
    monkeypatch.setattr(peers, "environment", lambda home, requirements: home)


def test_a_figure_is_the_median_of_neighbours_and_the_smaller_of_two_observations(tmp_path, monkeypatch, capsys):
    seconds = {("ours_rewards", "default", "vector"): [1, 1, 2], ("rllte_rewards", "default", "vector"): [4, 8, 6]}
    seconds |= {("ours_rewards", "default", "image"): [1, 1, 1], ("rllte_rewards", "default", "image"): [5, 2, 3]}
    seconds |= {("ours_rewards", "equal", "vector"): [2, 2, 6], ("ours_rewards", "equal", "image"): [2, 2, 2]}
    answers(monkeypatch, seconds)
    figures = exploration_speed.run(tmp_path, ["rnd", "nothing"], tmp_path)
    # default: of 4, 8, 3 and 5, 2, 3; equal: of 2, 4, 1 and 2.5, 1, 1.5
    assert figures == {"speed_rnd": 3.0, "speed_rnd_equal": 1.5, "speed_rnd_vector": 4.0, "speed_rnd_image": 3.0}
    assert capsys.readouterr().err == "nothing is skipped: there is no reward of ours with that name\n"
    rows = results.read_rows(tmp_path / "exploration-speed.csv")
    assert [row["peer"] for row in rows] == ["ours", "ours", "ours", "ours", "rllte", "rllte"] * 3
    assert [row["variant"] for row in rows[:6]] == ["default", "default", "equal", "equal", "default", "default"]
    assert [row["transitions_per_cpu_second"] for row in rows[:6]] == ["12.0", "12.0", "6.0", "6.0", "3.0", "2.4"]
    assert [(row["round"], row["observation"]) for row in rows[::6]] == [(str(i), "vector") for i in (1, 2, 3)]


def test_a_method_that_fails_elsewhere_is_skipped_with_a_sentence_and_the_others_are_measured(
    tmp_path, monkeypatch, capsys
):
    answers(monkeypatch, {}, fails="count")
    assert set(exploration_speed.run(tmp_path, ["count", "rnd"], tmp_path)) == {
        "speed_rnd",
        "speed_rnd_equal",
        "speed_rnd_vector",
        "speed_rnd_image",
    }
    assert capsys.readouterr().err == "count is skipped: RuntimeError: shapes\n"


def test_without_an_environment_for_the_library_there_are_no_figures(tmp_path, monkeypatch, capsys):
    def environment(home, requirements):
        raise RuntimeError("no uv")

    monkeypatch.setattr(peers, "environment", environment)
    assert exploration_speed.run(tmp_path, ["rnd"], tmp_path) == {}
    assert capsys.readouterr().err == "rllte is skipped: no uv\n"


def test_ours_that_does_not_run_is_an_error(tmp_path, monkeypatch):
    answers(monkeypatch, {})

    def call(command, settings=None):
        raise RuntimeError("TypeError: ours")

    monkeypatch.setattr(peers, "call", call)
    with pytest.raises(RuntimeError, match=r"TypeError: ours"):
        exploration_speed.run(tmp_path, ["rnd"], tmp_path)


def test_the_figures_are_collected_with_those_of_exploration():
    assert CODE["exploration-speed"][1] == "exploration"
