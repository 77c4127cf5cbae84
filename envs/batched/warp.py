"""Gymnasium's robots wholly on the device: MuJoCo's kernels for GPUs (mujoco-warp, extra `device`), torch's tensors.

Observations, rewards, ends and starts are those of `envs.batched.mujoco`, computed where the physics is. Physics is
float32 and another program: a step agrees to a few millionths, contacts part two trajectories soon, so compare
statistics of longer ones. Humanoid's solver is Newton's, as the kernels know no PGS.

Warp compiles the kernels at first use, which takes minutes for a robot, and keeps them on the disk. On a CPU they are
slow: for tests. Contacts beyond `MAX_CONTACTS` a robot are dropped, which Warp prints.
"""

from typing import Any

import gymnasium as gym
import mujoco
import mujoco_warp
import warp

from envs.batched.mujoco import BatchedRobot

# What the kernels have room for, of each robot.
MAX_CONTACTS = 64
MAX_CONSTRAINTS = 256


class OnDevice(BatchedRobot):
    """Physics by mujoco-warp; goes in front of a robot's own class."""

    ON_HOST = False

    def _setup(self, original: gym.Env) -> None:
        super()._setup(original)
        warp.init()
        model = self._model
        if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        start = mujoco.MjData(model)
        mujoco.mj_forward(model, start)
        with self._device_scope():
            self._kernels = mujoco_warp.put_model(model)
            self._worlds = mujoco_warp.put_data(
                model, start, nworld=self.num_envs, nconmax=MAX_CONTACTS, njmax=MAX_CONSTRAINTS
            )

        # What a step changes, with its columns of the state.
        warm_start = self._columns_of(mujoco.mjtState.mjSTATE_WARMSTART, model.nv)
        moved = {"qpos": self._positions, "qvel": self._velocities, "qacc_warmstart": warm_start}
        self._moved = [(self._tensor(name), columns) for name, columns in moved.items()]
        self._derived = [(self._tensor(name), columns) for name, columns in self._place.items()]
        self._controls = self._tensor("ctrl")

    def _device_scope(self) -> Any:
        """A context in which Warp works on the arrays' device, in the stream that torch uses."""
        device = warp.device_from_torch(self.arrays.device)
        if device.is_cuda:
            return warp.ScopedStream(warp.stream_from_torch(self.arrays.device))
        return warp.ScopedDevice(device)

    def _tensor(self, name: str) -> Any:
        """A field of all robots, (N, D), in the kernels' memory."""
        return warp.to_torch(getattr(self._worlds, name)).view(self.num_envs, -1)

    def _move(self) -> None:
        physics = self.state["physics"]
        self._controls[...] = physics[:, self._control]
        for tensor, columns in self._moved:
            tensor[...] = physics[:, columns]
        with self._device_scope():
            for _ in range(self.world.frame_skip):
                mujoco_warp.step(self._kernels, self._worlds)
            if self._derived:
                mujoco_warp.rne_postconstraint(self._kernels, self._worlds)
        for tensor, columns in self._moved:
            physics[:, columns] = tensor
        for tensor, columns in self._derived:
            self.state["derived"][:, columns] = tensor


def on_device(robot: type[BatchedRobot]) -> type[BatchedRobot]:
    """The program of a robot, with its physics on the device."""
    return type(f"Device{robot.__name__}", (OnDevice, robot), {})
