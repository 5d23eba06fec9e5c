"""Rollouts: every recorded step against a replay, and what happens between two episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.data.rollout import collect, open_worlds, rollout_metrics
from goalward.envs.base import EnvSpec, TimeStep

pytestmark = pytest.mark.usefixtures("strict_dtypes")


ENVS, STEPS, LIMIT = 5, 20, 4


class Ladder:
    """Two agents climb to their rungs, 1 to 3 up; one that is there neither moves nor counts. All in whole numbers."""

    spec = EnvSpec(
        name="test/ladder", obs_dim=1, goal_dim=1, action_space=gw.Discrete(2), max_steps=LIMIT, num_agents=2
    )

    def reset(self, key):
        state = (jnp.zeros(2, jnp.int32), jax.random.randint(key, (2,), 1, 4))
        return state, self.view(state, jnp.zeros(2))

    def step(self, key, state, action):
        height, rung = state
        climbed = jnp.where(height < rung, action, 0)
        state = (height + climbed, rung)
        return state, self.view(state, climbed.astype(jnp.float32))

    def view(self, state, reward):
        height, rung = state
        there = height == rung
        return TimeStep(
            obs=height[:, None].astype(jnp.float32),
            achieved=height[:, None].astype(jnp.float32),
            goal=rung[:, None].astype(jnp.float32),
            terminated=there.all(),
            success=there.all(),
            reward=reward,
            action_mask=jnp.stack([jnp.ones(2, bool), ~there], axis=-1),
            active=~there,
        )


def climb_mostly(key, obs, goal, mask):
    """Returns outputs that show what was seen, and stored actions that are the reverse of the environment's."""
    action = jax.random.bernoulli(key, 0.7, obs.shape[:-1]).astype(jnp.int32)
    return 10.0 * goal + obs, 1 - action, action


@pytest.fixture(scope="module")
def ladder():
    """Returns two rollouts, one the continuation of the other."""
    env = Ladder()

    @jax.jit
    def start(key):
        key_start, key_first, key_second = jax.random.split(key, 3)
        worlds = open_worlds(env, key_start, ENVS)
        worlds, first = collect(env, climb_mostly, key_first, worlds, STEPS)
        worlds, second = collect(env, climb_mostly, key_second, worlds, STEPS)
        return first, second, worlds

    first, second, worlds = start(jax.random.key(0))
    return jax.tree.map(np.asarray, first), jax.tree.map(np.asarray, second), worlds


def test_every_step_equals_a_replay_of_the_actions(ladder):
    first, second, worlds = ladder
    last = worlds.episodes
    rollout = jax.tree.map(lambda *x: np.concatenate(x), first, second)
    ends = {"terminated": 0, "truncated": 0}
    for e in range(ENVS):
        height, elapsed = np.zeros(2), 0
        for t in range(2 * STEPS):
            if elapsed == 0:
                rung = rollout.goal[t, e, :, 0]
            np.testing.assert_array_equal(rollout.obs[t, e, :, 0], height)
            np.testing.assert_array_equal(rollout.goal[t, e, :, 0], rung)
            np.testing.assert_array_equal(rollout.active[t, e], height < rung)
            np.testing.assert_array_equal(rollout.action_mask[t, e, :, 1], height < rung)
            np.testing.assert_array_equal(rollout.policy_outputs[t, e, :, 0], 10.0 * rung + height)
            climbed = np.where(height < rung, 1 - rollout.action[t, e], 0)
            height, elapsed = height + climbed, elapsed + 1
            np.testing.assert_array_equal(rollout.next_achieved[t, e, :, 0], height)
            np.testing.assert_array_equal(rollout.reward[t, e], climbed)
            solved, late = (height == rung).all(), elapsed == LIMIT
            assert rollout.terminated[t, e] == solved
            assert rollout.success[t, e] == solved
            assert rollout.truncated[t, e] == (late and not solved)
            assert rollout.done[t, e] == (solved or late)
            if solved or late:
                ends["terminated" if solved else "truncated"] += 1
                height, elapsed = np.zeros(2), 0
        np.testing.assert_array_equal(last.step.obs[e, :, 0], height)
        assert last.elapsed[e] == elapsed
    assert min(ends.values()) > 5


