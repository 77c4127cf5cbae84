"""Write the policy of a trained run so that others can run it: no pickle, no training code, a card beside it.

    python -m runners.export run=runs/CartPole-v1/ppo-task/20261121-120000-s0
    python -m runners.export run=... out=mine format=none                  without files for other programs
    python -m runners.export run=policy.safetensors env=Pendulum-v1       what runners.offline wrote

What is written is compared with the agent on 256 observations of its environment, and not kept if it differs. An
exported run is a run's folder, too (configuration, scores, a checkpoint of policy and rewards): `lodestar.load`,
evaluate, watch and init_from= take it.
"""

import io
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.make import make
from envs.recording import record
from lodestar.files import make_folder
from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.record import noisy_policy
from runners.run.build import Trained, load_run
from runners.run.checkpoint import versions
from runners.run.config import UsageError, Values, to_dict
from runners.run.folder import EXPORTED, STATUS, read_status
from runners.run.policies import from_file

if TYPE_CHECKING:
    from runners.export.policy import Policy

# How many observations the files are compared on.
COMPARED_OBSERVATIONS = 256
# The largest difference of an action's number, as a share of the largest number of all of them if that exceeds 1.
ACTION_TOLERANCE = 1e-4
GRAPH_FILE = "policy.onnx"
ONNX_OPSET = 18
CHECKPOINT_FOLDER = "checkpoints"
# The name of a folder in which an export is being written begins like this.
UNFINISHED_PREFIX = ".export-"
RUN_FILES = (CHECKPOINT_FOLDER, "config.yaml", "versions.json", "result.json", STATUS)
EXPORT_FILES = ("policy.safetensors", "policy.json", GRAPH_FILE, "README.md", *RUN_FILES)


@dataclass
class ExportConfig(Settings):
    """One export."""

    run: str = setting(help="a run's folder below runs/, or a file that runners.offline wrote")
    format: str = setting(
        "both",
        "for other programs: safetensors (for runners.export.load), onnx (for onnxruntime), both, or none",
        "both | safetensors | onnx | none",
    )
    checkpoint: str = setting("", "environment steps of the checkpoint to export, or best; the newest")
    out: str = setting("", "folder; export, in the run's folder or beside the file")
    env: str = setting("", "for a file of runners.offline: the environment's id")
    env_options: Values = setting({}, "its options, as in env.sticky=0.25")
    seed: int = setting(0, "of the observations", ">= 0")
    trust: bool = setting(False, "whether the run may name code and servers, as in env=module:Id")

    def __post_init__(self) -> None:
        super().__post_init__()
        if Path(self.run).is_file() and not self.env:
            raise UsageError(f"env= is missing: {self.run} does not say which environment its policy is for")
        if Path(self.run).is_file() and self.format == "none":
            raise UsageError(f"format=none would write nothing of the file {self.run}; give safetensors, onnx or both")
        if self.out and read_status(Path(self.out)).get("state", EXPORTED) != EXPORTED:
            raise UsageError(f"out={self.out} is the folder of a run that trained; give another one")


@dataclass
class Subject:
    """What is exported: an agent, and the environment it acts in."""

    agent: str
    model: Any
    # Makes the environment as the agent observes it.
    make: Callable[[], Any]
    # None for a policy of runners.offline.
    trained: Trained | None = None


