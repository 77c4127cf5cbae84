"""The table of returns beside published ones: rows that a study adds show up, and what is said of them is right."""

import minigrid  # noqa: F401, it registers its environments
from gymnasium.envs.registration import registry

from benchmarks.study import Study
from runners import list as listing
from runners.cli.compose import compose
from runners.report import scores

HEADER = "task,arm,seed,return,trained,seconds\n"


def as_number(value):
    """A setting; one that may be a schedule is a text, as in 5e-4."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def settings_of(config):
    """An agent's settings, and those of each reward, by name."""
    groups = {"agent": config.agent, **config.reward}
    return {
        f"{name}.{field}": as_number(value) for name, group in groups.items() for field, value in vars(group).items()
    }


def row_of(monkeypatch, tmp_path, returns, **entry):
    rows = [f"hop,ppo,{seed},{value},{value - 1},60\n" for seed, value in enumerate(returns)]
    (tmp_path / "hops.csv").write_text(HEADER + "".join(rows) + "hop,other,0,9999,0,1\n")
    monkeypatch.setattr(scores, "RESULTS", tmp_path)
    entry = {"env": "Hopper-v5", "agent": "ppo", "steps": 1000, "ours": ["hops", "hop", "ppo"], **entry}
    return scores._row(entry)


def test_a_row_is_the_middle_of_its_runs_beside_what_is_published(monkeypatch, tmp_path):
    """The middle half of 100, 200, 300, 400 is 200 and 300."""
    row = row_of(monkeypatch, tmp_path, [100, 200, 300, 400], zoo=[240, 10])
    assert row[:8] == ("Hopper-v5", "ppo", "1,000", "4", "249", "250", "60", "240 ± 10")
    assert row[-1] == "reached"


def test_what_is_below_is_said_so_and_only_where_steps_are_equal(monkeypatch, tmp_path):
    def verdict(**entry):
        return row_of(monkeypatch, tmp_path, [100], **entry)[-1]

    assert verdict(zoo=[110, 6]) == "within 2 deviations"
    assert verdict(zoo=[110, 4]) == "below"
    assert verdict(zoo=[110]) == "below"
    assert verdict(zoo=[110, 4], zoo_steps=5) == ""
    # Beside the last 100 training episodes, 99 here.
    assert verdict(cleanrl=[99]) == "reached"
    assert verdict(cleanrl=[100]) == "below"


def test_a_row_without_runs_says_so(monkeypatch, tmp_path):
    row = row_of(monkeypatch, tmp_path, [1], ours=["hops", "hop", "sac"], zoo=[1, 1])
    assert row[3:7] == ("-", "-", "-", "-") and row[-1] == ""


def default_command(entry, given):
    """The shortest command of a row."""
    command = [f"env={given['env']}"]
    if given["agent"] != "ppo":
        command.append(f"agent={given['agent']}")
    for key in ("reward", "env.continuous", "agent.preset"):
        if key in given:
            command.append(f"{key}={given[key]}")
    return compose(command)[0]


def test_the_shortest_command_of_a_row_has_the_settings_of_its_study():
    """So what the table says holds for `lodestar train env=...`. Budgets of MiniGrid may be larger."""
    by_hand = [entry for entry in scores.entries() if ", settings of" in entry["agent"]]
    assert len(by_hand) == 2
    for entry in scores.entries():
        if entry in by_hand:
            continue
        study, task, arm = entry["ours"]
        cell = next(cell for cell in Study.read(study).grid() if (cell.task, cell.arm) == (task, arm))
        given = cell.argv(0)
        studied = compose([f"{key}={value}" for key, value in given.items()])[0]
        default = default_command(entry, given)
        assert settings_of(default) == settings_of(studied), entry["env"]
        assert (default.env, default.n_envs) == (studied.env, studied.n_envs)
        assert default.total_timesteps >= studied.total_timesteps, entry["env"]


def test_every_row_names_an_environment_and_an_arm_of_a_study(capsys):
    assert len(scores.entries()) >= 20
    for entry in scores.entries():
        assert entry["env"].split(",")[0] in registry
        study, task, arm = entry["ours"]
        specification = Study.read(study)
        assert task in specification.tasks and arm in specification.arms
    assert listing.main(["--scores"]) == 0
    printed = capsys.readouterr().out
    assert "Swimmer-v5" in printed and "282 ± 10" in printed and "best model, deterministic" in printed
