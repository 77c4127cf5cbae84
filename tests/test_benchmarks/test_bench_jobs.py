"""Studies run what is missing, once, and keep what ran."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import jobs as bench_jobs
from benchmarks.jobs import run_missing
from runners.report import results


@pytest.fixture(autouse=True)
def in_threads(monkeypatch):
    """Jobs run in a thread of this process."""
    monkeypatch.setattr(bench_jobs, "ProcessPoolExecutor", lambda cores, mp_context: ThreadPoolExecutor(1))


def test_what_is_missing_runs_and_is_appended_and_what_is_there_is_left_alone(tmp_path):
    ran = []

    def job(name, seed):
        ran.append((name, seed))
        return {"score": 10 * seed}

    jobs = [(job, (name, seed)) for name in ("a", "b") for seed in (0, 1)]
    results.append_rows(tmp_path / "study.csv", [{"name": "a", "seed": 1, "score": 7}])
    rows = run_missing(tmp_path, "study", ("name", "seed"), jobs)
    assert sorted(ran) == [("a", 0), ("b", 0), ("b", 1)]
    text = (tmp_path / "study.csv").read_text().splitlines()
    assert text[:2] == ["name,seed,score", "a,1,7"] and sorted(text[2:]) == ["a,0,0", "b,0,0", "b,1,10"]
    assert sorted((row["name"], int(row["seed"]), int(row["score"])) for row in rows) == [
        *(("a", 0, 0), ("a", 1, 7), ("b", 0, 0), ("b", 1, 10)),
    ]
    assert run_missing(tmp_path, "study", ("name", "seed"), jobs) == results.read_rows(tmp_path / "study.csv")
    assert len(ran) == 3


def test_a_job_that_fails_costs_its_own_row_only(tmp_path):
    def job(seed):
        return {"inverse": 1 // seed}

    with pytest.raises(RuntimeError, match=r"1 of 2 runs of study failed: 0; see above"):
        run_missing(tmp_path, "study", ("seed",), [(job, (0,)), (job, (1,))])
    assert results.read_rows(tmp_path / "study.csv") == [{"seed": "1", "inverse": "1"}]
    rows = run_missing(tmp_path, "study", ("seed",), [(job, (1,)), (job, (2,))])
    assert sorted(int(row["inverse"]) for row in rows) == [0, 1]
