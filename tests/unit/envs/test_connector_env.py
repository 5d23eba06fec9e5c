"""connector: the suite's own moves, what agents see, when episodes end and who counts as active."""

import functools
import itertools
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jumanji")

from jumanji.environments.routing import connector as suite
from jumanji.environments.routing.connector.env import Connector as SuiteEnv
from jumanji.environments.routing.connector.generator import RandomWalkGenerator
from jumanji.wrappers import AutoResetWrapper

import goalward as gw
from goalward.envs.base import advance_episode, is_over, start_episode
from goalward.envs.connector import ConnectorState
from goalward.envs.draw import AGENT_COLOURS
from goalward.envs.uniform import uniform_policy

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

STAY, UP, RIGHT, DOWN, LEFT = range(5)
MOVES = np.array([(0, 0), (-1, 0), (0, 1), (1, 0), (0, -1)])
SIZE, AGENTS = 5, 3
ONLY_STAY = [True, False, False, False, False]
NUM_EPISODES = 512


@pytest.fixture(scope="module")
def env():
    return gw.make("connector/5x5x3a")


@pytest.fixture(scope="module")
def board(env, play):
    """Returns a function that puts heads, targets and wires, (agent, row, column), on a board."""

    def build(heads, targets, wires=()):
        grid = np.zeros((SIZE, SIZE), np.int32)
        for agent, (row, col) in enumerate(targets):
            grid[row, col] = 3 + 3 * agent
        for agent, (row, col) in enumerate(heads):
            grid[row, col] = 2 + 3 * agent
        for agent, row, col in wires:
            grid[row, col] = 1 + 3 * agent
        unmoved = jnp.zeros((AGENTS, 5), bool).at[:, STAY].set(True)
        state = ConnectorState(jnp.asarray(grid), jnp.array(heads), jnp.array(targets), unmoved)
        return play(env, state, [np.zeros(AGENTS, np.int32)])[0][0]  # a step in which all stay fills in the mask

    return build


@pytest.fixture(scope="module")
def episodes(env):
    """Returns states and time steps [E, T + 1, ...] of random allowed moves, the same of the suite, and the moves.

    The step that ends an episode is repeated, so "later in the episode" is "later on the axis".
    """
    policy = uniform_policy(env)
    suite_env = SuiteEnv(RandomWalkGenerator(SIZE, AGENTS), time_limit=10**6)

    def one_step(carry, key):
        episode, (suite_state, suite_step) = carry
        action = policy(key, episode.step.obs, episode.step.goal, episode.step.action_mask)
        moved = advance_episode(env, key, episode, action), suite_env.step(suite_state, action)
        kept = jax.tree.map(
            lambda a, b: jnp.where(is_over(episode.step), a, b), (episode, (suite_state, suite_step)), moved
        )
        return kept, (*kept, action)

    def one_episode(key):
        key_start, key_run = jax.random.split(key)
        first = start_episode(env, key_start), suite_env.reset(key_start)
        _, (rest, suite_rest, actions) = jax.lax.scan(one_step, first, jax.random.split(key_run, env.spec.max_steps))
        both = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, (rest, suite_rest))
        return *both, actions

    keys = jax.random.split(jax.random.key(0), NUM_EPISODES)
    return jax.device_get(jax.jit(jax.vmap(one_episode))(keys))


