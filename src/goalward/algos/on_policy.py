"""Settings that every method has which learns from fresh rollouts and updates its policy as PPO does."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Self

import optax

from goalward.algos.base import AlgorithmConfig, Schedule, make_optimizer
from goalward.algos.settings import Count, Fraction, NonNegative, Positive, Range
from goalward.envs.base import Discrete, EnvSpec
from goalward.errors import UserError
from goalward.nets.mlp import Activation, Precision

MAX_STEPS_PER_ITERATION = 2**31 - 1  # what the indices of a minibatch can hold


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(AlgorithmConfig):
    """Scale, policy, optimisation and networks; the defaults are the paper's, or ours where it is silent."""

    # Scale
    num_envs: Count = 512  # environments that run in parallel, per seed
    rollout_length: Count = 128  # steps per environment and iteration
    batch_size: Annotated[int, Range(low=2)] = 256  # environment steps, with all their agents, per gradient step
    num_epochs: Count = 1  # passes over a rollout

    # Policy
    clip: Fraction = 0.2  # range of the probability ratio, 1 - clip to 1 + clip
    entropy_coef: NonNegative | None = None  # weight of the entropy bonus; None: 0.01 discrete, 0.001 continuous
    norm_adv: bool = True  # normalise advantages per minibatch
    adv_std_floor: Positive = 0.01  # smallest standard deviation that advantages are divided by
    mask_inactive: bool = True  # leave agents whose action does not matter out of the losses
    min_log_std: float = -5.0  # bounds of the Gaussian's log-standard deviation
    max_log_std: float = 1.0
    initial_log_std: float = 0.0

    # Optimisation
    actor_lr: Positive = 2.5e-4  # learning rate of the policy
    critic_lr: Positive = 2.5e-4  # learning rate of the critic
    lr_schedule: Schedule = "cosine"
    lr_end: NonNegative = 1e-7  # learning rate at the end of training, unless constant
    max_grad_norm: Positive = 0.5  # global norm that gradients are clipped to
    adam_epsilon: Positive = 1e-5

    # Networks
    hidden_sizes: tuple[int, ...] = (512, 512, 512, 512)  # widths of the hidden layers, all networks
    activation: Activation = "swish"
    use_layer_norm: bool = True
    policy_last_scale: NonNegative = 0.01  # scale of the policy's last layer at the start: nearly uniform
    agent_id: bool = True  # append a one-hot of the agent's index to the observation of a team
    norm_obs: bool = False  # normalise observations by running statistics
    precision: Precision = "float32"  # type that layers compute in; parameters stay in float32

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together."""
        if self.lr_schedule != "constant" and self.lr_end > min(self.actor_lr, self.critic_lr):
            raise UserError(
                f"lr_end must not exceed actor_lr {self.actor_lr} and critic_lr {self.critic_lr}; found {self.lr_end}."
            )
        if any(size < 1 for size in self.hidden_sizes):
            raise UserError(f"hidden_sizes must all be at least 1; found {self.hidden_sizes}.")
        if not self.min_log_std < self.initial_log_std < self.max_log_std:
            raise UserError(
                f"initial_log_std must lie between min_log_std {self.min_log_std} and max_log_std {self.max_log_std}; "
                f"found {self.initial_log_std}."
            )
        steps = self.steps_per_iteration()
        if steps > MAX_STEPS_PER_ITERATION:
            raise UserError(
                f"num_envs x rollout_length must be at most 2^31 - 1 = {MAX_STEPS_PER_ITERATION} environment steps; "
                f"found {self.num_envs} x {self.rollout_length} = {steps}."
            )
        if steps % self.batch_size:
            small = [size for size in range(1, math.isqrt(steps) + 1) if steps % size == 0]
            fitting = {size for divisor in small for size in (divisor, steps // divisor)} - {1}
            nearest = min(fitting, key=lambda size: abs(size - self.batch_size), default=steps)
            raise UserError(
                f"batch_size must divide num_envs x rollout_length = {self.num_envs} x {self.rollout_length} = "
                f"{steps}; found {self.batch_size}, the nearest that does is {nearest}."
            )

    def resolve(self, spec: EnvSpec) -> Self:
        """Returns the settings with the entropy coefficient that suits the action space."""
        if self.entropy_coef is not None:
            return self
        return replace(self, entropy_coef=0.01 if isinstance(spec.action_space, Discrete) else 0.001)

    def steps_per_iteration(self) -> int:
        """Returns the environment steps of one iteration."""
        return self.num_envs * self.rollout_length

    def gradient_steps_per_iteration(self) -> int:
        """Returns the number of minibatches of one iteration, over all epochs."""
        return self.num_epochs * (self.steps_per_iteration() // self.batch_size)

    def optimizer(self, learning_rate: float, num_iterations: int) -> optax.GradientTransformation:
        """Returns Adam behind gradient clipping, its rate at its end after `num_iterations`."""
        return make_optimizer(
            learning_rate=learning_rate,
            end=self.lr_end,
            schedule=self.lr_schedule,
            num_steps=num_iterations * self.gradient_steps_per_iteration(),
            max_grad_norm=self.max_grad_norm,
            epsilon=self.adam_epsilon,
        )
