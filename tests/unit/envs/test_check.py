"""check_env: every way to break the contract has its own sentence, and a sound environment has none."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.cli import main
from goalward.envs.check import find_problems

pytestmark = pytest.mark.usefixtures("strict_dtypes")


class Walk:
    """A sound environment: one step left or right on a line, five steps at most."""

    spec = gw.EnvSpec(name="walk", obs_dim=2, goal_dim=1, action_space=gw.Discrete(2), max_steps=5)

    def reset(self, key):
        state = {"place": jnp.zeros((1, 1)), "goal": jax.random.uniform(key, (1, 1))}
        return state, self.look(state)

    def step(self, key, state, action):
        state = {**state, "place": state["place"] + 0.5 * action[:, None].astype(jnp.float32) - 0.25}
        return state, self.look(state)

    def look(self, state):
        there = jnp.abs(state["place"] - state["goal"])[0, 0] < 0.1
        obs = jnp.concatenate([state["place"], state["goal"]], axis=-1)
        return gw.TimeStep(obs=obs, achieved=state["place"], goal=state["goal"], terminated=there, success=there)


def with_spec(**changes):
    env = Walk()
    env.spec = replace(Walk.spec, **changes)
    return env


def showing(change):
    """Returns a walk whose every time step is changed by `change(step, state)`."""

    class Changed(Walk):
        def look(self, state):
            return change(super().look(state), state)

    return Changed()


def resetting(change):
    """Returns a walk whose `reset` returns `change(state, step)`."""

    class Changed(Walk):
        def reset(self, key):
            return change(*super().reset(key))

    return Changed()


def stepping(change):
    """Returns a walk whose `step` returns `change(state, step)`."""

    class Changed(Walk):
        def step(self, key, state, action):
            return change(*super().step(key, state, action))

    return Changed()


def measuring(**metrics):
    return showing(lambda step, _: step._replace(metrics=metrics))


def leave(state, step):
    raise SystemExit(3)


class LeavesLater(Walk):
    calls = 0

    def reset(self, key):
        LeavesLater.calls += 1
        if LeavesLater.calls > 1:
            raise SystemExit(3)
        return super().reset(key)


def drawing(render):
    env = Walk()
    env.render = render
    return env


def without(name):
    class Missing(Walk):
        pass

    setattr(Missing, name, None)
    return Missing()


def no_spec():
    env = Walk()
    env.spec = {"obs_dim": 2}
    return env


def fail(*_):
    raise ValueError("the simulator is not running.\nand more lines")


def through_python(state, step):
    """Asks Python for the observation, without saying how to do so for many states at once."""
    shape = jax.ShapeDtypeStruct(step.obs.shape, step.obs.dtype)
    return state, step._replace(obs=jax.pure_callback(lambda obs: obs, shape, step.obs))


def branch(state, step):
    if step.obs[0, 1] > 0.5:
        return state, step._replace(success=~step.success)
    return state, step


class CountsInReset(Walk):
    """Every reset starts further to the right, whatever the key."""

    calls = 0

    def reset(self, key):
        CountsInReset.calls += 1
        state = {"place": jnp.full((1, 1), float(self.calls)), "goal": jnp.zeros((1, 1))}
        return state, self.look(state)


class DrawsTargetOutsideTheKey(Walk):
    """NumPy's global generator draws what the observation does not show."""

    def reset(self, key):
        rng = np.random.default_rng()
        state = {"place": jnp.zeros((1, 1)), "goal": jnp.asarray(rng.random((1, 1)), jnp.float32)}
        return state, self.look(state)._replace(obs=jnp.zeros((1, 2)))


class CountsInStep(Walk):
    """Every step is longer than the last."""

    calls = 0

    def step(self, key, state, action):
        CountsInStep.calls += 1
        state = {**state, "place": state["place"] + float(self.calls)}
        return state, self.look(state)


