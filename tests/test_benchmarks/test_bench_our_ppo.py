"""The benches of our PPO count what they say they count."""

import pytest

from benchmarks.speed import ppo as bench_ppo


@pytest.mark.parametrize("agent", ["ours", pytest.param("sb3", marks=pytest.mark.nightly)])
def test_shares_of_a_run_add_up_to_all_of_it(agent):
    shares = []
    build = bench_ppo._ours("CartPole-v1", 8, 2048, "gym", shares=shares)
    if agent == "sb3":
        build = bench_ppo._sb3("CartPole-v1", 8, 2048, shares)
    frames, work = build()
    work()
    (row,) = shares
    assert frames == 2048 and row["agent"] == agent
    assert sum(row[part] for part in (*bench_ppo.PARTS, "rest")) == pytest.approx(1, abs=1e-3)
    assert row["environment"] > 0.01 and row["inference"] > 0.01 and row["update"] > 0.1 and -0.01 < row["rest"] < 0.5
