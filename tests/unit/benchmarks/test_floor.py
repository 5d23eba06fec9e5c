"""The operations that benchmarks/floor.py counts are those that the learner's own programs contain."""

import math

import floor
import jax
import jax.extend
import pytest

import goalward as gw

SCALE = {"num_envs": 4, "rollout_length": 6, "batch_size": 8, "hidden_sizes": (5, 7), "repr_dim": 3}


def products(jaxpr):
    """Returns the operations of all matrix products in a jaxpr; raises where their number is not known."""
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
            continue
        inner = sum(map(products, jaxprs_within(equation)))
        assert not inner or name not in ("while", "cond"), "how often this runs depends on the data"
        total += inner * params["length"] if name == "scan" else inner
    return total


def results_of_products(jaxpr):
    """Yields the shapes and types of the results of all matrix products in a jaxpr."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.outvars[0].aval.shape, equation.outvars[0].aval.dtype.name
        for inner in jaxprs_within(equation):
            yield from results_of_products(inner)


def jaxprs_within(equation):
    leaves = jax.tree.leaves(equation.params, is_leaf=is_jaxpr)
    return [getattr(x, "jaxpr", x) for x in leaves if is_jaxpr(x)]


def is_jaxpr(x):
    return isinstance(x, jax.extend.core.Jaxpr | jax.extend.core.ClosedJaxpr)


def found(function, *arguments):
    return products(jax.make_jaxpr(function)(*arguments).jaxpr)


def shapes(function, *arguments):
    return jax.eval_shape(function, *arguments)


@pytest.fixture(scope="module", params=["toy/rooms", "toy/routing", "toy/maze", "toy/swarm"])
def learner(request):
    """One agent and a team, with choices and with boxes."""
    env = gw.make(request.param)
    return gw.CPPO(**SCALE, num_value_samples=4).bind(env, num_iterations=1)


@pytest.fixture(scope="module")
def traced(learner):
    """The inputs of the phases, as shapes."""
    key = jax.random.key(0)
    state = shapes(learner.init, key)
    _, rollout = shapes(learner.collect, state, key)
    steps = shapes(learner.steps_of, state.params, rollout)
    pairs = shapes(learner.relabel, steps, rollout, key)
    adv, _ = shapes(learner.advantages, state.params.critic, steps, key)
    return {"key": key, "state": state, "steps": steps, "pairs": pairs, "adv": adv}


@pytest.fixture(scope="module")
def sizes(learner):
    return floor.sizes_of(learner.config, learner.env.spec)


def test_walking_a_program_multiplies_by_the_length_of_loops_and_the_batch():
    def program(x, w):
        step = jax.jit(jax.vmap(lambda row: jax.checkpoint(lambda r: r @ w)(row)))
        return jax.lax.scan(lambda carry, _: (step(carry), None), x, length=3)

    x, w = jax.ShapeDtypeStruct((5, 2, 4), "float32"), jax.ShapeDtypeStruct((4, 4), "float32")

    assert found(program, x, w) == 3 * 5 * (2 * 2 * 4 * 4)


def test_rollout_has_the_counted_products(learner, traced, sizes):
    assert floor.rollout(sizes).flops == found(learner.collect, traced["state"], traced["key"])


def test_critic_has_the_counted_products(learner, traced, sizes):
    program = found(learner.update_encoders, traced["state"], traced["pairs"], traced["key"])

    assert floor.critic(sizes).flops == program


def test_advantages_have_at_least_the_counted_products(learner, traced, sizes):
    program = found(learner.advantages, traced["state"].params.critic, traced["steps"], traced["key"])

    assert 0 < floor.advantages(sizes).flops <= program


def test_policy_has_the_counted_products(learner, traced, sizes):
    program = found(learner.update_policy, traced["state"], traced["steps"], traced["adv"], traced["key"])

    assert floor.policy(sizes).flops == program


def test_parameters_are_those_of_the_networks(traced, sizes):
    params = traced["state"].params
    networks = {"policy": params.policy, "phi": params.critic.phi, "psi": params.critic.psi}
    counted = {name: getattr(sizes, name).num_parameters for name in networks}

    assert counted == {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in networks.items()}


def test_bytes_of_rows_are_those_of_the_arrays(traced, sizes):
    def num_bytes(*arrays):
        return sum(x.size * x.dtype.itemsize for x in arrays)

    steps, pairs, adv = traced["steps"], traced["pairs"], traced["adv"]
    masked = sizes.actions_are_listed  # a box has no actions to forbid
    of_policy = num_bytes(*steps, adv) - (0 if masked else num_bytes(steps.action_mask))
    of_critic = num_bytes(pairs.obs, pairs.action, pairs.future_goal, pairs.active)
    per_parameter = sizes.num_batches * 9 * 4  # in float32 a gradient has its parameter's type
    of_encoders = 4 * (sizes.phi.num_parameters + sizes.psi.num_parameters)

    assert floor.rollout(sizes).bytes == (
        of_policy - num_bytes(adv) + num_bytes(pairs.future_goal) + 4 * sizes.policy.num_parameters
    )
    assert floor.advantages(sizes).bytes == of_policy - num_bytes(steps.active) + of_encoders

    assert floor.policy(sizes).bytes == of_policy + per_parameter * sizes.policy.num_parameters
    assert floor.critic(sizes).bytes == of_critic + per_parameter * (
        sizes.phi.num_parameters + sizes.psi.num_parameters
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_of_weights_have_the_counted_type(precision):
    """Each is the result of a product and has the shape of its weights, which nothing else in the program has."""
    learner = gw.CPPO(**SCALE | {"hidden_sizes": (37, 41)}, precision=precision).bind(gw.make("toy/rooms"), 1)
    key = jax.random.key(0)
    state = shapes(learner.init, key)
    _, rollout = shapes(learner.collect, state, key)
    steps = shapes(learner.steps_of, state.params, rollout)
    adv, _ = shapes(learner.advantages, state.params.critic, steps, key)
    program = jax.make_jaxpr(learner.update_policy)(state, steps, adv, key).jaxpr
    types = {dtype for shape, dtype in results_of_products(program) if set(shape) == {37, 41}}

    assert types == {precision}
    assert jax.numpy.dtype(precision).itemsize == floor.BYTES_OF_PRODUCTS[precision]


def test_an_update_in_bfloat16_moves_smaller_gradients_of_weights():
    """By hand: 8 numbers in, 7 hidden, 4 out; 84 weights, 11 biases, 14 of the norm."""
    spec = gw.EnvSpec(name="own", obs_dim=5, goal_dim=3, action_space=gw.Discrete(4), max_steps=9)
    config = {"num_envs": 3, "rollout_length": 2, "batch_size": 2, "hidden_sizes": (7,), "repr_dim": 2}
    found = [
        floor.policy(floor.sizes_of(gw.CPPO(**config, precision=precision), spec)).bytes
        for precision in ("float32", "bfloat16")
    ]

    row = 4 * (5 + 3 + 4) + 4 + 1 + 4 + 4  # observation, goal and outputs; mask; activity; action; advantage
    assert found[0] == 6 * row + 3 * (9 * 4 * 109)
    assert found[1] == 6 * row + 3 * (7 * 4 * 109 + 2 * (2 * 84 + 4 * 25))


def test_advantages_share_the_first_layer_between_listed_actions():
    """By hand: 3 environments x 2 steps, 5 numbers observed, 4 actions, networks 5 + 4 -> 7 -> 2 and 3 -> 7 -> 2."""
    spec = gw.EnvSpec(name="own", obs_dim=5, goal_dim=3, action_space=gw.Discrete(4), max_steps=9)
    config = gw.CPPO(num_envs=3, rollout_length=2, batch_size=2, hidden_sizes=(7,), repr_dim=2, num_epochs=2)
    one_pass = 2 * 6 * (5 * 7 + 4 * 7 * 2 + 3 * 7 + 7 * 2)

    assert floor.advantages(floor.sizes_of(config, spec)).flops == 2 * one_pass


@pytest.mark.parametrize(("order", "times"), [("after_critic", 3), ("before_critic", 1)])
def test_advantages_are_computed_once_an_epoch_or_once(order, times):
    spec = gw.make("toy/rooms").spec
    once = floor.advantages(floor.sizes_of(gw.CPPO(**SCALE), spec))
    several = floor.sizes_of(gw.CPPO(**SCALE, num_epochs=3, advantage_order=order), spec)

    assert floor.advantages(several) == once.times(times)


def test_advantages_of_samples_take_one_product_with_each_action():
    """By hand: as above with 8 samples beside the action that was taken, each of 2 numbers."""
    spec = gw.EnvSpec(name="own", obs_dim=5, goal_dim=3, action_space=gw.Box((-1, -1), (1, 1)), max_steps=9)
    config = gw.CPPO(num_envs=3, rollout_length=2, batch_size=2, hidden_sizes=(7,), repr_dim=2)
    expected = 2 * 6 * (5 * 7 + 9 * (2 * 7 + 7 * 2) + 3 * 7 + 7 * 2)

    assert floor.advantages(floor.sizes_of(config, spec)).flops == expected


def test_the_floor_is_the_slower_of_products_and_memory_summed_over_phases():
    spec = gw.make("toy/rooms").spec
    config = gw.CPPO(**SCALE)
    costs = [phase(floor.sizes_of(config, spec)) for phase in floor.PHASES.values()]
    only_products = floor.Machine({"float32": 2.0}, math.inf)
    only_memory = floor.Machine({"float32": math.inf}, 4.0)
    seconds = {"products": sum(cost.flops for cost in costs) / 2.0, "memory": sum(cost.bytes for cost in costs) / 4.0}

    assert floor.floor(config, spec, only_products)["seconds"] == pytest.approx(seconds["products"])
    assert floor.floor(config, spec, only_memory)["seconds"] == pytest.approx(seconds["memory"])
    assert floor.floor(config, spec, only_memory)["floor_steps_per_second"] == pytest.approx(24 / seconds["memory"])
    assert floor.Cost(flops=6, bytes=4).seconds(floor.Machine({"float32": 2.0}, 4.0), "float32") == 3.0
    assert floor.Cost(flops=1, bytes=4).seconds(floor.Machine({"float32": 2.0}, 4.0), "float32") == 1.0
