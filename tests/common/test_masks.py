"""Action masks: nothing that is not allowed is done, and probabilities are those of what is allowed."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from sb3_grpo import DAPO, GRPO, VisitedStates, check_starts
from sb3_grpo.common.acting import Actor
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.groups.faults import EnvironmentFault
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.utils.action_masks import ask_for_masks, n_choices, offers_masks

SPACES = {
    "discrete": spaces.Discrete(6),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(3),
}
SMALL: dict[str, Any] = {"device": "cpu", "seed": 0, "group_size": 2, "batch_size": 32, "n_epochs": 2}


class Shop(gym.Env):
    """Some goods are sold out, others at each step. Asking for one of these is an error."""

    def __init__(self, action_space: spaces.Space, observes_masks: bool = False, reads_images: bool = False):
        self.action_space = action_space
        self.sizes = n_choices(action_space)
        shape = (3, 36, 36) if reads_images else (len(self.sizes),)
        view = spaces.Box(0, 255, shape, np.uint8) if reads_images else spaces.Box(0.0, 1.0, shape)
        self.observes_masks = observes_masks
        masks = {"goods": view, "mask": spaces.MultiBinary(sum(self.sizes))}
        self.observation_space = spaces.Dict(masks) if observes_masks else view
        self.view = view
        self.allowed = np.ones(sum(self.sizes), bool)

    def _observe(self) -> Any:
        # In place, as an environment may do
        self.allowed[:] = self.np_random.random(len(self.allowed)) < 0.4
        for begin, size in zip(np.cumsum([0, *self.sizes[:-1]]), self.sizes, strict=True):
            self.allowed[begin + self.np_random.integers(size)] = True
        drawn = self.np_random.random(self.view.shape) * self.view.high
        view = drawn.astype(self.view.dtype)
        return {"goods": view, "mask": self.allowed.astype(np.int8)} if self.observes_masks else view

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        parts = np.ravel(action).astype(int)
        chosen = np.cumsum([0, *self.sizes[:-1]]) + parts
        if not self.allowed[chosen].all():
            raise ValueError(f"{action} is sold out")
        return self._observe(), float(parts.sum()), self.time == 8, False, {}


class MaskedShop(Shop):
    """Says what is sold."""

    def action_masks(self) -> np.ndarray:
        return self.allowed


def make_shop(
    name: str = "discrete", n_envs: int = 4, vec_env_cls: Any = DummyVecEnv, cls: Any = MaskedShop, **kwargs: Any
) -> VecEnv:
    settings = {"action_space": SPACES[name], **kwargs}
    return make_group_env(cls, n_envs=n_envs, seed=0, vec_env_cls=vec_env_cls, env_kwargs=settings)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize(
    "settings",
    [
        {"n_steps": 16},
        {"n_groups": 4, "kl_coef": 0.1, "ent_coef": 0.01},
        {"n_groups": 4, "kl_coef": 0.1, "kl_estimator": "k1_in_reward"},
    ],
    ids=["steps", "groups", "kl_in_reward"],
)
def test_only_what_is_allowed_is_done(name: str, settings: dict[str, Any]) -> None:
    model = GRPO("MlpPolicy", make_shop(name), **SMALL, **settings).learn(300)
    assert model._n_updates > 0


@pytest.mark.parametrize(
    ("policy", "kwargs"), [("CnnPolicy", {"reads_images": True}), ("MultiInputPolicy", {"observes_masks": True})]
)
def test_images_dicts_and_processes(policy: str, kwargs: dict[str, Any]) -> None:
    env = make_shop("multi_discrete", n_envs=2, vec_env_cls=SubprocVecEnv, **kwargs)
    assert GRPO(policy, env, **SMALL, n_steps=16).learn(64)._n_updates > 0
    env.close()


@pytest.mark.parametrize("name", ["multi_discrete", "multi_binary"])
def test_masks_in_parts_as_spaces_sample_with_them(name: str) -> None:
    class InParts(MaskedShop):
        def action_masks(self) -> Any:
            return tuple(part.astype(np.int8) for part in np.split(self.allowed, np.cumsum(self.sizes)[:-1]))

    model = GRPO("MlpPolicy", make_shop(name, cls=InParts), **SMALL, n_steps=16).learn(300)
    assert model._n_updates > 0
    env = InParts(SPACES[name])
    obs, _ = env.reset(seed=0)
    for deterministic in (True, False):
        action, _ = model.predict(obs, deterministic=deterministic, action_masks=env.action_masks())
        obs, *_ = env.step(action)
    assert "sold out" not in str(check_starts(lambda: InParts(SPACES[name]), 1, 8, verbose=0))


def test_masks_can_be_ignored() -> None:
    with pytest.raises(EnvironmentFault, match="is sold out"):
        GRPO("MlpPolicy", make_shop(), **SMALL, n_steps=16, use_masking=False).learn(300)


@pytest.mark.parametrize("estimator", ["exact", "k1_in_reward"])
@pytest.mark.parametrize("name", SPACES)
def test_the_update_and_the_reference_see_what_the_rollout_saw(name: str, estimator: str) -> None:
    once = {**SMALL, "n_epochs": 1, "batch_size": None, "kl_coef": 0.1, "kl_estimator": estimator}
    model = GRPO("MlpPolicy", make_shop(name), **once, n_steps=16, learning_rate=0.0).learn(64)
    values = model.logger.name_to_value
    assert values["train/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert values["train/kl_ref"] == pytest.approx(0.0, abs=1e-5)
    assert values["train/entropy"] < model.policy.get_distribution(th.zeros(1, len(n_choices(SPACES[name])))).entropy().item()


@pytest.mark.parametrize("name", SPACES)
def test_probabilities_are_those_of_sb3_contrib(name: str) -> None:
    pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution

    space = SPACES[name]
    policy = ActorPolicy(spaces.Box(0.0, 1.0, (4,)), space, lambda _: 1e-3)
    rng, obs = np.random.default_rng(0), th.rand(50, 4)
    masks = rng.random((50, sum(n_choices(space)))) < 0.5
    for begin, size in zip(np.cumsum([0, *n_choices(space)[:-1]]), n_choices(space), strict=True):
        masks[np.arange(50), begin + rng.integers(size, size=50)] = True
    mine = policy.get_distribution(obs, th.as_tensor(masks))
    logits = policy.action_net(policy._latent(obs))
    if name == "multi_binary":
        # There, each bit has two logits
        logits = th.stack([th.zeros_like(logits), logits], dim=2).flatten(1)
    contribs = make_masked_proba_distribution(space).proba_distribution(logits)
    contribs.apply_masking(masks)
    actions = mine.sample()
    th.testing.assert_close(mine.log_prob(actions), contribs.log_prob(actions))
    th.testing.assert_close(mine.entropy(), contribs.entropy())
    assert (mine.mode() == contribs.mode()).all()


def test_evaluation_as_in_sb3_contrib(tmp_path: Any) -> None:
    pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
    from sb3_contrib.common.maskable.evaluation import evaluate_policy
    from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
    from sb3_contrib.common.wrappers import ActionMasker

    def wrapped() -> gym.Env:
        return ActionMasker(Shop(SPACES["discrete"]), lambda env: env.unwrapped.allowed)

    env = make_group_env(wrapped, n_envs=4, seed=0)
    assert is_masking_supported(env)
    callback = MaskableEvalCallback(make_group_env(wrapped, n_envs=1, seed=1), eval_freq=8, n_eval_episodes=2, verbose=0)
    model: Any = DAPO("MlpPolicy", env, **SMALL, n_steps=16).learn(128, callback=callback)
    assert callback.last_mean_reward > 0
    obs = env.reset()
    masks = get_action_masks(env)
    assert masks[np.arange(4), model.predict(obs, action_masks=masks)[0]].all()
    assert masks[0, model.predict(obs[0], action_masks=masks[0])[0]]
    model.save(tmp_path / "model")
    loaded: Any = DAPO.load(tmp_path / "model")
    expected = model.predict(obs, action_masks=masks, deterministic=True)[0]
    assert (loaded.predict(obs, action_masks=masks, deterministic=True)[0] == expected).all()
    with pytest.raises(ValueError, match=r"action_masks has the shape \(6,\), and for 4 observations .* it is \(4, 6\)"):
        model.predict(obs, action_masks=masks[0])
    with pytest.raises(ValueError, match="allows no action for observation 0 of 4"):
        model.predict(obs, action_masks=np.zeros((4, 6)))
    with pytest.raises(ValueError, match="mixing Gym API with SB3 VecEnv API"):
        model.predict((obs, {}), action_masks=masks)
    assert evaluate_policy(loaded, env, n_eval_episodes=4, warn=False)[0] > 0


@pytest.mark.parametrize("name", SPACES)
def test_evaluations_only_do_what_is_allowed(name: str) -> None:
    model: Any = GRPO("MlpPolicy", make_shop(name), **SMALL, n_steps=16)
    env = make_shop(name)
    assert evaluate_policy(Actor(model, env), env, n_eval_episodes=8, deterministic=False)[0] > 0  # type: ignore[arg-type]
    model.use_masking = False
    with pytest.raises(ValueError, match="is sold out"):
        evaluate_policy(Actor(model, env), env, n_eval_episodes=8, deterministic=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "key"), [("discrete", ""), ("multi_binary", ""), ("multi_discrete", "action_masks")])
def test_masks_of_environments_are_exported(name: str, key: str, tmp_path: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")

    class Keyed(MaskedShop):
        """Also shows other masks under the name of the input."""

        def __init__(self, action_space: spaces.Space):
            super().__init__(action_space)
            if key:
                self.observation_space = spaces.Dict({"goods": self.view, key: spaces.MultiBinary(2)})

        def _observe(self) -> Any:
            goods = super()._observe()
            return {"goods": goods, key: np.ones(2, np.int8)} if key else goods

    env = make_shop(name, n_envs=2, cls=Keyed)
    model = GRPO("MultiInputPolicy" if key else "MlpPolicy", env, **SMALL, n_steps=16).learn(64)
    model.save(tmp_path / "model", format="safe")
    loaded = GRPO.load(tmp_path / "model", trusted=False)
    loaded.export_onnx(tmp_path / "shop.onnx")
    session = runtime.InferenceSession(tmp_path / "shop.onnx")
    obs: Any = env.reset()
    inputs = [each.name for each in session.get_inputs()]
    assert inputs == (["action_masks", "goods", "action_masks_"] if key else ["observation", "action_masks"])
    for _ in range(20):
        masks = np.stack(env.env_method("action_masks"))
        (actions,) = session.run(None, {**(obs if key else {inputs[0]: obs}), inputs[-1]: masks})
        assert (actions == model.predict(obs, deterministic=True, action_masks=masks)[0]).all()
        obs, *_ = env.step(actions)  # raises an error at what is forbidden


def test_prediction_without_the_masks_of_the_training_warns(tmp_path: Any) -> None:
    for policy in ("MlpPolicy", "MlpLstmPolicy"):
        env = make_shop(n_envs=1)
        model = GRPO(policy, env, **SMALL, n_steps=16).learn(32)
        model.save(tmp_path / "model")
        model.policy.save(tmp_path / "policy")
        alone = type(model.policy).load(tmp_path / "policy")
        for each in (model, GRPO.load(tmp_path / "model"), alone):
            with pytest.warns(UserWarning, match=r"trained with action masks and is used without.*Actor\(model"):
                each.predict(env.reset())
        evaluate_policy(Actor(model, env), env, n_eval_episodes=1)  # type: ignore[arg-type]
    GRPO("MlpPolicy", make_shop(cls=Shop), **SMALL).predict(env.reset())


def test_masks_that_cannot_be_used() -> None:
    class Closed(MaskedShop):
        def action_masks(self) -> np.ndarray:
            return self.allowed & (self.time < 3)

    class WithoutMasks(ActorPolicy):
        def get_distribution(self, obs: Any) -> Any:  # type: ignore[override]
            return super().get_distribution(obs)

    class Weighted(MaskedShop):
        def __init__(self, action_space: spaces.Space):
            super().__init__(action_space)
            self.action_space = spaces.Box(0.0, 1.0, (6,))

    settings = {**SMALL, "n_steps": 16}
    mixed = DummyVecEnv([lambda: MaskedShop(SPACES["discrete"]), lambda: Shop(SPACES["discrete"])])
    with pytest.raises(ValueError, match=r"copy 1 has no method action_masks\(\), and others do"):
        GRPO("MlpPolicy", mixed, **settings).learn(64)
    with pytest.raises(
        ValueError, match=r"Environment copy 0 \(.*Closed\), step 3 of its episode: action_masks\(\) allows no action"
    ):
        GRPO("MlpPolicy", make_shop(cls=Closed), **settings).learn(64)
    for masks, message in (
        (
            lambda self: np.ones(7),
            r"of Returns returns .* \(\[7\] entries\) .* Actions of Discrete\(6\) .* need \[6\]",
        ),
        (lambda self: None, r"action_masks\(\) of Returns returns \[None\] \(\[1\] entries\)"),
        (lambda self: None if self.time else self.allowed, r"action_masks\(\) of Returns returns \[None\]"),
        (lambda self: ([1, 0], [1]), r"of Returns returns \[1, 0, 1\] \(\[2, 1\] entries\) for copy 0 .* of the shape \(6,\)"),
        (lambda self: ["yes"] * 6, r"returns \['yes', .* \(\[6\] entries\).* need \[6\] entries, True or False"),
        (lambda self: 2 * self.allowed, r"returns \[.*2.*\] \(\[6\] entries\).* need \[6\] entries, True or False"),
        (lambda self: np.where(self.allowed, 0.0, -np.inf), r"returns \[.*-inf.* need \[6\] entries, True or False"),
        (property(lambda self: self.allowed), r"action_masks of Returns is no method: write def action_masks\(self\)"),
    ):
        returns: Any = type("Returns", (Shop,), {"action_masks": masks})
        with pytest.raises(ValueError, match=message):
            GRPO("MlpPolicy", make_shop(cls=returns), **settings).learn(64)
    with pytest.raises(ValueError, match=r"actions of Box.* have no masks.* use_masking=False"):
        GRPO("MlpPolicy", make_shop(cls=Weighted), **settings).learn(64)
    with pytest.raises(ValueError, match=r"WithoutMasks.get_distribution does not take any: .* use_masking=False"):
        GRPO(WithoutMasks, make_shop(), **settings).learn(64)


@pytest.mark.parametrize("error", [TypeError, ValueError, KeyError, AttributeError])
def test_masks_that_fail_before_the_first_reset_are_not_ignored(error: type[Exception]) -> None:
    class Unready(Shop):
        @property
        def action_masks(self) -> np.ndarray:
            raise error("no board yet")

    model = GRPO("MlpPolicy", make_shop(cls=Unready), **SMALL, n_steps=16)
    with pytest.raises((TypeError, ValueError), match=r"no board yet|of Unready is no method: write def action_masks\(self\)"):
        model.learn(64)


def test_parts_of_a_mask_in_another_order() -> None:
    class Swapped(MaskedShop):
        def action_masks(self) -> Any:
            return [np.ones(4), np.ones(3)]

    with pytest.raises(ValueError, match=r"returns .* \(\[4, 3\] entries\) for copy 0 .* need \[3, 4\] entries"):
        GRPO("MlpPolicy", make_shop("multi_discrete", cls=Swapped), **SMALL, n_steps=16).learn(64)


def test_none_in_place_of_masks() -> None:
    """A base class may have ``action_masks = None`` for its subclasses to override."""
    assert not offers_masks(make_shop(cls=type("Unmasked", (Shop,), {"action_masks": None})))


@pytest.mark.parametrize("dtype", [bool, np.int8, float])
def test_masks_of_all_copies_in_one_array(dtype: Any) -> None:
    class AllAtOnce(DummyVecEnv):
        factor = 1

        def action_masks(self) -> np.ndarray:
            masks = np.stack([env.unwrapped.allowed for env in self.envs]).astype(dtype)  # type: ignore[attr-defined]
            masks[-1] *= np.array(self.factor, dtype)
            return masks

    env: Any = make_shop(cls=Shop, vec_env_cls=AllAtOnce)
    env.reset()
    masks = ask_for_masks(env)
    assert masks.dtype == bool and (masks == env.action_masks()).all()
    env.envs[0].unwrapped.allowed[:] = False
    assert masks[0].any()  # a copy
    env.factor = 3
    if dtype is not bool:
        with pytest.raises(ValueError, match=r"for copy 3 of 4. .* need \[6\] entries, True or False"):
            ask_for_masks(env)


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_observations_as_tuples(policy: str) -> None:
    model = GRPO(policy, make_shop("multi_discrete"), **SMALL, n_steps=16)
    state = model.predict(np.array([0.1, 0.2]), deterministic=True)[1]
    for given in ((0.5, 0.7), [0.5, 0.7]):
        action, next_state = model.predict(given, state, np.zeros(1), deterministic=True)  # type: ignore[arg-type]
        expected = model.predict(np.array([0.5, 0.7]), state, np.zeros(1), deterministic=True)
        assert (action == expected[0]).all() and np.array_equal(next_state or (), expected[1] or ())
    with pytest.raises(ValueError, match="Unexpected observation shape"):
        model.predict(())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mixing Gym API with SB3 VecEnv API"):
        model.predict((np.array([0.5, 0.7]), {}))  # type: ignore[arg-type]


def test_masks_in_parts_of_other_sizes_are_said() -> None:
    model = GRPO("MlpPolicy", make_shop("multi_discrete"), **SMALL, n_steps=16)
    with pytest.raises(ValueError, match=r"for 1 observations and actions of MultiDiscrete.* it is \(1, 7\)"):
        model.predict(np.zeros(2), action_masks=([1, 0], [1]))  # type: ignore[arg-type, call-arg]


def test_an_environment_that_is_one_object() -> None:
    class AllAtOnce(DummyVecEnv):
        n_asked = 0

        def action_masks(self) -> list[np.ndarray]:
            self.n_asked += 1
            return [env.unwrapped.allowed for env in self.envs]  # type: ignore[attr-defined]

    env = make_shop(cls=Shop, vec_env_cls=AllAtOnce)
    GRPO("MlpPolicy", env, **SMALL, n_steps=16).learn(64)
    assert env.n_asked >= 16  # type: ignore[attr-defined]


class StatefulShop(MaskedShop):
    """Can begin in mid-episode."""

    def get_state(self) -> Any:
        return self.time, self.allowed.copy(), self.np_random.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.time, self.allowed, self.np_random.bit_generator.state = state[0], state[1].copy(), state[2]


def test_starts_are_checked_with_what_is_allowed() -> None:
    for name in SPACES:
        checked = check_starts(lambda name=name: StatefulShop(SPACES[name]))
        assert checked.is_exact() and "sold out" not in str(checked)
    env = make_shop(cls=StatefulShop)
    model = GRPO("MlpPolicy", env, **SMALL, n_groups=4, start_sampler=VisitedStates(0.8)).learn(600)
    assert model._n_updates > 0
