"""Every task of the registry, with every goal and every reward, keeps the environment contract.

The suites' episodes are cut short here: the contract does not depend on their length, and compilation is dear enough.
"""

import pytest

import goalward as gw
from goalward.envs.base import Discrete
from goalward.envs.tasks import TASKS

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

# The smallest task of each suite stands for it wherever goals and rewards are the same classes.
SMALLEST = ("navix/empty-random-16x16", "navix/doorkey-random-16x16", "jaxgcrl/reacher", "smax/3m")
SMALLEST += ("connector/5x5x3a", "jaxnav/4-agents", *(name for name in TASKS if name.startswith("toy/")))
SHORT = 20  # steps of an episode


def make(name, **parts):
    task = TASKS[name]
    if not task.is_installed:
        pytest.skip(f"needs {task.package}")
    return gw.make(name, **parts, **({} if task.suite == "toy" else {"max_steps": SHORT}))


def all_goals_and_rewards(names):
    """Every goal and every reward of a task at least once; a goal and a reward know nothing of each other."""
    for name in names:
        goals, rewards = list(TASKS[name].goals), list(TASKS[name].rewards)
        for i in range(max(len(goals), len(rewards))):
            yield name, goals[i % len(goals)], rewards[i % len(rewards)]


QUICK = [*all_goals_and_rewards(SMALLEST)] + [
    (name, next(iter(TASKS[name].goals)), next(iter(TASKS[name].rewards))) for name in TASKS if name not in SMALLEST
]


@pytest.mark.parametrize(("name", "goal", "reward"), QUICK)
def test_check_env_finds_nothing(name, goal, reward):
    gw.check_env(make(name, goal=goal, reward=reward))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "goal", "reward"), [variant for variant in all_goals_and_rewards(TASKS) if variant not in QUICK]
)
def test_check_env_finds_nothing_in_any_combination(name, goal, reward):
    gw.check_env(make(name, goal=goal, reward=reward))


@pytest.mark.parametrize("name", list(TASKS))
def test_the_table_says_what_the_environment_is(name):
    task = TASKS[name]
    spec = make(name).spec

    assert spec.name == name
    assert spec.num_agents == task.num_agents
    assert isinstance(spec.action_space, Discrete) == (task.actions == "discrete")
    assert task.actions in ("discrete", "continuous")
    assert spec.goal_name == next(iter(task.goals))
    assert spec.reward_name == next(iter(task.rewards))
    for goal in task.goals:
        assert make(name, goal=goal).spec.goal_name == goal
    for reward in task.rewards:
        assert make(name, reward=reward).spec.reward_name == reward
