"""Arguments that make no sense: the error comes when the model is made, names the argument, and says what would do."""

import inspect
import math
import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import TINY, SpacesEnv, ToyEnv

from sb3_grpo import DAPO, GRPO, SeedStart, make_group_env
from sb3_grpo.cli.settings import known_settings
from sb3_grpo.common.arguments import ARGUMENTS, REFUSED_ARGUMENTS
from sb3_grpo.envs import VerifierTextVecEnv
from stress.fuzz_arguments import Case, try_case

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies
FEW = hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.lists(st.floats(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.sampled_from([np.int64(2), np.float32(0.5), np.array(2), th.tensor(0.5), object(), int, len, Path("runs")]),
)


def test_dapo_has_the_arguments_of_grpo() -> None:
    grpo, dapo = (dict(inspect.signature(algorithm).parameters) for algorithm in (GRPO, DAPO))
    changed = {name for name in grpo if grpo[name].default != dapo[name].default}
    assert changed == {"clip_range_high", "loss_average", "dynamic_sampling"}  # eq. 8, 8 and 11 of DAPO's paper
    # Nothing else differs: neither names nor their order, nor annotations
    assert [*dapo.values()] == [each.replace(default=dapo[name].default) for name, each in grpo.items()]
    # DAPO's docstring describes these, and GRPO's all
    for algorithm, names in ((GRPO, {*grpo}), (DAPO, changed)):
        documented = re.findall(r"^:param (\w+):", inspect.getdoc(algorithm) or "", re.MULTILINE)
        assert sorted(documented) == sorted(names)


@pytest.mark.parametrize("algorithm", [GRPO, DAPO])
def test_every_argument_arrives(algorithm: type[GRPO]) -> None:
    other: dict[str, Any] = {
        **{"learning_rate": 2e-3, "group_size": 3, "n_groups": 5, "batch_size": 64, "gradient_accumulation_steps": 2},
        **{"n_epochs": 3, "gamma": 0.9, "advantage": "outcome", "gae_lambda": 0.5, "leave_one_out": True},
        **{"advantage_scale": "group", "loss_average": 20.0, "ratio_level": "episode", "ent_coef": 0.1, "max_grad_norm": 2.0},
        **{"target_kl": 0.1, "kl_coef": 0.2, "kl_estimator": "k2", "ref_update_interval": 7, "max_sampling_rounds": 9},
        **{"dynamic_sampling": algorithm is GRPO, "overlong_filter": True, "overlong_range": (3, 9)},
        **{"start_sampler": own_sampler, "use_sde": True, "sde_sample_freq": 4, "policy_kwargs": TINY, "verbose": 1},
        **{"seed": 3, "policy_loss": lambda steps: -steps.advantages, "n_envs": 2},
    }
    model = algorithm("MlpPolicy", "Pendulum-v1", clip_range=0.3, clip_range_high=0.4, device="cpu", **other)
    assert {name: getattr(model, name) for name in other} == other
    assert (model.clip_range(1.0), model.clip_range_high(1.0)) == (0.3, 0.4)  # type: ignore[operator]
    assert algorithm("MlpPolicy", ToyEnv(), unrelated_starts=True).unrelated_starts
    assert algorithm("MlpPolicy", ToyEnv(), n_steps=7).n_steps == 7


def test_none_is_the_default_of_the_policy() -> None:
    control = {"learning_rate": 1e-3, "n_epochs": 10, "gamma": 0.99, "advantage": "gae"}
    texts = {**control, "advantage": "return_to_go"}
    for policy, env, expected in (("MlpPolicy", ToyEnv(), control), ("TokenPolicy", VerifierTextVecEnv(2), texts)):
        model = GRPO(policy, env, unrelated_starts=True, device="cpu")
        assert {name: getattr(model, name) for name in expected} == expected
        model.gamma = None
        model.learn(1)
        assert model.gamma == 0.99
    shown = {name: default for name, default in known_settings(DAPO).items() if name in control}
    assert shown == {**control, "advantage": "auto"}, "users see numbers"


def test_every_argument_has_a_kind() -> None:
    special = {"policy", "env", "_init_setup_model"}
    assert {*known_settings(GRPO), "seed", "device", "verbose", "start_sampler", "n_envs"} - special == {*ARGUMENTS}


@FEW
@hypothesis.given(name=st.sampled_from([*ARGUMENTS]), value=ANYTHING, algorithm=st.sampled_from([GRPO, DAPO]))
def test_one_argument_is_anything(name: str, value: Any, algorithm: type[GRPO], tmp_path_factory: Any) -> None:
    if name == "tensorboard_log" and isinstance(value, str | Path):
        value = tmp_path_factory.getbasetemp() / "logs" if value else value
    # Of these there is one for each copy, and each step
    hypothesis.assume(not (name in ("n_envs", "n_steps", "n_groups", "group_size") and type(value) is int and value > 64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = try_case(Case("one", (name,), algorithm, "CartPole-v1", {name: value}))
    assert outcome in ("refused", "trains")


def own_sampler(rng: np.random.Generator) -> SeedStart:
    return SeedStart(0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"unrelated_starts": True, "start_sampler": own_sampler},
            r"start_sampler=own_sampler needs .* unrelated_starts=False",
        ),
        ({"batch_size": 512.0}, r"batch_size must be a whole number or None, got 512.0 \(float\): write batch_size=512\."),
        *(({"group_size": wrong}, "group_size must be a whole number, got") for wrong in (True, np.True_, math.nan, 2.5, [1])),
        *(({"max_grad_norm": wrong}, "max_grad_norm must be a number, got") for wrong in (True, math.nan, "x", [1.0])),
        ({"batch_size": 0}, "batch_size must be at least 1, or None for all steps of the update at once, got 0"),
        ({"learning_rate": -1e-3}, "learning_rate must not be negative, or None for the default of the policy, got -0.001"),
        ({"learning_rate": lambda progress: math.nan}, r"learning_rate\(1.0\) must be a finite number, got nan"),
        ({"learning_rate": lambda progress: 1 / progress}, r"learning_rate\(0.0\) raised ZeroDivisionError"),
        ({"clip_range": lambda: 0.2}, r"clip_range\(1.0\) raised TypeError"),
        (
            {"dynamic_sampling": "False"},
            r"dynamic_sampling must be True or False, or a function, got 'False' \(str\): write dynamic_sampling=False",
        ),
        ({"advantage": "outcomes"}, "Unknown advantage='outcomes'.*Did you mean 'outcome'?"),
        ({"policy_loss": "gspo"}, "Unknown policy_loss='gspo'.* Write ratio_level=\"episode\" with whole groups"),
        (
            {"advantage": lambda rewards, mask: rewards},
            r"advantage is called as advantage\(rewards, mask, \*, gamma.*\*\*others",
        ),
        ({"policy_loss": th.nn.MSELoss}, r"policy_loss is called as .* MSELoss is a class: give a function"),
        ({"start_sampler": lambda: 0}, r"start_sampler is called as start_sampler\(rng\), and .* cannot be"),
        ({"seed": -1}, "seed must be between 0 and 4294967295, or None for no seed, got -1"),
        ({"seed": 10**5000}, "seed must be between"),
        ({"device": "gpu"}, 'device must be "auto", "cpu", "cuda".*got \'gpu\''),
        ({"tensorboard_log": 5}, r"tensorboard_log must be a path, or None for no logging, got 5 \(int\)"),
        (
            {"policy_kwargs": "dict(net_arch=[64])"},
            r"policy_kwargs must be a dictionary of keyword arguments, such as policy_kwargs",
        ),
        ({"group_size": 1}, "group of one"),
        ({"gamma": 1.5}, "gamma must be"),
        ({"target_kl": -1.0}, "target_kl must be positive, or None"),
        ({"policy_loss": "no_such.function"}, r"Unknown policy_loss='no_such.function', must be one of .*, or a function"),
        ({"loss_average": "token"}, "auto, episode, step, or a number, or a function"),
        ({"ratio_level": "sequence"}, "step, episode"),
        ({"kl_estimator": "k4", "kl_coef": 0.1}, "Unknown kl_estimator='k4'"),
        ({"overlong_range": (8, 4)}, "overlong_range must be .* the first one smaller"),
        ({"kl_coef": 0.1, "ref_update_interval": 0}, "ref_update_interval must be at least 1, or None for never"),
        ({"ref_update_interval": 5}, "kl_coef > 0"),
        ({"policy_kwargs": {"log_std_init": math.inf}}, r"policy_kwargs=.*log_std_init.*not finite"),
        ({"policy_kwargs": {"net_archs": [4]}}, r"policy_kwargs=\{'net_archs': \[4\]\} are impossible. TypeError.*net_archs"),
        ({"policy_kwargs": {"net_arch": [-4]}}, r"policy_kwargs=\{'net_arch': \[-4\]\} are impossible"),
    ],
)
def test_what_would_do(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRPO("MlpPolicy", "Pendulum-v1", **wrong)


@pytest.mark.parametrize("name", ["group_size", "n_groups", "n_epochs", "batch_size", "seed"])
def test_whole_numbers_of_numpy_are_saved_as_whole_numbers(name: str, tmp_path: Path) -> None:
    settings = {"group_size": 2, "n_groups": 2, "n_epochs": 1, "policy_kwargs": TINY, name: np.int64(3)}
    GRPO("MlpPolicy", ToyEnv(), **settings).learn(20).save(tmp_path / "model")
    value = getattr(GRPO.load(tmp_path / "model", device="cpu"), name)
    assert value == 3 and type(value) is int


def test_arguments_that_only_ppo_or_the_policy_has() -> None:
    of_ppo = inspect.signature(PPO).parameters.keys() - inspect.signature(GRPO).parameters.keys()
    of_trl = {"beta", "num_generations", "epsilon", "epsilon_high", "num_iterations", "loss_type", "scale_rewards"}
    of_others = {"aux_vf_coef", "lr", "reward_funcs", "max_completion_length"} | of_trl
    assert {*REFUSED_ARGUMENTS} == of_ppo | of_others
    for algorithm in (GRPO, DAPO):
        for name, advice in REFUSED_ARGUMENTS.items():
            message = rf"{algorithm.__name__}.__init__\(\) got an unexpected keyword argument '{name}': {re.escape(advice)}\."
            with pytest.raises(TypeError, match=message):
                algorithm("MlpPolicy", "Pendulum-v1", **{name: 0.5})


def test_settings_are_what_was_given_and_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    model = GRPO("MlpPolicy", ToyEnv(), gamma=0.9, clip_range=0.1, policy_kwargs=TINY, verbose=1, device="cpu")
    settings = model.settings
    given = {"gamma": 0.9, "clip_range": 0.1, "policy_kwargs": TINY, "group_size": 4}
    chosen = {
        "learning_rate": 1e-3,
        "n_epochs": 10,
        "advantage": "gae",
        "vf_coef": 0.0,
        "loss_average": "step",
        "n_steps": 2048,
    }
    assert {name: settings[name] for name in given | chosen} == given | chosen
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Defaults: "))
    assert said == f"Defaults: {', '.join(f'{name}={value!r}' for name, value in chosen.items())}"
    with pytest.raises(TypeError):
        settings["gamma"] = 0.5  # type: ignore[index]


@pytest.mark.parametrize("algorithm", [GRPO, DAPO])
def test_arguments_that_are_misspelled_or_not_named(algorithm: type[GRPO]) -> None:
    for name, meant in {"groupsize": "group_size", "n_step": "n_steps", "batchsize": "batch_size"}.items():
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}': did you mean '{meant}'"):
            algorithm("MlpPolicy", ToyEnv(), **{name: 8})
    message = (
        "takes only policy, env, learning_rate by position: name the others, which are n_steps=2048, batch_size=64 in PPO"
    )
    with pytest.raises(TypeError, match=message):
        algorithm("MlpPolicy", ToyEnv(), 3e-4, 2048, 64)  # type: ignore[misc]


