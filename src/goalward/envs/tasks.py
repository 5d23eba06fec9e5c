"""The table of tasks: all that can be said of them without importing a suite."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_TASK = "toy/rooms"


@dataclass(frozen=True)
class Task:
    """One row of the table.

    Goals and rewards map a name to the "module:class" that is called with the environment; the first is the default.
    """

    name: str  # "suite/task"
    constructor: str  # "module:class"
    num_agents: int
    actions: str  # "discrete" or "continuous"
    goals: Mapping[str, str]
    rewards: Mapping[str, str]
    summary: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    package: str | None = None  # import name of the suite's package; None if the task needs none
    extra: str | None = None  # install extra that brings the package
    ceilings: Mapping[str, float] = field(default_factory=dict)  # measure -> what no policy can exceed, if below 1

    @property
    def suite(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]

    @property
    def ceilings_in_words(self) -> str:
        """The ceilings as a part of a sentence."""
        return " and ".join(f"{value:.3f} ({measure})" for measure, value in self.ceilings.items())

    @property
    def is_installed(self) -> bool:
        """Whether the suite's package can be imported."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


def _toy() -> Iterator[Task]:
    goals = {"position": "goalward.goals.toy:Position"}
    team_goals = {**goals, "distance": "goalward.goals.toy:Distance"}
    rewards = {"dense": "goalward.rewards.toy:Dense", "sparse": "goalward.rewards.toy:Sparse"}
    yield Task(
        name="toy/rooms",
        constructor="goalward.envs.toy.rooms:Rooms",
        num_agents=1,
        actions="discrete",
        goals=goals,
        rewards=rewards,
        summary="walk to a random cell through four rooms",
    )
    yield Task(
        name="toy/routing",
        constructor="goalward.envs.toy.routing:Routing",
        num_agents=4,
        actions="discrete",
        goals=team_goals,
        rewards=rewards,
        summary="four agents share a board, each has its own cell to reach",
    )
    yield Task(
        name="toy/maze",
        constructor="goalward.envs.toy.maze:Maze",
        num_agents=1,
        actions="continuous",
        goals=goals,
        rewards=rewards,
        summary="steer a point with momentum around walls",
    )
    yield Task(
        name="toy/swarm",
        constructor="goalward.envs.toy.swarm:Swarm",
        num_agents=3,
        actions="continuous",
        goals=team_goals,
        rewards=rewards,
        summary="three points that push each other aside go to places of their own",
    )


def _navix() -> Iterator[Task]:
    position = {"position": "goalward.goals.navix:Position"}
    progress = {"progress": "goalward.goals.navix:Progress", **position}
    for name, env_id, goals, summary in (
        ("empty-16x16", "Navix-Empty-16x16-v0", position, "cross an empty room from corner to corner"),
        ("empty-random-16x16", "Navix-Empty-Random-16x16-v0", position, "reach a random cell of an empty room"),
        (
            "doorkey-random-16x16",
            "Navix-DoorKey-Random-16x16-v0",
            progress,
            "fetch the key, open the door, reach the goal",
        ),
        ("fourrooms", "Navix-FourRooms-v0", position, "reach a random cell of four rooms"),
    ):
        yield Task(
            name=f"navix/{name}",
            constructor="goalward.envs.navix:Navix",
            num_agents=1,
            actions="discrete",
            goals=goals,
            rewards={"shaped": "goalward.rewards.navix:Shaped", "sparse": "goalward.rewards.navix:Sparse"},
            summary=summary,
            arguments={"env_id": env_id},
            package="navix",
            extra="navix",
        )


def _jaxgcrl() -> Iterator[Task]:
    for name, constructor, summary in (
        ("reacher", "reacher:Reacher", "bring the tip of a two-joint arm to a point"),
        ("ant", "ant:Ant", "walk a four-legged robot to a point ten metres away"),
        ("ant-u-maze", "maze:AntMaze", "walk a four-legged robot through a U-shaped maze"),
    ):
        yield Task(
            name=f"jaxgcrl/{name}",
            constructor=f"goalward.envs.jaxgcrl.{constructor}",
            num_agents=1,
            actions="continuous",
            goals={"position": "goalward.goals.jaxgcrl:Position"},
            rewards={"dense": "goalward.rewards.jaxgcrl:Dense", "sparse": "goalward.rewards.jaxgcrl:Sparse"},
            summary=summary,
            package="brax",
            extra="jaxgcrl",
        )


def _smax() -> Iterator[Task]:
    for scenario, num_agents, summary in (
        ("3m", 3, "3 marines beat 3 marines"),
        ("8m", 8, "8 marines beat 8 marines"),
        ("5m_vs_6m", 5, "5 marines beat 6 marines"),
        ("6h_vs_8z", 6, "6 hydralisks beat 8 zealots"),
        ("smacv2_5_units", 5, "5 random units beat 5 of the same types"),
        ("smacv2_10_units", 10, "10 random units beat 10 of the same types"),
    ):
        yield Task(
            name=f"smax/{scenario}",
            constructor="goalward.envs.smax:Smax",
            num_agents=num_agents,
            actions="discrete",
            goals={
                "zero_total_health": "goalward.goals.smax:ZeroTotalHealth",
                "zero_health": "goalward.goals.smax:ZeroHealth",
                "zero_alive_enemies": "goalward.goals.smax:ZeroAliveEnemies",
            },
            rewards={
                "dense": "goalward.rewards.smax:Dense",
                "death_triggered": "goalward.rewards.smax:DeathTriggered",
                "sparse": "goalward.rewards.smax:Sparse",
            },
            summary=summary,
            arguments={"scenario": scenario},
            package="jaxmarl",
            extra="smax",
        )


def _connector() -> Iterator[Task]:
    for grid_size, num_agents in ((5, 3), (7, 5), (10, 10), (15, 23)):
        yield Task(
            name=f"connector/{grid_size}x{grid_size}x{num_agents}a",
            constructor="goalward.envs.connector:Connector",
            num_agents=num_agents,
            actions="discrete",
            goals={
                "distance": "goalward.goals.connector:Distance",
                "total_distance": "goalward.goals.connector:TotalDistance",
                "all_connected": "goalward.goals.connector:AllConnected",
                "target_positions": "goalward.goals.connector:TargetPositions",
            },
            rewards={
                "dense": "goalward.rewards.connector:Dense",
                "negative_distance": "goalward.rewards.connector:NegativeDistance",
                "on_connection": "goalward.rewards.connector:OnConnection",
                "sparse": "goalward.rewards.connector:Sparse",
            },
            summary=f"{num_agents} agents draw wires to their targets without crossing",
            arguments={"grid_size": grid_size, "num_agents": num_agents},
            package="jumanji",
            extra="connector",
        )


def _jaxnav() -> Iterator[Task]:
    yield Task(
        name="jaxnav/4-agents",
        constructor="goalward.envs.jaxnav:JaxNav",
        num_agents=4,
        actions="continuous",
        goals={"distance": "goalward.goals.jaxnav:Distance"},
        rewards={"default": "goalward.rewards.jaxnav:Default"},
        summary="four robots with lidar drive to places of their own through random maps",
        package="jaxmarl",
        extra="jaxnav",
        ceilings={"win_rate": 0.716, "team_success": 0.538},  # `envs.jaxnav.reachability`, 16,000 maps
    )


TASKS: dict[str, Task] = {
    task.name: task for suite in (_toy, _navix, _jaxgcrl, _smax, _connector, _jaxnav) for task in suite()
}