def test_every_episode_has_a_goal_of_its_own(ladder):
    first, _, _ = ladder
    goals = [tuple(first.goal[t + 1, e, :, 0]) for t, e in np.argwhere(first.done[:-1])]
    assert len(set(goals)) > 5
    starts = [tuple(first.goal[0, e, :, 0]) for e in range(ENVS)]
    assert len(set(starts)) > 1


def test_metrics_count_the_episodes_that_ended(ladder):
    first, _, worlds = ladder
    ended = wins = active = 0
    for t in range(STEPS):
        for e in range(ENVS):
            over = first.terminated[t, e] or first.truncated[t, e]
            ended += over
            wins += over and first.success[t, e]
            active += first.active[t, e].sum()
    metrics = rollout_metrics(jax.tree.map(jnp.asarray, first), worlds)
    assert float(metrics["rollout/episodes"]) == ended
    assert float(metrics["rollout/wins"]) == wins
    np.testing.assert_allclose(metrics["rollout/active"], active / (STEPS * ENVS * 2), rtol=1e-6)


@pytest.fixture(scope="module")
def routing():
    """Returns a learner, its parameters and a rollout in which many episodes end both ways."""
    env = gw.make("toy/routing", size=3, num_agents=2, max_steps=6)
    learner = gw.CPPO(
        num_envs=4, rollout_length=42, batch_size=8, hidden_sizes=(16,), repr_dim=8, policy_last_scale=1.0
    ).bind(env, 1)

    @jax.jit
    def start(key):
        key_init, key_collect = jax.random.split(key)
        state = learner.init(key_init)
        return state.params, learner.collect(state, key_collect)[1]

    params, rollout = start(jax.random.key(0))
    return learner, params, jax.tree.map(np.asarray, rollout)


def board_position(obs):
    """Returns [..., 2], the cell that a routing observation on a board of 3 x 3 shows, scaled as a goal."""
    return np.stack([obs[..., 0:3].argmax(-1), obs[..., 3:6].argmax(-1)], axis=-1) - 1.0


def test_routing_shows_the_terminal_achieved_goal_and_then_a_fresh_episode(routing):
    _, _, rollout = routing
    position = board_position(rollout.obs)
    done = rollout.done
    assert rollout.terminated.sum() > 1
    assert rollout.truncated.sum() > 2
    # A solved episode ends with every agent on its goal, although the next observation is of another episode.
    solved = rollout.terminated
    np.testing.assert_array_equal(rollout.next_achieved[solved], rollout.goal[solved])
    going_on = ~done[:-1]
    np.testing.assert_array_equal(rollout.next_achieved[:-1][going_on], position[1:][going_on])
    np.testing.assert_array_equal(rollout.goal[:-1][going_on], rollout.goal[1:][going_on])
    # Fresh: nobody has arrived, and starts and goals were drawn anew.
    assert rollout.active[1:][done[:-1]].all()
    assert (rollout.next_achieved[:-1][done[:-1]] != position[1:][done[:-1]]).any()
    assert (rollout.goal[:-1][done[:-1]] != rollout.goal[1:][done[:-1]]).any((1, 2)).mean() > 0.8


def test_routing_agents_are_active_until_they_stand_on_their_goal(routing):
    _, _, rollout = routing
    arrived = (board_position(rollout.obs) == rollout.goal).all(-1)
    assert 0 < arrived.sum() < arrived.size
    np.testing.assert_array_equal(rollout.active, ~arrived)


def test_stored_policy_and_actions_are_those_of_the_parameters(routing):
    learner, params, rollout = routing
    outputs = jax.jit(learner.actor.outputs)(params.policy, params.obs_stats, rollout.obs, rollout.goal)
    np.testing.assert_allclose(outputs, rollout.policy_outputs, atol=1e-5)
    log_prob = np.asarray(learner.head.log_prob(rollout.policy_outputs, rollout.action_mask, rollout.action))
    for index in np.ndindex(log_prob.shape):
        allowed = rollout.action_mask[index]
        assert allowed[rollout.action[index]]
        weights = np.exp(rollout.policy_outputs[index].astype(np.float64))
        expected = np.log(weights[rollout.action[index]] / weights[allowed].sum())
        np.testing.assert_allclose(log_prob[index], expected, atol=1e-5)


