"""The table of features: what ran is written down, and only what ran under this version counts."""

from benchmarks import features, results

ROWS = """number,feature,state,command,why,version
1,is read by others,whole,true,,{current}
2,fails,whole,false,,0.1.0
3,ran before,partly,exit 1,some,{current}
5,is not there,not,,nobody wrote it,
"""


def test_rows_that_ran_under_this_version_are_not_run_again_and_failures_do_not_count(tmp_path, monkeypatch):
    table = tmp_path / "features.csv"
    current = results.versions()["lodestar-rl"]
    table.write_text(ROWS.format(current=current))
    monkeypatch.setattr(features, "TABLE", table)
    assert features.run(tmp_path) == {
        "features_whole": 1,
        "features_partial": 1,
        "features_missing": 1,
        "features_not_run": 1,
    }
    assert [row["version"] for row in results.read_rows(table)] == [current, "", current, ""]
    assert features.run_rows([3]) == [3]
