"""What every method has: settings of scale, optimisation and networks, and what is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import optax

from goalward.algos.base import AlgorithmConfig
from goalward.algos.settings import Count, NonNegative, Positive, Range, Traced
from goalward.envs.base import LARGEST_COUNT, EnvSpec
from goalward.errors import UserError
from goalward.nets.heads import Head, make_head
from goalward.nets.mlp import PRECISIONS, Activation, Precision, Torso
from goalward.nets.normalise import RunningStats

LogStd = Annotated[float, Range(low=-20, high=20)]
_LOG_STD_MARGIN = 0.001  # at a bound the sigmoid that keeps inside them would start at infinity

Schedule = Literal["cosine", "linear", "constant"]
_MOST_ENVS = LARGEST_COUNT // 10  # each has several episodes waiting, and all are counted


@dataclass(frozen=True, kw_only=True)
class CommonConfig(AlgorithmConfig):
    """The defaults are the paper's, or ours where it is silent."""

    # Scale
    num_envs: Count = 512  # environments that run in parallel, per seed
    rollout_length: Count = 128  # steps per environment and iteration
    batch_size: Annotated[int, Range(low=2)] = 256  # environment steps, with all their agents, per gradient step

    # Policy
    mask_inactive: bool = True  # leave agents whose action does not matter out of the policy and the critic
    min_log_std: LogStd = -5.0  # bounds of the Gaussian's log-standard deviation
    max_log_std: LogStd = 1.0
    initial_log_std: float = 0.0

    # Optimisation
    actor_lr: Traced[Positive] = 2.5e-4  # learning rate of the policy
    critic_lr: Traced[Positive] = 2.5e-4  # learning rate of the critic
    lr_schedule: Schedule = "cosine"
    lr_end: Traced[NonNegative] = 1e-7  # learning rate at the end of training, unless constant
    max_grad_norm: Traced[Positive] = 0.5  # global norm that gradients are clipped to
    adam_epsilon: Traced[Positive] = 1e-5

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
        super().validate()
        if self.lr_schedule != "constant" and self.lr_end > min(self.actor_lr, self.critic_lr):
            raise UserError(
                f"lr_end must not exceed actor_lr {self.actor_lr} and critic_lr {self.critic_lr}; found {self.lr_end}."
            )
        if not all(1 <= size <= LARGEST_COUNT for size in self.hidden_sizes):
            raise UserError(f"hidden_sizes must all be at least 1 and below 2^31; found {self.hidden_sizes}.")
        if not self.min_log_std + _LOG_STD_MARGIN <= self.initial_log_std <= self.max_log_std - _LOG_STD_MARGIN:
            raise UserError(
                f"initial_log_std must lie between min_log_std {self.min_log_std} and max_log_std {self.max_log_std}, "
                f"at least {_LOG_STD_MARGIN} from both; found {self.initial_log_std}."
            )
        if self.steps_per_iteration() > LARGEST_COUNT:
            raise UserError(
                f"num_envs x rollout_length must be at most 2^31 - 1 = {LARGEST_COUNT} environment steps; "
                f"found {self.num_envs} x {self.rollout_length} = {self.steps_per_iteration()}."
            )
        if self.num_envs > _MOST_ENVS:
            raise UserError(f"num_envs must be at most {_MOST_ENVS}; found {self.num_envs}.")

    def steps_per_iteration(self) -> int:
        """Returns the environment steps of one iteration."""
        return self.num_envs * self.rollout_length

    def head(self, spec: EnvSpec) -> Head:
        """Returns the policy head for an environment's actions."""
        return make_head(
            spec.action_space,
            min_log_std=self.min_log_std,
            max_log_std=self.max_log_std,
            initial_log_std=self.initial_log_std,
        )

    def torso(self) -> Torso:
        """Returns what all networks are made of."""
        return Torso(self.hidden_sizes, self.activation, self.use_layer_norm, PRECISIONS[self.precision])

    def optimizer(self, learning_rate: float, num_iterations: int) -> optax.GradientTransformation:
        """Returns Adam behind global-norm clipping, its rate at `lr_end` after `num_iterations`."""
        num_steps = num_iterations * self.gradient_steps_per_iteration()
        rate: Any = learning_rate
        if self.lr_schedule == "cosine":
            rate = optax.cosine_decay_schedule(learning_rate, num_steps, alpha=self.lr_end / learning_rate)
        elif self.lr_schedule == "linear":
            rate = optax.linear_schedule(learning_rate, self.lr_end, num_steps)
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.adam(rate, eps=self.adam_epsilon))


class Params(NamedTuple):
    """Everything that is learned."""

    policy: Any
    critic: Any  # whatever judges actions
    obs_stats: RunningStats