def export(config: ExportConfig) -> tuple[Path, list[str]]:
    """Convert, compare, write; the folder, and a sentence for each file: how far it is from the agent.

    A UsageError if the policy does not fit the format asked for, or what was written acts otherwise.
    """
    if config.format in ("onnx", "both"):
        require_onnx()
    run = Path(config.run)
    if run.is_file():
        subject = file_subject(config)
        home = run.parent
    else:
        subject = run_subject(run, config.trust, config.checkpoint)
        home = run
    out = make_folder(config.out or home / "export")
    # A process that was killed during an export leaves its folder behind.
    for leftover in out.glob(f"{UNFINISHED_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED_PREFIX, dir=out) as temporary:
        folder = Path(temporary)
        sentences = write_policy(subject, config, folder)
        if subject.trained is not None:
            # Imported here, because it imports torch.
            from runners.export.card import card, write_small

            (folder / "README.md").write_text(card(subject.trained, run, sentences))
            write_small(folder, run, subject.trained, config.checkpoint)
        replace_export(out, folder)
    return out, sentences


def require_onnx() -> None:
    """An ImportError that names what format=onnx lacks."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        words = f"format=onnx needs {', '.join(missing)}: pip install 'lodestar-rl[onnx]'"
        raise ImportError(f"{words}, or give format=safetensors")


def write_policy(subject: Subject, config: ExportConfig, folder: Path) -> list[str]:
    """Convert the policy, write it into a folder and compare it; a sentence for each file."""
    # Imported here, because they import torch.
    from runners.export.convert import NoForm, convert
    from runners.export.policy import save

    if config.format == "none":
        return []
    with closing(subject.make()) as env:
        about = describe_subject(subject, env)
        try:
            policy = convert(subject.agent, subject.model, env.observation_space)
        except NoForm as error:
            if config.format == "onnx":
                words = f"{error}, which an ONNX graph of one step cannot hold; give format=safetensors"
                raise UsageError(words) from None
            save(folder, subject.model.policy.state_dict(), {**about, "policy": None, "why": str(error)})
            return [
                f"policy.safetensors: weights only ({error}); the agent that the configuration describes reads them"
            ]
        obs, mask = observations(env, subject.model, config.seed)
    return write_formats(policy, subject.model, about, config.format, folder, obs, mask)


def replace_export(out: Path, folder: Path) -> None:
    """Move an export from the folder that it was written in, and remove what an earlier export left in `out`."""
    checkpoints = out / CHECKPOINT_FOLDER
    # A link is removed without what it leads to.
    if checkpoints.is_symlink():
        checkpoints.unlink()
    shutil.rmtree(checkpoints, ignore_errors=True)
    for name in EXPORT_FILES:
        if (folder / name).exists():
            os.replace(folder / name, out / name)
        elif name != CHECKPOINT_FOLDER:
            (out / name).unlink(missing_ok=True)


def run_subject(run: Path, trust: bool, checkpoint: str) -> Subject:
    """The agent of a run at its newest checkpoint, or at another; see `load_run`."""
    trained = load_run(run, trust, checkpoint)
    from rewards.adapters.guided import add_guides, guide_modalities

    config = trained.config
    mix = trained.mix
    options = {**config.env_options, **guide_modalities(mix)}

    def make_env() -> Any:
        return add_guides(make(config.env, max_episode_steps=config.max_episode_steps, **options), mix)

    return Subject(config.agent_name, trained.model, make_env, trained)


def file_subject(config: ExportConfig) -> Subject:
    """A policy that runners.offline wrote."""
    from agents.offline.cloning import Cloning

    with closing(make(config.env, **config.env_options)) as env:
        model = from_file(Path(config.run), env.observation_space, env.action_space)
    agent = type(model).__name__.lower() if isinstance(model, Cloning) else "iql"
    return Subject(agent, model, lambda: make(config.env, **config.env_options))


def observations(env: Any, model: Any, seed: int) -> tuple[Any, Any]:
    """Observations (B, ...) of the agent's own episodes, half of whose actions are random; and their masks."""
    env.action_space.seed(seed)
    batch = record(env, noisy_policy(model, env.action_space, 0.5, seed), COMPARED_OBSERVATIONS, seed)
    # Only agents of ours and maskable_ppo have the attribute.
    masked = getattr(model, "masked", False)
    return batch.obs, batch.obs_action_mask if masked else None


def write_formats(
    policy: "Policy", model: Any, about: Values, format: str, folder: Path, obs: Any, mask: Any
) -> list[str]:
    """Write the formats asked for, read them back, compare them with the agent: a sentence each."""
    masks = {} if mask is None else {"mask": mask}
    expected, _ = model.predict(obs, deterministic=True, **masks)
    sentences = []
    if format != "onnx":
        policy.write(folder, about)
        actions = policy.read(folder).act(obs, mask)
        sentences.append(compare_actions("policy.safetensors", actions, expected))
    if format != "safetensors":
        write_onnx(policy, folder / GRAPH_FILE)
        actions = onnx_actions(folder / GRAPH_FILE, policy, obs, mask)
        sentences.append(compare_actions(GRAPH_FILE, actions, expected))
    return sentences


def write_onnx(policy: "Policy", path: Path) -> None:
    """Write the graph with its weights inside and the batch's size left open.

    The exporter logs, warns and prints, all of which is silenced.
    """
    import torch

    inputs = list(policy.inputs.values())
    if policy.action.masked:
        inputs.append(((sum(policy.action.sizes),), "bool"))
    example = tuple(torch.from_numpy(np.zeros((2, *shape), dtype)) for shape, dtype in inputs)
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    # `forward` has one argument, *observed, so that the shapes of its members stand in a tuple of their own.
    input_shapes = tuple({0: batch} for _ in example)
    options: Values = {
        "input_names": policy.names,
        "output_names": ["action"],
        "dynamic_shapes": (input_shapes,),
        "dynamo": True,
        "opset_version": ONNX_OPSET,
        "external_data": False,
        "verbose": False,
    }
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(policy, example, path, **options)
    finally:
        logging.disable(logging.NOTSET)


def onnx_actions(path: Path, policy: "Policy", obs: Any, mask: Any = None) -> np.ndarray:
    """What the graph does with a batch of observations, by onnxruntime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    columns, _ = policy.columns(obs, mask)
    return session.run(None, dict(zip(policy.names, columns)))[0]


def compare_actions(name: str, actions: np.ndarray, expected: Any) -> str:
    """How far actions (B, ...) are from the agent's, as a sentence; a UsageError if that is too far."""
    expected = np.asarray(expected)
    if actions.shape != expected.shape:
        raise UsageError(f"{name} gives actions of shape {actions.shape}, the agent {expected.shape}; nothing is kept")
    if not np.issubdtype(actions.dtype, np.floating):
        differs = (actions != expected).reshape(len(actions), -1).any(-1)
        if differs.any():
            count = int(differs.sum())
            raise UsageError(f"{name} chooses otherwise than the agent in {count} of {len(actions)} observations")
        return f"{name}: the agent's own choice in all of {len(actions)} observations"
    gap = float(np.abs(actions.astype(np.float64) - expected).max())
    largest = float(np.abs(expected).max())
    # Written with `not`, so that NaN fails.
    if not gap <= ACTION_TOLERANCE * max(1.0, largest):
        raise UsageError(f"{name} is off by up to {gap:.2g} from the agent's actions; nothing is kept")
    return f"{name}: at most {gap:.1e} from the agent's actions in {len(actions)} observations"


def describe_subject(subject: Subject, env: Any) -> Values:
    """What policy.json holds beside the policy: plain data without paths and addresses."""
    from runners.export.card import remove_paths

    trained = subject.trained
    description = {
        "agent": subject.agent,
        "env": env.spec.id if env.spec is not None else "",
        "step": 0 if trained is None else trained.step,
        "observation_space": str(env.observation_space),
        "action_space": str(env.action_space),
        "versions": versions(),
    }
    if trained is not None:
        config = {}
        for key, value in to_dict(trained.config).items():
            if key in ("env", "env_options", "reward", "agent", "seed"):
                config[key] = value
        description["config"] = remove_paths(config)
    return description


def export_and_print(config: ExportConfig) -> None:
    """Export, and print how each file compares with the agent."""
    out, sentences = export(config)
    print(*sentences, f"written to {out}", sep="\n")


main = Command(ExportConfig, export_and_print, __doc__)

if __name__ == "__main__":
    sys.exit(main())