@pytest.fixture(scope="module")
def solved_boards(env):
    """Returns 32 starts, the same as states of the suite, and for each a list of joint moves that connects everyone."""
    generator = RandomWalkGenerator(SIZE, AGENTS)

    def draw(key):
        # The generator draws its board with the second half of the key.
        return env.reset(key)[0], generator(key), generator.generate_board(jax.random.split(key)[1])[0]

    states, suite_states, solved = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(7), 32))
    plans = []
    for starts, targets, cells in zip(*map(np.asarray, (states.position, states.target, solved)), strict=True):
        routes = [route((cells - 1) // 3 == agent, starts[agent], targets[agent]) for agent in range(AGENTS)]
        plans.append([list(joint) for joint in itertools.zip_longest(*routes, fillvalue=STAY)])
    return states, suite_states, plans


def route(own, start, target):
    """Returns the moves from start to target over an agent's own cells [S, S], by breadth-first search."""
    found = {tuple(start.tolist()): []}
    queue = deque(found)
    while queue:
        cell = queue.popleft()
        if cell == tuple(target):
            return found[cell]
        for move in (UP, RIGHT, DOWN, LEFT):
            neighbour = tuple((cell + MOVES[move]).tolist())
            inside = all(0 <= x < SIZE for x in neighbour)
            if inside and own[neighbour] and neighbour not in found:
                found[neighbour] = [*found[cell], move]
                queue.append(neighbour)
    raise AssertionError("The solved board does not join the start and the target.")


def moves(*actions):
    return [np.array(action, np.int32) for action in actions]


def seen_by(agent, state, reach=2):
    """Returns what an agent sees, cell by cell."""
    size = len(state.grid)
    row, col = state.position[agent]
    blockers, targets = [], []
    for r in range(row - reach, row + reach + 1):
        for c in range(col - reach, col + reach + 1):
            if not (0 <= r < size and 0 <= c < size):
                blockers.append(1.0)
                targets.append(1.0)
                continue
            code = int(state.grid[r, c])
            owner, kind = divmod(code - 1, 3) if code else (None, None)
            blockers.append({0: -1.0, 1: 1.0}.get(kind, 0.0))
            targets.append((1.0 if owner == agent else -1.0) if kind == 2 else 0.0)
    places = [row, col, *state.target[agent]]
    return np.array([place / size**2 for place in places] + blockers + targets, np.float32)


def at(states, *index):
    return jax.tree.map(lambda x: x[index], states)


def test_every_step_is_the_suites_own_up_to_the_end(episodes):
    ours, (suite_states, suite_steps), _ = episodes

    np.testing.assert_array_equal(ours.state.grid, suite_states.grid)
    np.testing.assert_array_equal(ours.state.position, suite_states.agents.position)
    np.testing.assert_array_equal(ours.state.target, suite_states.agents.target)
    np.testing.assert_array_equal(ours.step.action_mask, suite_states.action_mask)
    np.testing.assert_array_equal(ours.step.terminated, suite_steps.last())
    np.testing.assert_array_equal(ours.step.success, suite_steps.extras["ratio_connections"] == 1)


def test_the_observation_is_what_a_loop_over_agents_and_cells_sees(episodes):
    ours = episodes[0]
    for episode, time in [(0, 0), (1, 3), (2, 6), (3, 9), (4, 12), (5, -1), (6, -1)]:
        state = at(ours.state, episode, time)
        expected = [seen_by(agent, state) for agent in range(AGENTS)]
        np.testing.assert_allclose(ours.step.obs[episode, time], expected, atol=1e-7)


def test_the_view_of_a_large_team_is_what_the_loop_sees():
    env = gw.make("connector/5x5x3a", grid_size=8, num_agents=9, field_of_view=3)
    state, step = jax.device_get(jax.jit(env.reset)(jax.random.key(3)))

    assert env.spec.obs_dim == 4 + 2 * 49
    np.testing.assert_allclose(step.obs, [seen_by(agent, state, reach=3) for agent in range(9)], atol=1e-7)


def test_a_policy_that_knows_the_generators_solution_wins_on_5x5(env, solved_boards):
    states, _, plans = solved_boards
    all_stay = [STAY] * AGENTS
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0)))
    for joint in itertools.zip_longest(*plans, fillvalue=all_stay):
        states, shown = step(jax.random.key(0), states, np.array(joint, np.int32))

    assert shown.success.all()
    assert shown.terminated.all()


def test_random_allowed_moves_win_about_9_percent_on_5x5(episodes):
    won = episodes[0].step.success[:, -1]

    assert is_over(episodes[0].step)[:, -1].all()
    assert 0.05 < won.mean() < 0.13


def test_episodes_differ_in_starts_and_targets(episodes):
    state = at(episodes[0].state, slice(None), 0)
    boards = state.grid.reshape(NUM_EPISODES, -1)

    assert len(np.unique(boards, axis=0)) > 0.95 * NUM_EPISODES
    cells = np.concatenate([state.position, state.target], axis=1) @ np.array([SIZE, 1])
    assert all(len(set(row)) == 2 * AGENTS for row in cells.tolist())


def test_two_into_one_cell_the_higher_number_moves(env, board, play):
    state = board(heads=[(1, 1), (4, 4), (1, 3)], targets=[(4, 0), (4, 2), (0, 0)])
    ((state, _),) = play(env, state, moves((RIGHT, STAY, LEFT)))

    assert state.position.tolist() == [[1, 1], [4, 4], [1, 2]]
    assert state.grid[1].tolist() == [0, 2, 8, 7, 0]  # head of 0, head of 2, wire of 2


def test_an_illegal_move_is_no_move(env, board, play):
    state = board(heads=[(0, 0), (0, 1), (4, 4)], targets=[(3, 0), (3, 1), (2, 4)])
    ((after, _),) = play(env, state, moves((RIGHT, UP, DOWN)))  # onto a head, and twice off the grid

    np.testing.assert_array_equal(after.position, state.position)
    np.testing.assert_array_equal(after.grid, state.grid)


