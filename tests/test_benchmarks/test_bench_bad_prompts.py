"""The study of bad sentences: its rows, and what its figures count."""

from benchmarks.studies import bad_prompts
from runners.report import results


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


def test_a_row_tells_the_verdict_and_its_reasons(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env, sentence = bad_prompts.BAD[0]
    row = bad_prompts.one(env, sentence, "bad", 60)
    assert row["verdict"] == "do not train with this" and row["auroc"] < 0.5 and "Spearman" in row["reasons"]
