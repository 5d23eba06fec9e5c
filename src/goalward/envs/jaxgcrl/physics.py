"""Robots as Brax environments whose state can be stored small. Brax's own wrappers fit around them too."""

from __future__ import annotations

import functools
import importlib.resources
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.imports import postpone, quiet_import
from goalward.errors import UserError

with quiet_import():  # MuJoCo prints that it lacks packages that nobody here needs
    postpone("mujoco.mjx", "mujoco.mjx._src", "mujoco.mjx._src.mesh")  # which imports libraries of meshes and graphs
    postpone("jaxopt")  # for one of Brax's backends alone, and with it much of SciPy
    import jaxopt
    from brax import com, kinematics
    from brax.base import Motion, Transform
    from brax.envs.base import PipelineEnv, State
    from brax.io import mjcf
    from mujoco import mjx

BACKENDS = ("generalized", "mjx", "positional", "spring")
_one_model_at_a_time = threading.Lock()


class RobotPhysics(PipelineEnv):  # type: ignore[misc]  # Brax has no types
    """A robot and its target.

    As an environment of Brax it observes what the task observes and then the target, as JaxGCRL does, and pays
    JaxGCRL's default reward, 1 at every step within `reach` of the target. It has no time limit and no reset.

    A subclass says how episodes start and what is seen of a state of Brax's pipeline, called `full` here.
    """

    obs_dim: int  # D
    target_dim: int  # G
    reach: float  # metres; closer to the target than this is there

    def start(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the coordinates q and velocities qd of a new episode, the target's among them."""
        raise NotImplementedError

    def observe(self, full: Any) -> jax.Array:
        """Returns [D], the observation without the target."""
        raise NotImplementedError

    def position(self, full: Any) -> jax.Array:
        """Returns [G], where the part is that should get to the target."""
        raise NotImplementedError

    def target(self, full: Any) -> jax.Array:
        """Returns [G], where the target is."""
        raise NotImplementedError

    def has_fallen(self, full: Any) -> jax.Array:
        """Returns [] bool; a fall ends the episode."""
        raise NotImplementedError

    def first(self, key: jax.Array) -> Any:
        """Returns the full state of a new episode."""
        return self.pipeline_init(*self.start(key))

    def reset(self, rng: jax.Array) -> State:
        """Returns Brax's state of a new episode."""
        full = self.first(rng)
        return State(full, self._observe_all(full), jnp.zeros(()), jnp.zeros(()))

    def step(self, state: State, action: jax.Array) -> State:
        """Returns Brax's state after `action` [A]."""
        full = self.pipeline_step(state.pipeline_state, action)
        near = jnp.linalg.norm(self.position(full) - self.target(full)) < self.reach
        return state.replace(
            pipeline_state=full,
            obs=self._observe_all(full),
            reward=near.astype(jnp.float32),
            done=self.has_fallen(full).astype(jnp.float32),
        )

    def shrink(self, full: Any) -> Any:
        """Returns the full state without what `restore` can compute and what no step reads; q and qd always stay."""
        return full.replace(**dict.fromkeys(self._left_out(full)))

    def restore(self, small: Any) -> Any:
        """Returns a full state to step from; fields that are written before they are read are zero."""
        if self.backend == "mjx":
            return small
        links, dofs = self.sys.num_links(), self.sys.qd_size()
        # Zeros that differ between environments for all that `vmap` knows, as what is written will. Where a part of a
        # loop's state is the same for all at first, it goes through the loop twice, for environments and for seeds.
        zero = 0.0 * small.q[0]
        if self.backend == "generalized":
            return small.replace(
                x=jax.tree.map(lambda part: part + zero, Transform.zero((links,))),
                xd=jax.tree.map(lambda part: part + zero, Motion.zero((links,))),
                root_com=jnp.full((links, 3), zero),
                mass_mx=jnp.full((dofs, dofs), zero),
                qf_smooth=jnp.full(dofs, zero),
                qf_constraint=jnp.full(dofs, zero),
                qdd=jnp.full(dofs, zero),
            )
        x, xd = com.to_world(self.sys, small.x_i, small.xd_i)
        j, jd, a_p, a_c = kinematics.world_to_joint(self.sys, x, xd)
        mass = self.sys.link.inertia.mass ** (1 - self.sys.spring_mass_scale)
        full = small.replace(x=x, xd=xd, j=j, jd=jd, a_p=a_p, a_c=a_c, mass=mass)
        return full.replace(i_inv=jnp.full((links, 3, 3), zero)) if self.backend == "spring" else full

    def _left_out(self, full: Any) -> tuple[str, ...]:
        if self.backend == "mjx":
            return ()
        if self.backend == "generalized":
            return ("x", "xd", "root_com", "mass_mx", "qf_smooth", "qf_constraint", "qdd")
        # Bodies move freely in these two and joints pull them back, so q and qd alone do not fix where they are.
        maximal = ("x", "xd", "j", "jd", "a_p", "a_c", "mass")
        return (*maximal, "i_inv") if self.backend == "spring" else maximal

    def _observe_all(self, full: Any) -> jax.Array:
        return jnp.concatenate([self.observe(full), self.target(full)])


def brax_model(name: str) -> str:
    """Returns the text of a MuJoCo model that comes with Brax."""
    return importlib.resources.files("brax").joinpath("envs/assets", name).read_text()


@functools.lru_cache(maxsize=8)
def load_system(xml: str) -> Any:
    """Returns Brax's system of a MuJoCo model."""
    with warnings.catch_warnings(), _models_on_host():
        warnings.filterwarnings("ignore", message="Brax System", category=UserWarning)  # advice to use another package
        if jax.sharding.get_abstract_mesh().empty:
            system = mjcf.loads(xml)
        else:  # on a thread that knows nothing of the user's mesh: MJX makes a model on one device
            with ThreadPoolExecutor(1) as beside:
                system = beside.submit(mjcf.loads, xml).result()
    return jax.device_put(system)  # all of it at once, wherever it will be used


@contextmanager
def _models_on_host() -> Iterator[None]:
    """Lets Brax make models of NumPy's arrays, and MJX where JAX computes now.

    Otherwise MJX makes them on the machine's best device and Brax copies them there array by array, for which a small
    program is compiled, or loaded, for every shape in the model.
    """
    device = min(jnp.zeros(()).devices(), key=lambda device: device.id)  # several where the user has set a mesh
    with _one_model_at_a_time:  # neither Brax nor MJX leaves a choice
        put_model, numpy_of_jax = mjx.put_model, mjcf.jp
        mjx.put_model = functools.partial(put_model, device=device)
        mjcf.jp = SimpleNamespace(**vars(jnp) | {"array": np.asarray})
        try:
            yield
        finally:
            mjx.put_model, mjcf.jp = put_model, numpy_of_jax


def require_backend(task: str, backend: str) -> None:
    """Imports what a backend of Brax needs; raises if there is none of that name."""
    if backend not in BACKENDS:
        raise UserError(f"backend of {task} must be one of {', '.join(BACKENDS)}; found {backend!r}.")
    if backend == "generalized":
        getattr(jaxopt, "ProjectedGradient")  # noqa: B009  # imported now, not while a program is traced
