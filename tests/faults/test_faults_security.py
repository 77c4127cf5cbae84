import json
import re
import signal
import sys

import numpy as np
import pytest

from envs.recording import save as save_recording
from envs.transitions import Transitions
from runners.evaluate import main as evaluate
from runners.run.build import load_run
from runners.run.config import UsageError
from runners.run.exits import Signals, Stopped, explain
from runners.run.trust import mask_secrets, refuse

CANARY = "sk-CANARY-0123456789abcdef"


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("MY_TOKEN", "short")


def test_secrets_of_the_environment_and_logins_are_masked(keys):
    assert mask_secrets(f"401 for Bearer {CANARY}, a short word") == "401 for Bearer ***, a short word"
    assert (
        mask_secrets("https://me:word@example.com/v1 and me@example.com")
        == "https://***@example.com/v1 and me@example.com"
    )


def test_an_error_is_told_without_the_key(keys):
    code, sentence = explain(UsageError(f"url=http://a:b@c holds {CANARY}"), "set-up")
    assert (code, sentence) == (2, "url=http://***@c holds ***")


def test_a_key_on_a_command_line_is_refused_before_it_is_written_down(keys):
    with pytest.raises(UsageError, match=r"holds the value of \$OPENAI_API_KEY, .* give its name OPENAI_API_KEY"):
        refuse(["env=CartPole-v1", f"reward.oni.judge_options={{key: {CANARY}}}"])
    with pytest.raises(UsageError, match=r"reward\.oni\.judge_options holds a web address with a login"):
        refuse(['reward.oni.judge_options={url: "http://me:word@localhost:1/v1"}'])
    refuse(["reward.clip.goal=me@example.com: a pole, upright", 'reward.oni.judge_options={url: "http://host:1/v1"}'])


def test_a_module_beside_a_foreign_run_is_not_imported(tmp_path, monkeypatch, capsys):
    from runners.cli.compose import compose
    from runners.run.config import save

    config, _ = compose(["env=CartPole-v1"])
    config.env = "foreign.world:CartPole-v1"
    run = tmp_path / "foreign"
    run.mkdir()
    (run / "world.py").write_text("raise SystemExit('executed')\n")
    save(config, run / "config.yaml")
    monkeypatch.syspath_prepend(tmp_path)
    assert evaluate([f"run={run}"]) == 2
    assert "imports the module foreign.world; add trust=true" in capsys.readouterr().err
    assert "foreign" not in sys.modules
    with pytest.raises(UsageError, match="has no checkpoint yet"):  # trusted, it gets that far
        load_run(run, trust=True)


def test_a_recording_that_names_a_module_needs_trust(tmp_path, capsys):
    from runners.offline import main

    batch = Transitions(
        obs=np.zeros((4, 2), np.float32), action=np.zeros(4, np.int64), reward=np.zeros(4, np.float32),
        next_obs=np.zeros((4, 2), np.float32), terminated=np.zeros(4, bool), truncated=np.zeros(4, bool),
        valid=np.ones(4, bool), step=np.arange(4),
    )  # fmt: skip
    save_recording(tmp_path / "data.safetensors", batch, {"env": "foreign_world:X-v0"})
    assert main([f"data={tmp_path / 'data.safetensors'}"]) == 2
    assert "imports the module foreign_world; add trust=true" in capsys.readouterr().err


def test_a_preset_with_a_python_tag_is_refused_and_executes_nothing(tmp_path):
    from runners.cli.compose import compose

    preset = tmp_path / "evil.yaml"
    preset.write_text(f"seed: !!python/object/apply:os.mkdir [{json.dumps(str(tmp_path / 'executed'))}]\n")
    with pytest.raises(UsageError, match=r"evil\.yaml cannot be read"):
        compose(["env=CartPole-v1", f"preset={preset}"])
    assert not (tmp_path / "executed").exists()


def test_a_missing_module_is_told_with_the_command_that_brings_it():
    for module, command in (("open_clip", "lodestar-rl[models]"), ("onnx", r"lodestar-rl[onnx]"), ("nobody", "nobody")):
        code, sentence = explain(ModuleNotFoundError(f"No module named {module!r}", name=module), "set-up")
        assert code == 3 and f"No module named {module!r}; pip install '{command}" in sentence


def test_a_second_signal_does_not_interrupt_what_the_first_one_began():
    with Signals() as signals:
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # while it tidies up
        assert signals.received == signal.SIGTERM


@pytest.mark.parametrize("name", ["tensorboard", "videos", "checkpoints", ".lock"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_run_that_holds_links_to_write_through_is_not_continued(tmp_path, name, exists):
    from runners.cli.compose import compose
    from runners.run.folder import open_folder

    config, _ = compose(["env=CartPole-v1", f"run_dir={tmp_path / 'run'}"])
    folder = open_folder(config)
    folder.begin(config, "train")
    folder.close()
    (tmp_path / "run" / ".lock").unlink()
    target = tmp_path / "target"
    if exists:
        target.write_text("mine") if name == ".lock" else target.mkdir()
    (tmp_path / "run" / name).symlink_to(target)
    with pytest.raises(UsageError, match=rf"run holds links \({re.escape(name)}\), which may lead anywhere"):
        open_folder(config)
    assert target.exists() == exists
    assert not target.is_file() or target.read_text() == "mine"


def test_an_export_into_a_linked_folder_is_refused(tmp_path, capsys):
    from runners.export.__main__ import main
    from tests.faults.child import train

    assert train(run_dir=tmp_path / "run", total_timesteps=64) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "run" / "export").symlink_to(tmp_path / "mine")
    assert main([f"run={tmp_path / 'run'}", "format=safetensors"]) == 5
    assert "export is a link, which may lead anywhere; put the folder itself there" in capsys.readouterr().err
    assert not [*(tmp_path / "mine").iterdir()]


@pytest.mark.nightly
def test_no_command_writes_through_a_link_of_a_run(tmp_path):
    from tests.faults.links import QUICK, links

    found = links(tmp_path, quick=True)
    assert found.failed == 0, found.words
    assert found.figures == {"links_written": 0, "links_tried": len(QUICK)}