VIOLATIONS = {
    "no spec": (no_spec, ["`spec`", "goalward.EnvSpec", "found dict"]),
    "no observation": (lambda: with_spec(obs_dim=0), ["`spec.obs_dim`", "at least 1", "found 0"]),
    "fractional length": (lambda: with_spec(max_steps=2.5), ["`spec.max_steps`", "whole number", "found 2.5"]),
    "negative team": (lambda: with_spec(num_agents=-1), ["`spec.num_agents`", "at least 1", "found -1"]),
    "goal size in words": (lambda: with_spec(goal_dim="one"), ["`spec.goal_dim`", "whole number", "found 'one'"]),
    "one action": (lambda: with_spec(action_space=gw.Discrete(1)), ["`spec.action_space`", "at least 2", "found 1"]),
    "actions in words": (
        lambda: with_spec(action_space=gw.Discrete("two")),
        ["`spec.action_space`", "at least 2", "found 'two'"],
    ),
    "empty box": (lambda: with_spec(action_space=gw.Box((), ())), ["`spec.action_space`", "at least one", "found"]),
    "uneven box": (
        lambda: with_spec(action_space=gw.Box((0.0,), (1.0, 1.0))),
        ["`spec.action_space`", "as many low as high", "found"],
    ),
    "reversed box": (
        lambda: with_spec(action_space=gw.Box((1.0,), (-1.0,))),
        ["`spec.action_space`", "low below its high", "found [(1.0, -1.0)]"],
    ),
    "endless box": (
        lambda: with_spec(action_space=gw.Box((0.0,), (float("inf"),))),
        ["`spec.action_space`", "finite", "inf"],
    ),
    "box of single numbers": (
        lambda: with_spec(action_space=gw.Box(-1.0, 1.0)),
        ["`spec.action_space`", "low", "high", "found"],
    ),
    "another action space": (
        lambda: with_spec(action_space=(2,)),
        ["`spec.action_space`", "goalward.Discrete or goalward.Box", "found tuple"],
    ),
    "no reset": (lambda: without("reset"), ["method `reset`", "found none"]),
    "no step": (lambda: without("step"), ["method `step`", "found none"]),
    "reset raises": (lambda: resetting(fail), ["`reset(key)`", "jax.jit", "ValueError: the simulator is not running"]),
    "reset branches": (lambda: resetting(branch), ["`reset(key)`", "jax.jit", "TracerBoolConversionError"]),
    "step raises": (lambda: stepping(fail), ["`step(key, state, action)`", "jax.jit", "ValueError: the simulator"]),
    "reset returns one thing": (
        lambda: resetting(lambda state, step: step.obs),
        ["`reset(key)`", "(state, goalward.TimeStep)", "found"],
    ),
    "reset returns the time step alone": (
        lambda: resetting(lambda state, step: step),
        ["`reset(key)`", "(state, goalward.TimeStep)", "found TimeStep."],
    ),
    "step returns a dict": (
        lambda: stepping(lambda state, step: (state, step._asdict())),
        ["`step(key, state, action)`", "(state, goalward.TimeStep)", "found a tuple of dict, dict"],
    ),
    "step returns three things": (
        lambda: stepping(lambda state, step: (state, step, {})),
        ["`step(key, state, action)`", "(state, goalward.TimeStep)", "found a tuple of dict, TimeStep, dict"],
    ),
    "state gains a part": (
        lambda: stepping(lambda state, step: ({**state, "time": jnp.zeros(())}, step)),
        ["`step`", "structure", "['time'] as float32[] after step and absent after reset"],
    ),
    "state changes its type": (
        lambda: stepping(lambda state, step: ({**state, "place": state["place"].astype(jnp.int32)}, step)),
        ["`step`", "types", "['place'] as int32[1, 1] after step and float32[1, 1] after reset"],
    ),
    "state changes its shape": (
        lambda: stepping(lambda state, step: ({**state, "place": state["place"][0]}, step)),
        ["`step`", "shapes", "['place'] as float32[1] after step and float32[1, 1] after reset"],
    ),
    "a field only after step": (
        lambda: stepping(lambda state, step: (state, step._replace(reward=jnp.zeros(1)))),
        ["`step` and `reset`", "same fields", "reward"],
    ),
    "observation too long": (
        lambda: showing(lambda step, _: step._replace(obs=jnp.zeros((1, 3)))),
        ["`obs`", "float32 of shape (1, 2)", "found float32 of shape (1, 3)"],
    ),
    "whole numbers achieved": (
        lambda: showing(lambda step, _: step._replace(achieved=jnp.zeros((1, 1), jnp.int32))),
        ["`achieved`", "float32 of shape (1, 1)", "found int32 of shape (1, 1)"],
    ),
    "success of a second agent": (
        lambda: showing(lambda step, _: step._replace(success=jnp.stack([step.success] * 2))),
        ["`success`", "bool of shape (1,)", "found bool of shape (2,)"],
    ),
    "metrics in a list": (
        lambda: showing(lambda step, _: step._replace(metrics=[step.success])),
        ["`metrics`", "dictionary", "found list"],
    ),
    "metrics per agent": (
        lambda: showing(lambda step, _: step._replace(metrics={"near": step.success[None]})),
        ["`metrics`", "scalars", "found 'near'"],
    ),
    "mask in floats": (
        lambda: showing(lambda step, _: step._replace(action_mask=jnp.ones((1, 2)))),
        ["`action_mask`", "bool of shape (1, 2)", "found float32"],
    ),
    "nothing achieved": (lambda: showing(lambda step, _: step._replace(achieved=None)), ["`achieved`", "float32"]),
    "observation as a list": (
        lambda: showing(lambda step, _: step._replace(obs=[[0.0, 0.0]])),
        ["`obs`", "float32 of shape (1, 2)", "found list"],
    ),
    "a mask that allows nothing": (
        lambda: showing(lambda step, _: step._replace(action_mask=jnp.zeros((1, 2), bool))),
        ["`action_mask`", "at least one action", "found an agent with none"],
    ),
    "NaN in an observation": (
        lambda: showing(lambda step, _: step._replace(obs=step.obs * jnp.nan)),
        ["`obs`", "finite", "found NaN or infinity"],
    ),
    "infinity achieved later": (
        lambda: showing(
            lambda step, state: step._replace(achieved=jnp.where(state["place"] == 0.5, jnp.inf, step.achieved))
        ),
        ["`achieved`", "finite", "found NaN or infinity"],
    ),
    "NaN in the goal": (
        lambda: showing(lambda step, _: step._replace(goal=step.goal * jnp.nan)),
        ["`goal`", "finite", "found NaN or infinity"],
    ),
    "a goal that wanders": (
        lambda: showing(lambda step, state: step._replace(goal=step.goal + state["place"])),
        ["`step`", "`goal` constant", "found one that changes"],
    ),
    "an episode without end": (
        lambda: showing(lambda step, _: step._replace(truncated=jnp.zeros((), bool), terminated=jnp.zeros((), bool))),
        ["`step`", "`spec.max_steps` = 5", "found one that goes on"],
    ),
    "a counter in reset": (CountsInReset, ["`reset`", "function of its key alone", "different results"]),
    "randomness besides the key": (
        DrawsTargetOutsideTheKey,
        ["`reset`", "function of its key alone", "different results"],
    ),
    "a picture in floats": (
        lambda: drawing(lambda state: np.zeros((4, 4, 3))),
        ["`render(state)`", "uint8 of shape (height, width, 3)", "found float64 of shape (4, 4, 3)"],
    ),
    "a picture that fails": (lambda: drawing(fail), ["`render(state)`", "ValueError: the simulator is not running"]),
    "pictures that grow": (
        lambda: drawing(lambda state: np.zeros((4 + int(state["place"][0, 0] != 0), 4, 3), np.uint8)),
        ["`render(state)`", "of one size", "found (4, 4, 3) and"],
    ),
    "a callback that cannot be batched": (
        lambda: stepping(through_python),
        ["`reset` and `step`", "jax.jit and jax.vmap", "vmap"],
    ),
    "an episode that cannot be counted": (
        lambda: with_spec(max_steps=2**31),
        ["`spec.max_steps`", "at most 2147483647", "found 2147483648"],
    ),
    "a truth value for a number": (lambda: with_spec(num_agents=True), ["`spec.num_agents`", "found True"]),
    "a name that is no word": (lambda: with_spec(goal_name=3), ["`spec.goal_name`", "must be a word", "found 3"]),
    "a box of words": (
        lambda: with_spec(action_space=gw.Box(("a",), ("b",))),
        ["`spec.action_space`", "finite bounds", "found [('a', 'b')]"],
    ),
    "a box beyond all numbers": (
        lambda: with_spec(action_space=gw.Box((0,), (10**400,))),
        ["`spec.action_space`", "finite bounds"],
    ),
    "a ragged box": (
        lambda: with_spec(action_space=gw.Box(((1, 2), (1,)), (1,))),
        ["`spec.action_space`", "as many low as high bounds"],
    ),
    "more actions than can be counted": (
        lambda: with_spec(action_space=gw.Discrete(2**40)),
        ["`spec.action_space`", "whole number of actions", "found 1099511627776"],
    ),
    "a metric of another shape": (
        lambda: measuring(speed=jnp.ones(3)),
        ["`metrics`", "found 'speed', float32 of shape (3,)"],
    ),
    "reset exits when called once more": (LeavesLater, ["behave alike in every call", "SystemExit"]),
    "step exits": (lambda: stepping(leave), ["`step(key, state, action)`", "jax.jit", "SystemExit"]),
    "a metric by a name that is taken": (
        lambda: measuring(win_rate=jnp.ones(())),
        ["`metrics`", "words that results do not use", "found 'win_rate'"],
    ),
    "a metric that is no number": (
        lambda: measuring(speed=jnp.log(-jnp.ones(()))),
        ["`metrics`", "finite", "NaN or infinity in 'speed'"],
    ),
    "a counter in step": (CountsInStep, ["`step`", "function of its arguments alone", "different results"]),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_violation_gives_one_sentence_with_place_rule_and_finding(violation):
    factory, parts = VIOLATIONS[violation]
    problems = find_problems(factory())

    assert len(problems) == 1, problems
    assert [part for part in parts if part not in problems[0]] == []
    assert problems[0].endswith(".")
    assert "\n" not in problems[0]


def test_a_class_is_no_environment():
    with pytest.raises(gw.UserError, match=r"found the class Walk\. Pass an object of it\."):
        gw.check_env(Walk)


def test_a_spec_that_raises_is_explained():
    class Broken:
        @property
        def spec(self):
            return 1 / 0

    with pytest.raises(gw.UserError, match=r"The environment 'Broken' violates the contract.*ZeroDivisionError"):
        gw.check_env(Broken())


def test_a_sound_environment_passes():
    gw.check_env(Walk())


def test_a_sound_environment_with_every_optional_field_passes():
    full = showing(
        lambda step, state: step._replace(
            truncated=state["place"][0, 0] > 0.6,
            terminated=jnp.abs(state["place"][0, 0]) > 0.3,
            reward=jnp.zeros(1),
            action_mask=jnp.ones((1, 2), bool),
            active=jnp.ones(1, bool),
        )
    )
    full.spec = replace(Walk.spec, max_steps=100)
    gw.check_env(full)


def test_a_box_may_be_given_as_arrays():
    class Push(Walk):
        spec = replace(Walk.spec, action_space=gw.Box(-np.ones(2), np.ones(2)))

        def step(self, key, state, action):
            return super().step(key, state, action[:, 0])

    assert find_problems(Push()) == []


def test_numbers_of_the_spec_may_come_from_numpy():
    sizes = np.array([2, 1, 5, 1])
    assert find_problems(with_spec(action_space=gw.Discrete(np.int64(2)))) == []
    numpy = dict(zip(("obs_dim", "goal_dim", "max_steps", "num_agents"), sizes, strict=True))

    assert find_problems(with_spec(**numpy)) == []


def test_an_episode_may_be_longer_than_anyone_would_wait_for():
    assert find_problems(with_spec(max_steps=2**31 - 1)) == []


def test_a_state_may_hold_a_random_key():
    class Noisy(Walk):
        def reset(self, key):
            state, step = super().reset(key)
            return {**state, "key": key}, step

        def step(self, key, state, action):
            own, place = state["key"], {"place": state["place"], "goal": state["goal"]}
            key_next, key_noise = jax.random.split(own)
            moved, _ = super().step(key, place, action)
            moved = {**moved, "place": moved["place"] + 0.1 * jax.random.normal(key_noise, (1, 1))}
            return {**moved, "key": key_next}, self.look(moved)

    assert find_problems(Noisy()) == []


def test_functions_that_are_made_anew_in_every_call_are_no_impurity():
    def change(step, _):
        double = jax.custom_jvp(lambda x: 2.0 * x)
        double.defjvps(lambda tangent, _, x: 2.0 * tangent)
        shape = jax.ShapeDtypeStruct(step.obs.shape, step.obs.dtype)
        looked_up = jax.pure_callback(lambda x: np.asarray(x), shape, step.obs, vmap_method="sequential")
        return step._replace(obs=double(jax.nn.silu(looked_up)))

    assert find_problems(showing(change)) == []


def test_a_flag_may_be_a_plain_bool():
    assert find_problems(showing(lambda step, _: step._replace(terminated=False))) == []


def test_an_episode_that_is_solved_from_the_start_is_allowed():
    assert find_problems(showing(lambda step, _: step._replace(terminated=step.success | True))) == []


def test_several_violations_are_named_together():
    with pytest.raises(gw.UserError) as caught:
        gw.check_env(with_spec(obs_dim=0, max_steps=0))

    assert "The environment 'walk' violates the contract." in str(caught.value)
    assert "`spec.obs_dim`" in str(caught.value)
    assert "`spec.max_steps`" in str(caught.value)


MODULE = """
import jax.numpy as jnp
import goalward as gw

class Line:
    spec = gw.EnvSpec(name="line", obs_dim=1, goal_dim=1, action_space=gw.Discrete(2), max_steps=3)

    def reset(self, key):
        return self.look(jnp.zeros((1, 1)))

    def step(self, key, state, action):
        return self.look(state + action[:, None].astype(jnp.float32))

    def look(self, state):
        return state, gw.TimeStep(obs=OBS, achieved=state, goal=jnp.ones((1, 1)), terminated=END, success=END)

def sound(): return Line()
def number(): return 3
def broken(): raise RuntimeError("no licence found")
"""

BROKEN_MODULES = {
    "no such module": (None, "nosuchmodule:make", ["nosuchmodule", "ModuleNotFoundError"]),
    "a module that fails": ("raise OSError('no display')", "{}:make", ["OSError: no display"]),
    "no such factory": (MODULE, "{}:sounds", ["sounds", "Did you mean sound?"]),
    "a factory that fails": (MODULE, "{}:broken", ["RuntimeError", "no licence found"]),
    "not an environment": (MODULE, "{}:number", ["`spec`", "goalward.EnvSpec"]),
    "NaN": (MODULE.replace("OBS", "state * jnp.nan"), "{}:sound", ["`obs`", "NaN"]),
    "wrong shape": (MODULE.replace("OBS", "jnp.zeros((1, 4))"), "{}:sound", ["`obs`", "(1, 4)"]),
}


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Returns a function that puts a module into the current directory and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = "line_" + "".join(c if c.isalnum() else "_" for c in request.node.name)

    def write(text):
        (tmp_path / f"{name}.py").write_text(text.replace("OBS", "state").replace("END", "state[0, 0] >= 1"))
        return name

    yield write
    sys.modules.pop(name, None)


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize("case", BROKEN_MODULES)
def test_the_command_line_explains_what_is_wrong_and_writes_nothing(case, command, module, tmp_path, capsys):
    text, reference, parts = BROKEN_MODULES[case]
    arguments = [command, reference.format(module(text or ""))]
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(SystemExit) as exit_info:
        main(arguments)

    shown = capsys.readouterr()
    assert exit_info.value.code == 2
    assert [part for part in parts if part not in shown.err] == []
    assert shown.err.startswith("goalward: ")
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_the_command_line_confirms_a_sound_environment(module, capsys):
    reference = f"{module(MODULE)}:sound"
    with pytest.raises(SystemExit) as exit_info:
        main(["check", reference])

    assert exit_info.value.code == 0
    assert capsys.readouterr().out == f"{reference} keeps the contract.\n"
