"""Files and environments of others that are wrong: bounded, refused in a sentence, and nothing steers the terminal."""

import dataclasses
import io
import json
import zlib
from contextlib import redirect_stdout

import numpy as np
import pytest

import agents
import rewards
from envs.make import make
from envs.snapshots import s3rl
from envs.snapshots.s3rl import Snapshots
from runners.cli.compose import compose
from runners.record import main as record
from runners.run import policies
from runners.run.build import typed_options
from runners.run.config import UsageError
from runners.run.output import Lasting, style_stream
from runners.train import main as train
from tests.faults import hostile


def test_states_that_unfold_beyond_the_limit_are_neither_read_nor_written(tmp_path, monkeypatch):
    env = make("CartPole-v1")
    states = s3rl.record(env, lambda obs: 0, episodes=1, seed=0)
    states.save(tmp_path / "states.safetensors")
    loaded = Snapshots.load(tmp_path / "states.safetensors")
    assert s3rl.to_json(loaded.states) == s3rl.to_json(states.states)
    monkeypatch.setattr(s3rl, "MAX_STATES_BYTES", 1000)
    with pytest.raises(ValueError, match=r"holds no snapshots \(its states unfold to more than 1,000 bytes\)"):
        Snapshots.load(tmp_path / "states.safetensors")
    with pytest.raises(ValueError, match=r"states are [\d,]+ bytes, more than the 1,000 .*; keep fewer"):
        states.save(tmp_path / "more.safetensors")
    assert not (tmp_path / "more.safetensors").exists()


@pytest.mark.parametrize("text", [b"null", b"[]", b"[{}]", b"[" * 100_000, b'["x"]', b'[{"env": 1}]'])
def test_what_are_no_states_is_one_sentence(tmp_path, capsys, text):
    module, arguments = hostile.spoil_snapshots(zlib.compress(text), 1, tmp_path)
    assert module == "train" and train(arguments) == 2
    assert "holds no snapshots" in capsys.readouterr().err


def test_a_model_that_unfolds_beyond_what_weights_do_is_refused_before_it_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(policies, "SMALL", 50_000)
    _, arguments = hostile.spoil_zip("policy.pth", b"\0" * 10_000_000, tmp_path)
    assert record(arguments) == 2
    assert "its policy.pth unfolds to 10,000,000 bytes, more than the" in capsys.readouterr().err


def test_networks_larger_than_their_weights_are_not_made(tmp_path, capsys):
    _, arguments = hostile.spoil_data("policy_kwargs", {"net_arch": [10**9]}, tmp_path)
    assert record(arguments) == 2
    assert "cannot be read here (the networks of this run needs" in capsys.readouterr().err


@pytest.mark.parametrize("config", ["", "null", "{", '{"net_arch": "x"}', "[" * 100_000])
def test_a_policy_file_with_a_broken_configuration_is_one_sentence(tmp_path, capsys, config):
    _, arguments = hostile.spoil_offline({"config": config}, 1.0, tmp_path)
    assert record(arguments) == 2
    assert "policy.safetensors does not fit" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["./evil:act", "..:act", ":act"])
def test_a_text_that_python_cannot_import_is_no_policy(tmp_path, capsys, source):
    _, arguments = hostile.recorded(tmp_path, source)
    assert record(arguments) == 2
    assert f"{source} is no " in capsys.readouterr().err


def test_every_saved_option_has_the_type_that_it_is_checked_against():
    for table in (agents, rewards):
        for name in table.names():
            config = table.get(name).Config
            saved = json.loads(json.dumps(dataclasses.asdict(config())))
            assert typed_options("", config, saved) == saved, name


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("seed",), None, "seed=None is not a whole number"),
        (("agent", "net_arch"), None, "agent.net_arch=None is not"),
        (("agent", "gamma"), [1], "agent.gamma=[1] is not a number"),
        (("env",), {"a": 1}, "env={'a': 1} is not a text"),
    ],
)
def test_a_wrong_type_in_a_saved_configuration_is_named(tmp_path, capsys, path, value, words):
    import yaml

    from runners.evaluate import main as evaluate
    from runners.run.config import save

    (tmp_path / "run").mkdir()
    save(compose(["env=CartPole-v1"])[0], tmp_path / "run" / "config.yaml")
    values = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    spoiled = hostile.replaced_value(values, path, value)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(spoiled))
    assert evaluate([f"run={tmp_path / 'run'}", "episodes=1"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "size", "close", "code", "words"),
    [
        ("Shutting", 3, 'raise RuntimeError("the door")', 6, "the environment failed after 0 steps: RuntimeError"),
        ("Hollow", 0, "pass", 2, "has observations of size 0"),
    ],
)
def test_an_environment_that_fails_to_close_or_shows_nothing_is_one_sentence(
    tmp_path, capsys, monkeypatch, name, size, close, code, words
):
    monkeypatch.syspath_prepend(tmp_path)
    _, arguments = hostile.in_world(name, size, "pass", close, tmp_path)
    assert train(arguments) == code
    assert words in capsys.readouterr().err


def test_a_full_disk_under_a_recording_is_one_sentence(tmp_path, capsys):
    from tests.faults.child import full_disk

    with full_disk(100):
        code = record(hostile.record_to(tmp_path)[1])
    assert code == 5
    assert "cannot write full.safetensors" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_what_would_steer_the_terminal_is_shown_and_a_style_of_our_own_gets_through():
    with redirect_stdout(io.StringIO()) as printed:
        stream = Lasting(Lasting(printed))
        print(f"a\t{hostile.ESCAPE}b\x9b2J\x7f", file=stream)
        print("\x1b[32mok\x1b[0m", file=style_stream(stream))
    assert printed.getvalue() == "a\t\\x1b]0;owned\\x07b\\x9b2J\\x7f\n\x1b[32mok\x1b[0m\n"


def test_a_folder_whose_name_would_steer_the_terminal_is_refused():
    with pytest.raises(UsageError, match=r"run_dir='runs/\\x1b\]0;x\\x07' holds control characters"):
        compose(["env=CartPole-v1", "run_dir=runs/\x1b]0;x\x07"])


def test_arrays_of_a_type_that_the_format_lacks_are_named(tmp_path):
    from lodestar.files import save_arrays

    with pytest.raises(ValueError, match=r"x\.safetensors cannot hold these arrays: .*float128"):
        save_arrays(tmp_path / "x.safetensors", {"a": np.zeros(2, np.longdouble)})


@pytest.mark.nightly
def test_no_wrong_value_ends_in_a_traceback(tmp_path):
    found = hostile.hostile(tmp_path, quick=True)
    assert found.failed == 0, found.words
    assert found.figures["hostile_tried"] >= 15