def test_neither_wires_nor_the_targets_of_others_can_be_entered(board):
    state = board(heads=[(2, 2), (4, 4), (4, 0)], targets=[(2, 1), (1, 2), (0, 0)], wires=[(1, 2, 3)])

    # Above is the target of agent 1, to the right its wire, to the left the own target.
    assert state.allowed[0].tolist() == [True, False, False, True, True]


def test_a_connected_agent_is_inactive_and_may_only_stay(env, board, play):
    state = board(heads=[(2, 1), (4, 4), (0, 0)], targets=[(2, 2), (4, 0), (0, 4)])
    (_, connecting), (after, shown) = play(env, state, moves((RIGHT, STAY, STAY), (DOWN, STAY, STAY)))

    assert connecting.active.tolist() == [False, True, True]
    assert connecting.action_mask[0].tolist() == ONLY_STAY
    assert after.position[0].tolist() == [2, 2]
    assert float(shown.metrics["connected"]) == pytest.approx(1 / 3)


def test_a_blocked_agent_is_active_and_may_only_stay(board, env, play):
    state = board(heads=[(0, 0), (0, 1), (1, 0)], targets=[(4, 4), (0, 3), (3, 0)])
    ((_, shown),) = play(env, state, moves((RIGHT, RIGHT, DOWN)))

    assert shown.action_mask[0].tolist() == ONLY_STAY
    assert shown.active.tolist() == [True, True, True]
    assert not shown.terminated


def test_a_blocked_agent_is_blocked_for_good(episodes):
    blocked = ~episodes[0].step.action_mask[..., 1:].any(-1)

    assert blocked[:, :-1].any()
    assert blocked[:, 1:][blocked[:, :-1]].all()


def test_an_episode_ends_unsolved_when_nobody_can_move(env, board, play):
    # Agent 0 is locked in the corner; the others are one move from their targets.
    state = board(heads=[(0, 0), (0, 1), (1, 0)], targets=[(4, 4), (0, 2), (2, 0)])
    (_, before), (_, after) = play(env, state, moves((STAY, RIGHT, STAY), (STAY, STAY, DOWN)))

    assert [bool(before.terminated), bool(after.terminated)] == [False, True]
    assert not after.success
    assert after.active.tolist() == [True, False, False]


def test_trap_the_terminal_achieved_goal_is_lost_by_the_suites_own_reset(env, solved_boards, play):
    """The wrapper returns the state of the next board; ours is the one in which the episode ended."""
    states, suite_states, plans = solved_boards
    ours, ended = play(env, at(states, 0), moves(*plans[0]))[-1]
    suite_state = at(suite_states, 0)
    wrapped_step = jax.jit(AutoResetWrapper(SuiteEnv(RandomWalkGenerator(SIZE, AGENTS)), next_obs_in_extras=True).step)
    for action in plans[0]:
        suite_state, suite_step = wrapped_step(suite_state, jnp.array(action))

    assert suite_step.last()
    assert not suite_state.agents.connected.all()
    assert ended.terminated
    assert ended.success
    np.testing.assert_array_equal(ours.position, states.target[0])
    np.testing.assert_array_equal(ended.achieved, ended.goal)


def test_trap_stepping_on_after_the_end_changes_nothing(env, board, play):
    state = board(heads=[(0, 0), (1, 0), (2, 0)], targets=[(0, 1), (1, 1), (2, 1)])
    (ended, first), (later, second) = play(env, state, moves((RIGHT,) * 3, (DOWN,) * 3))

    assert first.terminated
    assert second.terminated
    np.testing.assert_array_equal(later.grid, ended.grid)


def test_trap_ma_connector_is_gone_and_the_grid_is_global(episodes):
    assert not hasattr(suite, "MaConnector")
    assert episodes[1][1].observation.grid.shape[2:] == (SIZE, SIZE)  # one for all agents


def test_trap_own_target_reads_zero_after_connecting_only_if_it_is_read_from_the_grid(env, board, play):
    state = board(heads=[(2, 1), (4, 4), (0, 0)], targets=[(2, 2), (4, 0), (0, 4)])
    ((state, shown),) = play(env, state, moves((RIGHT, STAY, STAY)))

    assert 3 not in np.asarray(state.grid)  # the target of agent 0 has left the grid
    assert float(shown.achieved[0, 0]) == 0.0
    np.testing.assert_allclose(shown.obs[0, :4], np.array([2, 2, 2, 2]) / 25, atol=1e-7)