def test_maze_shows_the_terminal_position_and_then_a_fresh_episode():
    env = gw.make("toy/maze", max_steps=7)

    def straight_to_the_goal(key, obs, goal, mask):
        action = jnp.clip(5.0 * (goal - obs[..., :2]), -1.0, 1.0)
        return jnp.zeros((*obs.shape[:-1], 4)), jnp.arctanh(0.999 * action), action

    @jax.jit
    def start(key):
        key_start, key_run = jax.random.split(key)
        return collect(env, straight_to_the_goal, key_run, open_worlds(env, key_start, 6), 21)[1]

    rollout = jax.tree.map(np.asarray, start(jax.random.key(1)))
    done, position = rollout.done, rollout.obs[..., :2]
    assert rollout.terminated.sum() > 3
    assert rollout.truncated.sum() > 3
    # Half a cell of a map of 7, in coordinates from -1 to 1.
    distance = np.linalg.norm(rollout.next_achieved - rollout.goal, axis=-1)[..., 0]
    np.testing.assert_array_equal(distance < 2.0 * 0.5 / 7.0, rollout.terminated)
    going_on = ~done[:-1]
    np.testing.assert_allclose(rollout.next_achieved[:-1][going_on], position[1:][going_on], atol=1e-5)
    jumped = np.linalg.norm(rollout.next_achieved[:-1] - position[1:], axis=-1)[done[:-1]]
    assert (jumped > 0.01).all()
    # A fresh episode starts at rest and with a goal of its own.
    assert (rollout.obs[1:][done[:-1]][..., 2:] == 0.0).all()
    assert (rollout.goal[:-1][done[:-1]] != rollout.goal[1:][done[:-1]]).all()


def test_the_state_in_which_an_episode_is_cut_off_is_looked_at_in_every_seed_where_one_is():
    env = Ladder()

    def look(after):
        return after.obs[..., 0] + 0.25

    def one_seed(key):
        worlds = open_worlds(env, key, 1)
        return collect(env, climb_mostly, key, worlds, STEPS, look=look)[1]

    seeds = jax.jit(jax.vmap(one_seed))
    keys = jax.random.split(jax.random.key(5), 8)
    rollout = seeds(keys)

    cut = np.asarray(rollout.truncated)
    assert 0 < cut.sum() < cut.size
    assert any(len(np.unique(step)) == 2 for step in np.moveaxis(cut[..., 0], 1, 0))  # in some seeds and not in others
    np.testing.assert_array_equal(rollout.cut_off[cut], rollout.next_achieved[..., 0][cut] + 0.25)
    beside_itself = seeds(keys[jnp.zeros(8, int)])  # no other seed brings a look about
    np.testing.assert_array_equal(beside_itself.cut_off[0][cut[0]], rollout.cut_off[0][cut[0]])


def test_nothing_is_looked_at_while_no_episode_is_cut_off():
    """Under `vmap` too, where a condition of each seed's own would be a selection between both branches."""
    env, calls = Ladder(), []

    def look(after):
        jax.debug.callback(lambda: calls.append("looked"))
        return jnp.ones(1)

    def one_seed(key, num_steps):
        worlds = open_worlds(env, key, 1)
        return collect(env, climb_mostly, key, worlds, num_steps, look=look)[1]

    def calls_in(num_steps):
        calls.clear()
        rollout = jax.vmap(one_seed, (0, None))(jax.random.split(jax.random.key(5), 2), num_steps)
        jax.effects_barrier()
        return bool(rollout.truncated.any()), len(calls)

    assert calls_in(1) == (False, 0)
    was_cut, looks = calls_in(STEPS)
    assert was_cut
    assert 0 < looks < STEPS
