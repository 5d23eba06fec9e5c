"""The least time that an iteration of CPPO can take on a device, counted from the shapes alone.

    python benchmarks/floor.py smax/3m navix/fourrooms [--precision bfloat16]

Each phase takes at least as long as its matrix products at the device's peak, and at least as long as moving what
must cross its memory; the floor is the sum over phases of the larger of the two. Only CPPO's training is counted:
for the other methods there is no floor.

Products (2 m k n operations each), everything else being free: the policy's forward pass in a rollout; forward and
backward passes of a gradient step (gradients of the weights of every layer, of the inputs of every layer but the
first) with the product of all pairs of a minibatch, per agent; for advantages, psi of the goal once per row, and phi of
M actions: all A where they can be listed, else K samples and the one that was taken. The first layer's product with the
observation is shared by the M actions; with a listed action it is no product but a row of the weights. The product of
all pairs, which is kept in full float32, counts as if it ran at the same peak.

Bytes, each number once per phase, or once per gradient step where it changes there:

- rollout: the policy's parameters read, the rollout written as training reads it;
- a gradient step: 7 float32 per parameter (read for the passes; parameter and Adam's two moments read and written), its
  gradient written and read, since clipping asks for the norm of all of them first (a weight's has the type that the
  networks compute in, any other float32), and the rows of the minibatch read;
- advantages: the encoders' parameters and the rows read, one number per agent written.

Not counted: activations, which could stay on the chip; the environment; relabelling, shuffling, metrics. A single seed
whose networks fit the device's cache need not move parameters through its memory at every gradient step, so this floor
could be undercut there; it could not with ten seeds of the paper's networks.

Axes: T time, E environments, N agents, B environment steps in a minibatch, D observation, G goal, A action, Z
representation, M actions per row.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import Any

from goalward.algos.cppo import CPPO
from goalward.envs.base import Discrete, EnvSpec

FLOAT, FLAG = 4, 1  # bytes
FLOATS_PER_PARAMETER_AND_STEP = 7  # without its gradient; the docstring above lists them
BYTES_OF_PRODUCTS = {"bfloat16": 2, "float32": 4}  # by the precision of the networks


@dataclass(frozen=True)
class Machine:
    """What a device was measured to do at best."""

    flops_per_second: dict[str, float]  # by the precision of the networks
    bytes_per_second: float


H200 = Machine({"bfloat16": 790e12, "float32": 400e12}, 4.3e12)  # float32: as TF32, what JAX multiplies in


@dataclass(frozen=True)
class Cost:
    """What one phase must do."""

    flops: int
    bytes: int

    def times(self, count: int) -> Cost:
        """Returns the cost of doing it `count` times."""
        return Cost(count * self.flops, count * self.bytes)

    def seconds(self, machine: Machine, precision: str) -> float:
        """Returns the least time it can take."""
        return max(self.flops / machine.flops_per_second[precision], self.bytes / machine.bytes_per_second)


@dataclass(frozen=True)
class Perceptron:
    """The sizes of one network."""

    sizes: tuple[int, ...]  # inputs, hidden layers, outputs
    use_layer_norm: bool

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Inputs and outputs of every layer."""
        return list(zip(self.sizes, self.sizes[1:], strict=False))

    @property
    def num_weights(self) -> int:
        """What products multiply with."""
        return sum(inputs * outputs for inputs, outputs in self.layers)

    @property
    def num_parameters(self) -> int:
        """Weights and biases, and scales and biases of the layer norms."""
        norms = 2 * sum(self.sizes[1:-1]) if self.use_layer_norm else 0
        return self.num_weights + sum(self.sizes[1:]) + norms

    def forward(self, rows: int) -> int:
        """Returns the operations of a forward pass."""
        return sum(product(rows, *layer) for layer in self.layers)

    def forward_and_backward(self, rows: int) -> int:
        """Returns the operations of a gradient of the parameters."""
        return 3 * self.forward(rows) - product(rows, *self.layers[0])


@dataclass(frozen=True)
class Sizes:
    """All that the costs depend on."""

    rows: int  # T * E * N
    batch: int  # B
    agents: int  # N
    num_batches: int
    num_epochs: int
    advantages_per_iteration: int  # how often they are computed
    obs: int  # D, with the agent's identity
    goal: int  # G
    num_actions: int  # A, choices or dimensions
    actions_are_listed: bool
    actions_per_row: int  # M
    bytes_of_products: int  # of each number that a product gives
    policy: Perceptron
    phi: Perceptron
    psi: Perceptron


def sizes_of(config: CPPO, spec: EnvSpec) -> Sizes:
    """Returns the sizes of CPPO with these settings on this task."""
    listed = isinstance(spec.action_space, Discrete)
    num_actions, agents = spec.action_space.size, spec.num_agents
    obs = spec.obs_dim + (agents if config.agent_id and agents > 1 else 0)

    def perceptron(inputs: int, outputs: int) -> Perceptron:
        return Perceptron((inputs, *config.hidden_sizes, outputs), config.use_layer_norm)

    return Sizes(
        rows=config.steps_per_iteration() * agents,
        batch=config.batch_size,
        agents=agents,
        num_batches=config.steps_per_iteration() // config.batch_size,
        num_epochs=config.num_epochs,
        advantages_per_iteration=1 if config.advantage_order == "before_critic" else config.num_epochs,
        obs=obs,
        goal=spec.goal_dim,
        num_actions=num_actions,
        actions_are_listed=listed,
        actions_per_row=num_actions if listed else config.num_value_samples + 1,
        bytes_of_products=BYTES_OF_PRODUCTS[config.precision],
        policy=perceptron(obs + spec.goal_dim, config.head(spec).num_outputs),
        phi=perceptron(obs + num_actions, config.repr_dim),
        psi=perceptron(spec.goal_dim, config.repr_dim),
    )