def test_trap_discount_is_zero_for_blocked_agents_too(episodes):
    ours, (_, suite_steps), _ = episodes
    blocked = ours.step.active & ~ours.step.action_mask[..., 1:].any(-1) & ~ours.step.terminated[..., None]
    blocked[:, 0] = False  # the suite's first time step has discount 1

    assert blocked.any()
    assert (suite_steps.discount[blocked] == 0).all()
    assert not ours.step.success[blocked.any(-1)].any()


@pytest.mark.parametrize(("task", "steps"), [("5x5x3a", 25), ("7x7x5a", 49), ("10x10x10a", 100), ("15x15x23a", 225)])
def test_trap_time_limit_of_50_is_not_taken_over(task, steps):
    env = gw.make(f"connector/{task}")

    assert env.spec.max_steps == steps
    assert env.spec.name == f"connector/{task}"
    assert env.spec.obs_dim == 54


def test_trap_positions_are_over_the_number_of_cells(episodes):
    ours = episodes[0]
    places = np.concatenate([ours.state.position, ours.state.target], axis=-1)

    np.testing.assert_allclose(ours.step.obs[..., :4] * SIZE**2, places, atol=1e-4)


def test_trap_off_map_cells_look_like_the_own_target(env, board, play):
    state = board(heads=[(0, 0), (4, 4), (4, 0)], targets=[(1, 1), (4, 2), (2, 4)])
    ((_, shown),) = play(env, state, moves((STAY, STAY, STAY)))
    targets = np.asarray(shown.obs[0, 29:]).reshape(5, 5)

    assert targets[3, 3] == 1.0  # the target
    assert (targets[:2] == 1.0).all()  # two rows above the grid
    assert (targets[:, :2] == 1.0).all()
    assert targets[2:, 2:].sum() == 1.0


def test_the_size_of_the_state_does_not_grow_with_what_the_suite_keeps(env):
    state, _ = jax.eval_shape(gw.make("connector/15x15x23a").reset, jax.random.key(0))

    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) < 1500


@functools.cache
def drawn(generator):
    env = gw.make("connector/5x5x3a", generator=generator)
    return jax.device_get(jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 64))[0])


@pytest.mark.parametrize("generator", ["random_walk", "legacy", "uniform"])
def test_every_generator_draws_boards_of_its_own(generator):
    state = drawn(generator)

    assert len(np.unique(state.grid.reshape(64, -1), axis=0)) > 55
    assert (state.grid > 0).sum((1, 2)).tolist() == [2 * AGENTS] * 64
    for other in {"random_walk", "uniform"} - {generator}:
        assert not np.array_equal(state.grid, drawn(other).grid)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"grid_size": 2}, "grid_size of connector must be a whole number of at least 3; found 2."),
        ({"num_agents": 0}, "num_agents of connector must be a whole number of at least 1; found 0."),
        ({"num_agents": 7}, "num_agents of connector must be at most 6 on a grid of size 5"),
        ({"num_agents": 13, "generator": "uniform"}, "must be at most 12 on a grid of size 5"),
        ({"field_of_view": 0}, "field_of_view of connector must be a whole number of at least 1; found 0."),
        ({"max_steps": 0}, "max_steps of connector/5x5x3a must be a whole number of at least 1; found 0."),
        ({"generator": "random"}, "Unknown generator of connector 'random'. Did you mean random_walk?"),
    ],
)
def test_boards_that_cannot_be_are_refused(arguments, sentence):
    with pytest.raises(gw.UserError) as refusal:
        gw.make("connector/5x5x3a", **arguments)

    assert sentence in str(refusal.value)


def test_the_picture_shows_wires_heads_and_targets(env, board, play):
    state = board(heads=[(0, 0), (2, 2), (4, 4)], targets=[(0, 4), (3, 3), (4, 0)])
    ((moved, _),) = play(env, state, moves((RIGHT, STAY, STAY)))
    before, after = env.render(state), env.render(moved)
    cell = before.shape[0] / SIZE

    def pixel(image, row, col):
        return tuple(int(x) for x in image[int((row + 0.5) * cell), int((col + 0.5) * cell)])

    assert before.dtype == np.uint8
    assert before.shape == (192, 192, 3)
    assert pixel(before, 2, 2) == AGENT_COLOURS[1]
    assert pixel(after, 0, 1) == AGENT_COLOURS[0]
    assert pixel(after, 0, 0) != pixel(before, 0, 0)
    assert pixel(after, 0, 0) != pixel(after, 1, 0)  # a wire is not floor


def test_23_agents_have_colours_of_their_own():
    colours = np.array(AGENT_COLOURS[:23], int)
    apart = np.abs(colours[:, None] - colours[None]).sum(-1) + 1000 * np.eye(23, dtype=int)

    assert len(colours) == 23
    assert apart.min() > 40
