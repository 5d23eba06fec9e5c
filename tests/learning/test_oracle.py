"""The critic ranks actions as the exact occupancy measure does, if and only if its loss pins what InfoNCE leaves open.

A small budget that separates the losses within seconds; benchmarks/critic_oracle.py has a large one for more discounts.
"""

import pytest
from tabular import Setting, rank_correlations

SMALL = Setting(
    gamma=0.4,
    num_goals=10,
    num_envs=256,
    batch_size=192,
    num_updates=2_000,
    learning_rate=0.02,
    hidden_sizes=(128,),
    repr_dim=32,
    num_relabellings=4,
)


@pytest.fixture(scope="module")
def correlations():
    found = rank_correlations(SMALL)
    print("rank correlation of learned and exact action values:", {name: round(c, 3) for name, c in found.items()})
    return found


@pytest.mark.parametrize("loss", ["penalty", "symmetric"])
def test_a_pinned_critic_ranks_actions_as_the_exact_occupancy_does(correlations, loss):
    assert correlations[loss] >= 0.65


@pytest.mark.parametrize("loss", ["penalty", "symmetric"])
def test_the_literal_forward_loss_ranks_actions_far_worse(correlations, loss):
    assert correlations[loss] >= correlations["literal"] + 0.3