def test_a_parameter_of_a_subclass_is_its_own_business() -> None:
    class Own(GRPO):
        def __init__(self, *args: Any, extra: int = 0, **kwargs: Any):
            self.extra = extra
            super().__init__(*args, **kwargs)

    assert Own("MlpPolicy", ToyEnv(), extra=1.5).extra == 1.5  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^gamma must be a finite number"):
        Own("MlpPolicy", ToyEnv(), gamma=math.nan)


def test_arguments_are_checked_again_when_they_are_set_later() -> None:
    for name, value in {"n_epochs": 0, "gamma": 1.5, "advantage": "vtrace", "ref_update_interval": 5}.items():
        model = GRPO("MlpPolicy", ToyEnv(), n_steps=8, policy_kwargs=TINY)
        setattr(model, name, value)
        with pytest.raises(ValueError, match=name):
            model.learn(1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("10000", r"must be a number, got '10000' \(str\): write total_timesteps=10000"),
        (-5, "must not be negative, got -5"),
        (math.nan, "must be a number, got nan"),
        (True, "must be a number, got True"),
    ],
)
def test_numbers_of_steps(wrong: Any, message: str) -> None:
    model = GRPO("MlpPolicy", ToyEnv(), n_steps=8, policy_kwargs=TINY)
    with pytest.raises(ValueError, match=f"total_timesteps {message}"):
        model.learn(wrong)
    with pytest.raises(TypeError, match=r"learn\(\) got .* 'use_masking': it is an argument of the algorithm, as in GRPO\("):
        model.learn(10, use_masking=True)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="log_interval must be at least 1, or None for no output, got 0"):
        model.learn(10, log_interval=0)
    assert model.learn(0).num_timesteps == 0 and model.learn(1e1).num_timesteps == 16  # as in SB3


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (None, "env must be the id of a registered environment"),
        (5, r"env must be .* got 5 \(int\)"),
        (ToyEnv, r"env must be an environment, got the class ToyEnv: write ToyEnv\(\)"),
        *((each, r"got .*: write make_group_env\(function, n_envs=") for each in (len, [ToyEnv], (ToyEnv(),), DummyVecEnv)),
        (gym.Env(), "got .*: it has no observation_space"),
        ("NoSuchEnv-v0", "env='NoSuchEnv-v0' cannot be made: .*NoSuchEnv"),
        ("", "env='' cannot be made"),
    ],
)
def test_environments(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRPO("MlpPolicy", env)


def test_losses_that_need_something() -> None:
    with pytest.raises(ValueError, match="must be whole and in one minibatch: write n_steps=None"):
        GRPO("MlpPolicy", ToyEnv(), n_groups=4, policy_loss="target_policy")
    with pytest.raises(ValueError, match="actions of a Box have densities"):
        GRPO("MlpPolicy", "Pendulum-v1", n_envs=1, policy_loss="dppo")


def test_messages_do_not_break_off_in_the_middle_of_a_space() -> None:
    space = spaces.Dict({f"part{i}": spaces.Box(np.arange(5.0), np.arange(5.0) + 1, dtype=np.float64) for i in range(3)})
    with pytest.raises(ValueError, match=r"are a Dict with the entries part0, part1, part2: write "):
        GRPO("MlpLstmPolicy", SpacesEnv(space, spaces.Discrete(2)))
    with pytest.raises(ValueError, match=r"and the observations are a Box with the shape \(40,\): write "):
        GRPO("CnnPolicy", SpacesEnv(spaces.Box(np.arange(40.0), np.arange(40.0) + 1, dtype=np.float64), spaces.Discrete(2)))


def test_copies_are_for_ids() -> None:
    for env, n_there in ((ToyEnv(), 1), (DummyVecEnv([ToyEnv, ToyEnv]), 2)):
        with pytest.raises(ValueError, match=f"n_envs=3 only applies .* n_envs={n_there}: .* make_group_env.*n_envs=3"):
            GRPO("MlpPolicy", env, n_envs=3)
        assert GRPO("MlpPolicy", env, n_envs=n_there).n_envs == n_there
    with pytest.raises(ValueError, match="n_envs must be between 1 and 65536"):
        GRPO("MlpPolicy", "CartPole-v1", n_envs=10**9)


def test_make_group_env() -> None:
    for wrong in (0, 2.0, "4", True, 10**9):
        with pytest.raises(ValueError, match=r"^n_envs must be"):
            make_group_env("CartPole-v1", wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^seed must be between 0"):
        make_group_env("CartPole-v1", 2, seed=-1)
    for made in (gym.make("CartPole-v1"), DummyVecEnv([ToyEnv])):
        with pytest.raises(ValueError, match=r"^env_id must be the id .* each copy is made anew"):
            make_group_env(made, 4)  # type: ignore[arg-type]


def test_policies() -> None:
    class Own(ActorCriticPolicy):
        pass

    for wrong, name in (("MlpPolcy", "'MlpPolcy'"), (5, "5"), (Own, ".*Own.*")):
        with pytest.raises(ValueError, match=f"policy={name} is not a policy without a critic network: use one of the names"):
            GRPO(wrong, ToyEnv())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='policy=ActorCriticPolicy has a critic network: write "MlpPolicy"'):
        GRPO(ActorCriticPolicy, ToyEnv())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy", "MlpPolicy", "CnnPolicy"])
def test_the_counterparts_of_policies_of_sb3_contrib(name: str) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    theirs = (contrib.RecurrentPPO if "Lstm" in name else contrib.MaskablePPO).policy_aliases[name]
    with pytest.raises(ValueError, match=f'has a critic network: write "{name}"'):
        GRPO(theirs, ToyEnv())
