"""The learner's side of reward servers: who embeds which frames, and what follows when one is lost."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from envs.vector.watchdog import WorkerError
from runners.cluster.connect import first_line
from runners.cluster.server import RewardServer
from runners.run.config import TrainConfig, sources

# Losses of one server in a row, without an answer between them.
MAX_SERVER_LOSSES = 3


@dataclass
class Asked:
    """Frames that a server embeds: references to them and to the embeddings."""

    server: int
    frames: Any
    handle: Any
    embeddings: Any


class Servers:
    """Reward servers that take turns; false while there are none."""

    def __init__(self, ray: Any, config: TrainConfig, spaces: tuple[Any, Any], device: str) -> None:
        gpus = 1 if device.startswith("cuda") else 0
        code = []
        for key, source in sources(config).items():
            if key.startswith("reward."):
                code.append(source)
        self._ray = ray
        self._arguments = (config, code, spaces, device)
        self._remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(RewardServer)
        self.handles = [self._remote.remote() for _ in range(config.servers)]
        self.pids = [self._get(handle.make.remote(*self._arguments)) for handle in self.handles]
        self.restarts = 0
        self._lost_in_row = [0] * config.servers
        self._turn = 0

    def __len__(self) -> int:
        return len(self.handles)

    def ask(self, frames: Any) -> Asked:
        """Have the next server embed frames, or what a reference will be."""
        self._turn = (self._turn + 1) % len(self.handles)
        handle = self.handles[self._turn]
        return Asked(self._turn, frames, handle, handle.embed.remote(frames))

    def answer(self, asked: Asked) -> Any:
        """The embeddings, if need be by the server's successor; an error of Ray's if the frames are lost."""
        errors = self._ray.exceptions
        while True:
            try:
                embeddings = self._ray.get(asked.embeddings)
            except errors.RayTaskError as error:
                # The frames went with their actor.
                if isinstance(error.cause, errors.RayError):
                    raise error.cause from None
                failure = WorkerError(
                    f"reward server {asked.server} raised {type(error.cause).__name__}: {error.cause}"
                )
                failure.add_note(f"The traceback in the server:\n{error}")
                raise failure from None
            except errors.RayError as error:
                # Another answer may have replaced the server already.
                if asked.handle is self.handles[asked.server]:
                    self._replace(asked.server, first_line(error))
                asked.handle = self.handles[asked.server]
                asked.embeddings = asked.handle.embed.remote(asked.frames)
                continue
            self._lost_in_row[asked.server] = 0
            return embeddings

    def _replace(self, number: int, why: str) -> None:
        self._lost_in_row[number] += 1
        if self._lost_in_row[number] >= MAX_SERVER_LOSSES:
            raise WorkerError(
                f"reward server {number} was lost {MAX_SERVER_LOSSES} times in a row without an answer ({why})"
            )
        self.restarts += 1
        self._kill(self.handles[number])
        self.handles[number] = self._remote.remote()
        # If it is lost again, the next answer shows that.
        with suppress(self._ray.exceptions.RayError):
            self.pids[number] = self._get(self.handles[number].make.remote(*self._arguments))

    def _get(self, ref: Any) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def _kill(self, handle: Any) -> None:
        with suppress(Exception):
            self._ray.kill(handle)

    def close(self) -> None:
        for handle in self.handles:
            self._kill(handle)