def product(rows: int, inputs: int, outputs: int) -> int:
    """Returns the operations of a matrix product [rows, inputs] x [inputs, outputs]."""
    return 2 * rows * inputs * outputs


def rollout(sizes: Sizes) -> Cost:
    """Returns the cost of asking the policy for the actions of a rollout."""
    # What training reads later: the policy's rows, and the goals that were achieved.
    written = sizes.rows * (_policy_row(sizes) + FLOAT * sizes.goal)
    return Cost(sizes.policy.forward(sizes.rows), FLOAT * sizes.policy.num_parameters + written)


def critic(sizes: Sizes) -> Cost:
    """Returns the cost of the gradient steps of phi and psi."""
    rows = sizes.batch * sizes.agents
    # Forward, and the gradients of both sides: three products of one size.
    all_pairs = 3 * sizes.agents * product(sizes.batch, sizes.phi.sizes[-1], sizes.batch)
    flops = sizes.phi.forward_and_backward(rows) + sizes.psi.forward_and_backward(rows) + all_pairs
    row = FLOAT * (sizes.obs + sizes.goal) + _action(sizes) + FLAG
    step = Cost(flops, _update(sizes, sizes.phi) + _update(sizes, sizes.psi) + rows * row)
    return step.times(sizes.num_batches * sizes.num_epochs)


def advantages(sizes: Sizes) -> Cost:
    """Returns the cost of Q of M actions for every row."""
    (_, width), *later = sizes.phi.layers
    per_action = 0 if sizes.actions_are_listed else product(sizes.rows, sizes.num_actions, width)
    per_action += sum(product(sizes.rows, *layer) for layer in later)
    flops = product(sizes.rows, sizes.obs, width) + sizes.actions_per_row * per_action + sizes.psi.forward(sizes.rows)
    parameters = sizes.phi.num_parameters + sizes.psi.num_parameters
    row = _policy_row(sizes) - FLAG + FLOAT  # whether the agent is active is not asked; A is written
    return Cost(flops, FLOAT * parameters + sizes.rows * row).times(sizes.advantages_per_iteration)


def policy(sizes: Sizes) -> Cost:
    """Returns the cost of the gradient steps of the policy."""
    rows = sizes.batch * sizes.agents
    of_rows = rows * (_policy_row(sizes) + FLOAT)  # A is read
    step = Cost(sizes.policy.forward_and_backward(rows), _update(sizes, sizes.policy) + of_rows)
    return step.times(sizes.num_batches * sizes.num_epochs)


def _update(sizes: Sizes, network: Perceptron) -> int:
    """Returns the bytes of a network's parameters, gradients and moments that a gradient step moves."""
    others = network.num_parameters - network.num_weights
    gradient = sizes.bytes_of_products * network.num_weights + FLOAT * others
    return FLOAT * FLOATS_PER_PARAMETER_AND_STEP * network.num_parameters + 2 * gradient


def _policy_row(sizes: Sizes) -> int:
    """Returns the bytes of observation, goal, mask, activity, policy outputs and action of one agent in one step."""
    mask = FLAG * sizes.num_actions if sizes.actions_are_listed else 0
    return FLOAT * (sizes.obs + sizes.goal + sizes.policy.sizes[-1]) + mask + FLAG + _action(sizes)


def _action(sizes: Sizes) -> int:
    return FLOAT * (1 if sizes.actions_are_listed else sizes.num_actions)


PHASES = {"rollout": rollout, "critic": critic, "advantages": advantages, "policy": policy}


def floor(config: CPPO, spec: EnvSpec, machine: Machine = H200) -> dict[str, Any]:
    """Returns the costs of one iteration of one seed by phase, their least seconds, and steps per second at those.

    More seeds cost more of the same, so that the steps per second are those of all seeds together.
    """
    sizes = sizes_of(config, spec)
    costs = {name: cost(sizes) for name, cost in PHASES.items()}
    seconds = {name: cost.seconds(machine, config.precision) for name, cost in costs.items()}
    return {
        "phases": {name: asdict(cost) | {"seconds": seconds[name]} for name, cost in costs.items()},
        "seconds": sum(seconds.values()),
        "floor_steps_per_second": config.steps_per_iteration() / sum(seconds.values()),
    }


def main() -> None:
    """Prints the floor of each task at the paper's scale on an H200."""
    import goalward as gw

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="float32")
    options = parser.parse_args()
    try:
        specs = {task: gw.make(task).spec for task in options.tasks}
    except gw.UserError as error:
        parser.error(str(error))
    for task, spec in specs.items():
        found = floor(CPPO(precision=options.precision), spec)
        print(f"{task}: {1e3 * found['seconds']:.2f} ms an iteration, {found['floor_steps_per_second']:,.0f} steps/s")
        for name, cost in found["phases"].items():
            print(
                f"  {name:<10} {cost['flops'] / 1e9:>9,.1f} GFLOP {cost['bytes'] / 1e9:>7.2f} GB "
                f"{1e3 * cost['seconds']:>7.2f} ms"
            )


if __name__ == "__main__":
    main()
