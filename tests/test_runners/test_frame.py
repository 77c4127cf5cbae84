"""The frame of every command: what arguments become, what --help prints, and which exit code an error has."""

import signal
from dataclasses import dataclass
from typing import Any

import pytest

from lodestar.settings import Settings, setting
from runners.cli.command import Command, options_text
from runners.run.checkpoint import CheckpointError
from runners.run.config import InUse
from runners.run.exits import Failed, Stopped
from runners.run.value import literal, read


@dataclass
class Config(Settings):
    run: str = setting(help="a run's folder")
    episodes: int = setting(3, "how many", ">= 1")
    share: float = setting(0.5, "of them", "(0, 1]")
    names: list[str] = setting([], "which ones")
    video: bool = setting(True, "whether to record one")
    judge_options: dict[str, Any] = setting({}, "of the judge")
    rest: list[str] = setting([], "every other argument")


def parse(*argv):
    return Command(Config, lambda config: None).parse(["run=x", *argv])


def test_arguments_become_fields_groups_and_the_rest():
    config = parse("episodes=1e1", "names=a,b", "video=false", "judge.mistakes=0.1", "judge.order=[x,y]", "seed=1", "p")
    assert (config.run, config.episodes, config.names, config.video) == ("x", 10, ["a", "b"], False)
    assert config.judge_options == {"mistakes": 0.1, "order": ["x", "y"]} and config.rest == ["seed=1", "p"]
    assert parse("names=[a]").names == parse("names=a").names == ["a"]
    assert parse("run=7").run == "7" and parse('run="a b"').run == "a b"


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("episodes=0", "episodes=0 is out of range; give a number at least 1"),
        ("episodes=some", "episodes=some is not a whole number"),
        ("episodes=inf", "episodes=inf is not a whole number"),
        ("share=0", r"share=0.0 is out of range; give a number in \(0, 1\]"),
        ("run=${HOME}", "is refused: configurations are data"),
    ],
)
def test_a_value_that_does_not_fit_is_one_sentence(argument, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse(argument)


def test_help_is_made_of_the_declarations(capsys):
    assert Command(Config, lambda config: None, "What it does.")([]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["What it does.", "", "keys", "  run=                    a run's folder"]
    assert (
        "  episodes=3              how many (at least 1)" in lines and "  judge.<name>=           of the judge" in lines
    )
    assert options_text(Config, "agent.").splitlines()[1].startswith("  agent.episodes=3 ")


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (ValueError("gamma=2 is out of range"), 2, "error: gamma=2 is out of range\n"),
        (InUse("run_dir=x is in use"), 8, "error: run_dir=x is in use\n"),
        (CheckpointError("the file is corrupt"), 5, "error: the file is corrupt\n"),
        (Failed(7, "the reward failed"), 7, "error: the reward failed\n"),
        (ModuleNotFoundError("No module named 'ray'", name="ray"), 3, "pip install 'lodestar-rl[cluster]'\n"),
        (ModuleNotFoundError("No module named 'hydra.core'", name="hydra.core"), 3, "pip install 'hydra-core"),
        (RuntimeError("a bug"), 1, "RuntimeError: a bug\n"),
    ],
)
def test_an_expected_error_is_one_sentence_with_its_exit_code_and_a_bug_a_traceback(error, code, printed, capsys):
    def run(argv):
        raise error

    assert Command(None, run)(["x"]) == code
    output = capsys.readouterr().err
    assert printed in output and ("Traceback" in output) == (code == 1)


def test_a_signal_ends_a_command_with_the_shells_code(capsys):
    for error, code in ((KeyboardInterrupt(), 130), (Stopped(signal.SIGTERM), 143)):

        def run(argv, error=error):
            raise error

        assert Command(None, run, stopped="stopped; the same command continues")(["x"]) == code
        assert capsys.readouterr().out == "stopped; the same command continues\n"


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "a b", 'a "b"', "tail\\", [1, "x, y"], {"a": [1, None]}])
def test_what_is_written_as_a_literal_is_read_back(value):
    assert read(literal(value)) == value
