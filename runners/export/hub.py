"""A trained run in a repository of the Hugging Face Hub, and one from there: no pickle, neither way.

    push(Path("runs/CartPole-v1/ppo-task/..."), "me/cartpole")      -> the repository's address
    pull("me/cartpole")                                             -> runs/hub/me/cartpole, a run's folder

What is there is what acting needs, weights as safetensors and the rest as JSON and YAML, and a card. Nothing else of a
repository is downloaded, and what is gets no more trust than any run's folder (`runners.run.trust`).
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lodestar.files import read_json
from runners.run.build import load_run
from runners.run.folder import EXPORTED, read_status
from runners.run.trust import mask_secrets

CHECKPOINT_FILES = ("checkpoints/LATEST", "checkpoints/step_*/*.safetensors", "checkpoints/step_*/*.json")
HUB_FILES = ("config.yaml", "result.json", "versions.json", "status.json", "README.md", *CHECKPOINT_FILES)
# Errors of these packages are errors of the connection.
HTTP_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
MAX_SERVER_MESSAGE = 200


def push(run: Path, repo: str, *, private: bool | None = None, trust: bool = False, at: str | int = "") -> str:
    """Upload a run at its newest checkpoint, or another (`load_run`), to a repository, made if missing; its address.

    Paths and addresses in its configuration stay here (`runners.export.card.remove_paths`). Raises as lodestar's does.
    """
    with sentences(repo) as api, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        step = write(run, folder, repo, trust, at)
        api.create_repo(repo, private=private, exist_ok=True)
        words = f"{run.resolve().name} after {step:,} steps"
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=words, delete_patterns=["checkpoints/*"])
        return f"{api.endpoint}/{repo}"


def pull(repo: str, folder: str | Path | None = None, revision: str | None = None) -> Path:
    """Download a run's files from a repository into a folder, runs/hub/<repo> by default; raises as `push` does."""
    with sentences(repo) as api:
        info = api.repo_info(repo, revision=revision)
        if not any(file.rfilename == "config.yaml" for file in info.siblings or ()):
            raise ValueError(f"{repo} holds no run of ours (it has no config.yaml); give a repository of push_to_hub")
        target = Path(folder or Path("runs", "hub", *repo.split("/")))
        if (target / "config.yaml").exists() and read_status(target).get("state") != EXPORTED:
            raise ValueError(f"folder={target} is the folder of a run that trained; give another one")
        api.snapshot_download(repo, revision=info.sha, local_dir=target, allow_patterns=list(HUB_FILES))
    return target


def write(run: Path, folder: Path, repo: str, trust: bool, at: str | int) -> int:
    """Write what is uploaded, a small run and its card; returns the step of the checkpoint."""
    from runners.export.card import card, write_small

    trained = load_run(run, trust, at)
    write_small(folder, run, trained, str(at))
    # JSON is YAML, which the Hub reads between the two lines of dashes.
    head = [f"{key}: {json.dumps(value)}" for key, value in metadata(trained, run).items()]
    text = card(trained, run, [], f'ld.load_from_hub("{repo}")')
    (folder / "README.md").write_text("\n".join(["---", *head, "---", "", text]))
    return trained.step


def metadata(trained: Any, run: Path) -> dict[str, Any]:
    """What the Hub reads at the head of a card; the return of the end of training, if that is what is uploaded."""
    config = trained.config
    env = config.env.rpartition(":")[2]
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "lodestar", env, config.agent_name]
    entries = {"library_name": "lodestar-rl", "pipeline_tag": "reinforcement-learning", "tags": tags}
    scores = read_json(run / "result.json").get("this run")
    if scores and trained.step >= config.total_timesteps:
        metric = {"type": "mean_reward", "name": "mean_reward", "value": scores["task_return"], "verified": False}
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": env, "type": env},
            "metrics": [metric],
        }
        entries["model-index"] = [{"name": f"{config.agent_name}-{env}", "results": [result]}]
    return entries


@contextmanager
def sentences(repo: str) -> Iterator[Any]:
    """The client of the Hub; its errors as one sentence each."""
    try:
        from huggingface_hub import HfApi, errors
    except ImportError:
        raise ImportError("the Hub needs huggingface_hub; pip install 'lodestar-rl[hub]'") from None
    api = HfApi(os.environ.get("HF_ENDPOINT"), library_name="lodestar-rl")
    try:
        yield api
    except errors.HFValidationError:
        raise ValueError(f"{repo!r} is no repository's name; give owner/name, as in me/cartpole") from None
    except errors.GatedRepoError:
        raise ValueError(f"{repo} is gated; ask for access on {api.endpoint}/{repo}; then hf auth login") from None
    except errors.RevisionNotFoundError:
        raise ValueError(f"{repo} has no such revision; give a branch, a tag or a commit of it") from None
    except (errors.RepositoryNotFoundError, errors.LocalTokenNotFoundError):
        words = f"{repo} is not on {api.endpoint}, or not yours to see; check its name, or log in with hf auth login"
        raise ValueError(words) from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", 0)
        reason = _shorten(getattr(error, "server_message", None) or error)
        if status in (401, 403):
            words = f"{api.endpoint} does not let you do that with {repo} ({reason}); log in with hf auth login"
            raise ValueError(words) from None
        raise ConnectionError(f"{api.endpoint} failed for {repo} (HTTP {status}: {reason}); try again later") from None
    except Exception as error:
        offline = isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError)
        package = type(error).__module__.partition(".")[0]
        if not offline and package not in HTTP_PACKAGES:
            raise
        words = f"{api.endpoint} cannot be reached ({_shorten(error)}); is there a network?"
        raise ConnectionError(words) from None


def _shorten(message: object) -> str:
    """A server's words on one line, without keys."""
    return mask_secrets(" ".join(str(message).split()))[:MAX_SERVER_MESSAGE]
