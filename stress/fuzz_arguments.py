"""
Calls of GRPO and DAPO with nonsensical arguments: each is refused when the model is created, with an error that names
an argument, or trains.

    python -m stress.fuzz_arguments --cases 2000
"""

import math
import os
import random
import re
import tempfile
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th

from sb3_grpo import DAPO, GRPO, VisitedStates, make_group_env
from sb3_grpo.common.arguments import ARGUMENTS
from stress.common import Tally, parse

# Small, but long enough for a few updates
SMALL: dict[str, Any] = {"n_epochs": 1, "policy_kwargs": {"net_arch": [4]}, "device": "cpu", "verbose": 0}
N_STEPS = 400

# For any argument
STRANGE: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 0.5, 1.0, 2.5, -0.5, 1e-300, 1e30, 2**31 - 1, 2**31, 2**63, 10**400),
    *(True, False, None, "", "512", "nan", "gae", "False", "step", "none", "auto", "no_such.function", "x" * 500, b"gae"),
    *(np.int64(4), np.uint8(4), np.float32(0.5), np.float64("nan"), np.bool_(True), np.array(4), np.array([1, 2])),
    *([], {}, (), [0.1], {"a": 1}, {1: 2}, {"net_arch": [4]}, {"net_arch": "wide"}, {"net_arch": [-4]}, {"no_such": 1}),
    *(Decimal("0.5"), Fraction(1, 2), 1j, th.tensor(0.5), object(), int, slice(3), range(3), float.__add__),
)
# Functions of the remaining progress, where one is allowed
SCHEDULES: tuple[Callable[..., Any], ...] = (
    lambda progress: 1e-3 * progress,
    lambda progress: np.float32(0.1),
    lambda progress: math.nan,
    lambda progress: -0.1,
    lambda progress: "0.1",
    lambda progress: None,
    lambda progress: 1.0 / progress,
    lambda: 0.1,
    lambda progress, step: 0.1,
)
# Valid individually, but perhaps not together
PLAUSIBLE: dict[str, tuple[Any, ...]] = {
    "group_size": (2, 3),
    "n_steps": (None, 1, 8, 64),
    "n_groups": (None, 1, 3),
    "batch_size": (None, 1, 8, 64),
    "gradient_accumulation_steps": (1, 2, 5),
    "gamma": (0, 0.9, 1.0),
    "advantage": ("auto", "gae", "outcome", "return_to_go", "process"),
    "gae_lambda": (0.0, 0.9, 1.0),
    "leave_one_out": (True, False),
    "advantage_scale": ("batch", "group", "none"),
    "loss_average": ("auto", "episode", "step", 1.0, 20),
    "ratio_level": ("step", "episode"),
    "clip_range": (0.0, 0.2, math.inf),
    "clip_range_high": (None, 0.0, 0.3),
    "ent_coef": (0.0, 0.1, -0.1),
    "max_grad_norm": (0.5, math.inf),
    "target_kl": (None, 1e-9, 0.1),
    "kl_coef": (0.0, 0.1),
    "kl_estimator": ("exact", "k1", "k2", "k3", "k3_plain", "k1_in_reward"),
    "ref_update_interval": (None, 1),
    "dynamic_sampling": (True, False),
    "max_sampling_rounds": (1, 4),
    "overlong_filter": (True, False),
    "overlong_range": (None, (5, 10), (5, 20), (10, 5)),
    "unrelated_starts": (True, False),
    "start_sampler": (None, VisitedStates(0.5), VisitedStates(1.0)),
    "use_sde": (True, False),
    "sde_sample_freq": (-1, 4),
}
# For the policy
POLICY_KWARGS: tuple[dict[str, Any], ...] = (
    *(
        {"net_arch": arch}
        for arch in ([4], [], [-4], [0.5], "wide", 8, [None], {"pi": [4], "vf": [4]}, {"pi": "x"}, {"qf": [4]})
    ),
    *({"activation_fn": value} for value in (th.nn.ReLU, "relu", th.nn.ReLU(), None, math.nan, int)),
    *({"log_std_init": value} for value in (0.0, math.nan, math.inf, "0", None, [0.0])),
    *({"optimizer_class": value} for value in (th.optim.SGD, "adam", None, int)),
    *({"optimizer_kwargs": value} for value in ({"eps": 1e-5}, {"eps": "x"}, {"eps": math.nan}, {"no_such": 1}, 5)),
    *({"features_extractor_class": value} for value in (None, int, "cnn")),
    *({"normalize_observations": value} for value in (True, False, "yes", None)),
    *({"ortho_init": True}, {"squash_output": True}, {"full_std": 1}, {"no_such": 1}, {"use_sde": True}, {"action_space": 1}),
)
# Arguments of another algorithm, or of none
FOREIGN = ("vf_coef", "clip_range_vf", "normalize_advantage", "rollout_buffer_class", "use_rms_prop", "n_step", "buffer_size")


class Case(NamedTuple):
    """
    A call.

    :param kind: What is unusual about it
    :param names: The unusual arguments
    :param algorithm: The class that is called
    :param env: An id, or a function that creates one
    :param kwargs: Keyword arguments
    """

    kind: str
    names: tuple[str, ...]
    algorithm: type[GRPO]
    env: Any
    kwargs: dict[str, Any]


def make_case(rng: random.Random) -> Case:
    """
    :param rng: Random generator
    :return: A call
    """
    algorithm, env = rng.choice((GRPO, DAPO)), rng.choice(("CartPole-v1", "CartPole-v1", "Pendulum-v1"))
    kinds = {"one": 45, "several": 30, "schedule": 5, "policy_kwargs": 6, "foreign": 3, "env": 6, "policy": 3}
    kind = rng.choices([*kinds], [*kinds.values()])[0]
    if kind == "one":
        name = rng.choice([*ARGUMENTS])
        return Case(kind, (name,), algorithm, env, {name: rng.choice(STRANGE)})
    if kind == "several":
        names = tuple(rng.sample([*PLAUSIBLE], rng.randint(2, 6)))
        return Case(kind, names, algorithm, env, {name: rng.choice(PLAUSIBLE[name]) for name in names})
    if kind == "schedule":
        name = rng.choice(("learning_rate", "clip_range", "clip_range_high"))
        return Case(kind, (name,), algorithm, env, {name: rng.choice(SCHEDULES)})
    if kind == "policy_kwargs":
        return Case(kind, (kind,), algorithm, env, {kind: rng.choice(POLICY_KWARGS)})
    if kind == "foreign":
        name = rng.choice(FOREIGN)
        return Case(kind, (name,), algorithm, env, {name: rng.choice(STRANGE)})
    if kind == "env":
        strange = rng.choice((None, 5, "NoSuchEnv-v0", "no such env", "", [], b"CartPole-v1", gym.Env))
        return Case(kind, ("env",), algorithm, lambda: strange, {})
    return Case(kind, ("policy",), algorithm, env, {"policy": rng.choice(STRANGE)})


def try_case(case: Case) -> str:
    """
    :param case: A call
    :return: ``"refused"`` or ``"trains"``, as promised; otherwise what went wrong
    """
    env = case.env() if callable(case.env) else make_group_env(case.env, 2)
    kwargs = {"policy": "MlpPolicy", **SMALL, **case.kwargs}
    try:
        model = case.algorithm(kwargs.pop("policy"), env, **kwargs)
    except (TypeError, ValueError) as error:
        # SB3 writes gSDE for use_sde
        named = "gSDE" in str(error) or any(re.search(rf"(?<!\w){name}(?!\w)", str(error)) for name in case.names)
        return "refused" if named else f"does not name it: {type(error).__name__}: {error}"
    except Exception as error:
        return f"no clear error: {type(error).__name__}: {error}"
    try:
        model.learn(N_STEPS, callback=lambda local_vars, _: local_vars["self"].num_timesteps < 4 * N_STEPS)
    except Exception as error:
        return f"only while training: {type(error).__name__}: {error}"
    finally:
        model.get_env().close()  # type: ignore[union-attr]
    finite = all(bool(each.isfinite().all()) for each in model.policy.parameters())
    return "trains" if finite else "parameters that are not finite"


def main() -> None:
    """Try the calls, and save the results."""
    n_cases, seed = parse(__doc__, "--cases", 2000)
    rng, tally = random.Random(seed), Tally()
    # One of the arguments may be a log folder
    os.chdir(tempfile.mkdtemp())
    for _ in range(n_cases):
        case = make_case(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = try_case(case)
        tally.add(case.kind, outcome, algorithm=case.algorithm.__name__, given=f"{case.kwargs}"[:200])
    tally.write(
        "arguments",
        "constructor calls with random arguments",
        "it trains, or is rejected before anything runs, by an error that names an argument",
    )


if __name__ == "__main__":
    main()
