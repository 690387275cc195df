import itertools
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from toy_envs import SpacesEnv, parameters_of

from sb3_grpo.common import on_group_algorithm
from sb3_grpo.common.buffers import GroupRolloutBuffer
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.common.sampling import NOISE_STEPS, renew_noise
from sb3_grpo.dapo import DAPO
from sb3_grpo.envs import FloatObservation
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env

SMALL: dict[str, Any] = {"group_size": 3, "n_groups": 2, "n_epochs": 2, "device": "cpu", "seed": 0}
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)

OBSERVATION_SPACES = {
    "vector": VECTOR,
    "matrix": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    "float64": spaces.Box(-1.0, 1.0, (3,), np.float64),
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(4),
    "image": IMAGE,
    "dict": spaces.Dict({"vector": VECTOR, "discrete": spaces.Discrete(3)}),
    "image_dict": spaces.Dict({"image": IMAGE, "vector": VECTOR, "binary": spaces.MultiBinary(2)}),
}
ACTION_SPACES = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(-2.0, 1.0, (2,), np.float32),
    "box_matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "box_float64": spaces.Box(-1.0, 1.0, (2,), np.float64),
    "box_scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    # Not what the policy computes: the environment gets its own type
    "box_float16": spaces.Box(-1.0, 1.0, (2,), np.float16),
    "box_int": spaces.Box(-3, 3, (2,), np.int64),
    "box_bool": spaces.Box(0, 1, (2,), np.bool_),
    "multi_discrete_int32": spaces.MultiDiscrete([2, 3], dtype=np.int32),
}


def policy_for(space: spaces.Space) -> str:
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if space is IMAGE else "MlpPolicy"


def make_model(observation_space: spaces.Space, action_space: spaces.Space, n_envs: int = 2, **kwargs: Any) -> Any:
    length = kwargs.pop("length", 5)
    env = DummyVecEnv([lambda: SpacesEnv(observation_space, action_space, length=length)] * n_envs)
    algo = kwargs.pop("algo", GRPO)
    policy_kwargs = {"net_arch": [8], **kwargs.pop("policy_kwargs", {})}
    return algo(policy_for(observation_space), env, policy_kwargs=policy_kwargs, **{**SMALL, **kwargs})


@pytest.mark.parametrize("observation", OBSERVATION_SPACES)
@pytest.mark.parametrize("action", ["discrete", "box"])
def test_observation_spaces(observation: str, action: str) -> None:
    check_space(OBSERVATION_SPACES[observation], ACTION_SPACES[action])


@pytest.mark.parametrize("observation", ["vector", "dict"])
@pytest.mark.parametrize("action", ACTION_SPACES)
def test_action_spaces(observation: str, action: str) -> None:
    check_space(OBSERVATION_SPACES[observation], ACTION_SPACES[action], algo=DAPO if observation == "dict" else GRPO)


@pytest.mark.parametrize("space", [spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3], start=[0, -1])])
def test_spaces_that_do_not_start_at_0(space: spaces.Space) -> None:
    """SB3 would send actions from 0, which mean something else."""
    for observation, action in ((VECTOR, space), (space, spaces.Discrete(2)), (spaces.Dict({"a": space}), spaces.Discrete(2))):
        with pytest.raises(ValueError, match=r"start=.* counts from 0"):
            make_model(observation, action)


def check_space(observation_space: spaces.Space, action_space: spaces.Space, **kwargs: Any) -> None:
    """The environment itself checks that actions are in their space."""
    model = make_model(observation_space, action_space, **kwargs)
    before = parameters_of(model)
    model.learn(60)
    after = parameters_of(model)
    assert after.isfinite().all()
    assert not th.equal(before, after)
    # The log probabilities of the last rollout are those of the stored actions
    assert model.batch.old_log_prob[model.batch.rows].isfinite().all()
    assert model.batch.actions.shape[1:] == (
        () if isinstance(action_space, spaces.Discrete) else (action_space.sample().size,)
    )

    env = model.get_env()
    action, state = model.predict(env.reset(), deterministic=True)
    assert state is None
    assert action.shape == (2, *action_space.shape)  # type: ignore[misc]
    single = SpacesEnv(observation_space, action_space)
    action, _ = model.predict(single.reset(seed=0)[0] if policy_for(observation_space) == "MlpPolicy" else first_of(env))
    assert action_space.contains(action)
    evaluate_policy(model, env, n_eval_episodes=2, warn=False)


def first_of(env: Any) -> Any:
    observation = env.reset()
    return {key: value[0] for key, value in observation.items()} if isinstance(observation, dict) else observation[0]


MATRIX = spaces.MultiDiscrete([[2, 3], [4, 5]])
# In the place of these, Gymnasium's wrapper gives a vector
FLATTENED = {
    "Text": spaces.Text(3),
    "OneOf": spaces.OneOf([VECTOR, spaces.Discrete(2)]),
    "Tuple": spaces.Tuple([VECTOR, spaces.Discrete(2)]),
    "Dict.*'b'": spaces.Dict({"a": spaces.Dict({"b": VECTOR})}),
    "MultiDiscrete": MATRIX,
}


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        *((space, f"observations.* {name}.*FlattenObservation") for name, space in FLATTENED.items()),
        (spaces.Sequence(VECTOR), "observations are Sequence.* pad them"),
        (spaces.Dict({"a": spaces.Graph(VECTOR, None)}), r"entry 'a' are Graph.* pad them"),
        (spaces.Dict({}), "without an entry"),
        (spaces.Box(-1.0, 1.0, ()), r"no axis: write shape=\(1,\)"),
        (spaces.Box(-1.0, 1.0, (0,)), "are empty"),
        (spaces.Box(0.0, 1.0, (3,), np.longdouble), "no numbers of the type .* dtype=np.float32"),
        (spaces.Dict({"a.b": VECTOR}), "'a.b'.* another key"),
        (spaces.Dict({"": VECTOR}), "''.* another key"),
        (spaces.Dict({"keys": VECTOR}), "'keys'.* another key"),
        (spaces.Dict({"image": spaces.Box(0, 255, (40, 35, 3), np.uint8)}), "'image' have 40 x 35 pixels, .* 36 x 36"),
    ],
)
def test_observations_that_cannot_be_used(observation: spaces.Space, message: str) -> None:
    policy = policy_for(observation)
    for make in (
        lambda: SpacesEnv(observation, spaces.Discrete(2)),
        lambda: make_group_env(lambda: SpacesEnv(observation, spaces.Discrete(2)), 2),
    ):
        with pytest.raises(ValueError, match=f"(?s){message}") as error:
            GRPO(policy, make(), policy_kwargs={"net_arch": [8]}, **SMALL)
        assert "impossible" not in str(error.value), "it is not a matter of policy_kwargs"


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (spaces.Text(3), "are a Text.*one of Box, Discrete, MultiDiscrete, MultiBinary"),
        (spaces.Dict({"a": VECTOR}), "are Dict.*one of Box, Discrete"),
        (MATRIX, r"write MultiDiscrete\(nvec=\[2, 3, 4, 5\]\)"),
        (spaces.MultiBinary([2, 3]), r"write MultiBinary\(6\)"),
        (spaces.Box(-np.inf, np.inf, (2,)), "need finite bounds"),
    ],
)
def test_actions_that_cannot_be_used(action: spaces.Space, message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)The actions .*{message}"):
        make_model(VECTOR, action)


@pytest.mark.parametrize(
    ("policy", "observation", "message"),
    [
        ("MlpPolicy", OBSERVATION_SPACES["dict"], "MultiInputPolicy"),
        (ActorPolicy, OBSERVATION_SPACES["dict"], 'write "MultiInputPolicy"'),
        ("MultiInputPolicy", VECTOR, r'these are Box.*: write "MlpPolicy"'),
        ("MultiInputPolicy", IMAGE, r'these are Box.*: write "CnnPolicy"'),
        ("MultiInputLstmPolicy", VECTOR, 'MultiInputLstmPolicy is for .*: write "MlpLstmPolicy"'),
        ("MlpLstmPolicy", OBSERVATION_SPACES["dict"], 'write "MultiInputLstmPolicy"'),
        ("CnnPolicy", VECTOR, 'CnnPolicy is for images, and .* Box.*: write "MlpPolicy"'),
        ("CnnLstmPolicy", VECTOR, 'CnnLstmPolicy is for images, and .* Box.*: write "MlpLstmPolicy"'),
        ("CnnPolicy", spaces.Box(0, 255, (7, 7, 3), np.uint8), "7 x 7 pixels, and NatureCNN needs at least 36 x 36"),
    ],
)
def test_policies_for_other_observations(policy: Any, observation: spaces.Space, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRPO(policy, SpacesEnv(observation, spaces.Discrete(2)), **SMALL)


@pytest.mark.parametrize(("frequency", "renewed"), [(-1, [0]), (2, [0, 2, 4])])
def test_sde_noise_is_renewed_at_the_beginning_and_when_it_is_due(frequency: int, renewed: list[int]) -> None:
    model = make_model(VECTOR, ACTION_SPACES["box"], use_sde=True, sde_sample_freq=frequency, policy_kwargs={"net_arch": [8]})
    found = []
    for n_steps in range(5):
        before = model.policy.action_dist.exploration_mat.clone()
        renew_noise(model, n_steps, 4)
        if not th.equal(model.policy.action_dist.exploration_mat, before):
            found.append(n_steps)
    assert found == renewed


@pytest.mark.parametrize("kwargs", [{}, {"use_expln": True}, {"full_std": False}])
def test_sde_noise_has_the_width_that_was_learned(kwargs: dict[str, bool]) -> None:
    policy = make_model(VECTOR, ACTION_SPACES["box"], use_sde=True, policy_kwargs={"net_arch": [8], **kwargs}).policy
    with th.no_grad():
        policy.log_std.copy_(th.linspace(-2.0, 1.0, policy.log_std.numel()).reshape(policy.log_std.shape))
    policy.reset_noise(20_000)
    noise: Any = policy.action_dist
    std = noise.get_std(policy.log_std).detach()
    assert noise.exploration_matrices.shape == (20_000, *std.shape)
    th.testing.assert_close(noise.exploration_matrices.std(dim=0), std, rtol=0.05, atol=0.0)
    assert (noise.exploration_matrices.mean(dim=0).abs() < 0.05 * std).all()
    assert noise.exploration_mat.shape == std.shape and not (noise.exploration_mat == noise.exploration_matrices).all(-1).any()


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.filterwarnings("ignore:The training environment was reset")
def test_sde_noise_stays_during_an_episode(n_envs: int, resets: bool) -> None:
    seen: list[tuple[list[int], th.Tensor]] = []

    class Noise(ActorPolicy):
        def env_actions(self, actions: np.ndarray) -> np.ndarray:
            noise: Any = self.action_dist
            matrices = noise.exploration_mat[None] if n_envs == 1 else noise.exploration_matrices
            seen.append((model.collector.time.tolist(), matrices.detach().clone()))
            return super().env_actions(actions)

    def make(_: str, *args: Any, **kwargs: Any) -> GRPO:
        return GRPO(Noise, *args, **kwargs)

    model = make_model(VECTOR, ACTION_SPACES["box"], n_envs, algo=make, length=None, use_sde=True, group_size=2)

    class Reset(BaseCallback):
        def _on_step(self) -> bool:
            if resets and self.n_calls == 1:
                self.training_env.reset()
            return True

    model.learn(n_envs + 1, callback=Reset())  # a single rollout
    assert n_envs == 1 or resets or any(0 in times and any(times) for times, _ in seen)
    for (_, before), (times, now) in itertools.pairwise(seen):
        for copy, time in enumerate(times):
            assert th.equal(before[copy], now[copy]) == (time > 0)


@pytest.mark.parametrize("action", ACTION_SPACES)
def test_sampled_actions_follow_the_distribution(action: str) -> None:
    policy = make_model(VECTOR, ACTION_SPACES[action]).policy
    with th.no_grad():
        policy.action_net.bias += th.linspace(-1.0, 1.0, len(policy.action_net.bias))
        if hasattr(policy, "log_std"):
            policy.log_std += th.linspace(-1.5, 0.5, len(policy.log_std))
        observations = th.full((20_000, 3), 0.5)
        sampled = th.as_tensor(policy.action_sampler()(observations.numpy())[0])
        expected = policy.get_distribution(observations).sample().reshape(sampled.shape)
    assert sampled.shape[1:] == ACTION_SPACES[action].shape
    assert sampled.dtype == expected.dtype
    for moment in (1, 2):
        expected_mean = (expected.double() ** moment).mean(0)
        th.testing.assert_close((sampled.double() ** moment).mean(0), expected_mean, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("action", ["discrete", "box"])
def test_noise_is_new_at_every_step(action: str) -> None:
    policy = make_model(VECTOR, ACTION_SPACES[action]).policy
    sample = policy.action_sampler()
    observations = np.zeros((200, 3), np.float32)
    with th.inference_mode():
        drawn = [sample(observations)[0].reshape(200, -1).tobytes() for _ in range(2 * NOISE_STEPS + 1)]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("use_sde", [False, True])
@pytest.mark.parametrize("width", [8, 600])  # the small network in NumPy, the other one in PyTorch
def test_observations_in_double_precision_where_the_space_says_single(use_sde: bool, width: int) -> None:
    """A SubprocVecEnv does not convert them."""
    policy = make_model(VECTOR, ACTION_SPACES["box"], use_sde=use_sde, policy_kwargs={"net_arch": [width, width]}).policy
    observations = np.random.default_rng(0).normal(size=(5, 3))
    if use_sde:
        policy.reset_noise(5)
    with th.inference_mode():
        actions, forwarded, *_ = policy.action_sampler()(observations)
        log_probs = policy.sampled_log_probs(forwarded, th.as_tensor(actions))
        expected = policy.get_distribution(th.as_tensor(observations, dtype=th.float32)).log_prob(th.as_tensor(actions))
    assert actions.dtype == np.float32
    th.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)


def test_hooks_are_called_where_actions_are_sampled() -> None:
    policy, calls = make_model(VECTOR, spaces.Discrete(3)).policy, []
    policy.mlp_extractor.policy_net[0].register_forward_hook(lambda *_: calls.append("hidden"))
    policy.action_net.register_forward_pre_hook(lambda *_: calls.append("logits"))
    policy.action_sampler()(np.ones((5, 3), np.float32))
    assert calls == ["hidden", "logits"]


@pytest.mark.parametrize(("kwargs", "fused"), [({}, True), ({"fused": False}, False), ({"foreach": True}, None)])
def test_adam_is_fused_where_nothing_else_is_said(kwargs: dict[str, bool], fused: bool | None) -> None:
    policy = make_model(VECTOR, spaces.Discrete(3), policy_kwargs={"optimizer_kwargs": kwargs}).policy
    assert policy.optimizer.param_groups[0].get("fused") is fused


@pytest.mark.parametrize("activation_fn", [th.nn.Tanh, th.nn.ReLU, th.nn.ELU])
@pytest.mark.parametrize("n_envs", [3, 5000])  # few are faster in NumPy, many in PyTorch
def test_sampled_actions_are_those_of_the_network(activation_fn: type[th.nn.Module], n_envs: int) -> None:
    net = {"activation_fn": activation_fn, "net_arch": [16, 16]}
    policy = make_model(VECTOR, spaces.Box(-100.0, 100.0, (2,)), policy_kwargs=net).policy
    with th.no_grad():
        policy.log_std.fill_(-20.0)
        policy.action_net.weight.mul_(100.0)  # SB3 makes them small
    observations = np.random.default_rng(0).normal(size=(n_envs, 3)).astype(np.float32)
    kept = observations.copy()
    with th.inference_mode():
        sampled, _, *_ = policy.action_sampler()(observations)
        expected = policy.get_distribution(th.as_tensor(kept)).mode()
    np.testing.assert_allclose(sampled, expected.numpy(), atol=1e-4)
    assert np.array_equal(observations, kept)


@pytest.mark.parametrize("observation", ["vector", "float64", "image", "dict"])
@pytest.mark.parametrize("action", ["discrete", "box", "sde"])
@pytest.mark.parametrize("most", [0, 100])  # bytes kept until log probabilities are computed
def test_log_probs_of_a_rollout_are_those_of_its_observations(
    observation: str, action: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_group_algorithm, "MAX_DIST_INPUTS_BYTES", most)
    space = ACTION_SPACES["box" if action == "sde" else action]
    model = make_model(OBSERVATION_SPACES[observation], space, use_sde=action == "sde", learning_rate=0.0).learn(60)
    check_log_probs(model)


def check_log_probs(model: Any) -> th.Tensor:
    """The log probabilities of all stored actions are those of the stored observations."""
    buffer = model.rollout_buffer
    with th.no_grad():
        actions = th.as_tensor(buffer.actions).flatten(0, 1)
        expected = model.policy.get_distribution(stored_observations(buffer)).log_prob(actions)
    assert len(expected) > 20
    th.testing.assert_close(th.as_tensor(buffer.log_probs).flatten(), expected, atol=1e-5, rtol=1e-5)
    return expected


def stored_observations(buffer: GroupRolloutBuffer) -> Any:
    return buffer._observations([], np.empty(0))


@pytest.mark.parametrize("observation", ["numbers", "dict"])
def test_normalised_whole_numbers_keep_their_fractions(observation: str) -> None:
    """VecNormalize leaves the type of the space as it is."""
    numbers = spaces.Box(0, 255, (3,), np.uint8)
    space = spaces.Dict({"numbers": numbers}) if observation == "dict" else numbers
    env = VecNormalize(DummyVecEnv([lambda: SpacesEnv(space, spaces.Discrete(2))] * 2), norm_reward=False)
    model = GRPO(policy_for(space), env, **SMALL, learning_rate=0.0).learn(60).learn(60)
    rollout = stored_observations(model.rollout_buffer)
    stored = rollout["numbers"] if isinstance(rollout, dict) else rollout
    assert stored.min() < -0.5
    check_log_probs(model)


def test_float_observation() -> None:
    env = FloatObservation(SpacesEnv(spaces.Box(0, 255, (3,), np.uint8), spaces.Discrete(2)))
    assert env.observation_space.dtype == np.float32
    assert env.observation_space.contains(env.reset(seed=0)[0])
    model = PPO("MlpPolicy", VecNormalize(DummyVecEnv([lambda: env])), n_steps=16, batch_size=16, n_epochs=1).learn(16)
    assert model.rollout_buffer.observations.min() < -0.5
    with pytest.raises(ValueError, match=r"needs observations in a Box.*Discrete\(5\).*flatten"):
        FloatObservation(SpacesEnv(spaces.Discrete(5), spaces.Discrete(2)))


@pytest.mark.parametrize("squash_output", [False, True])
@pytest.mark.parametrize("learn_features", [False, True])
@pytest.mark.parametrize("n_copies", [1, 5])  # a single one has SB3's other matrix
def test_state_dependent_noise_is_that_of_the_distribution(squash_output: bool, learn_features: bool, n_copies: int) -> None:
    kwargs = {"squash_output": squash_output, "full_std": learn_features}
    policy = make_model(VECTOR, spaces.Box(-1.0, 1.0, (2,)), use_sde=True, policy_kwargs=kwargs).policy
    policy.action_dist.learn_features = learn_features
    observations = np.random.default_rng(0).normal(size=(n_copies, 3)).astype(np.float32)
    policy.reset_noise(n_copies)
    with th.inference_mode():
        sampled, _, *_ = policy.action_sampler()(observations)
        expected = policy.get_distribution(th.as_tensor(observations)).sample()
    np.testing.assert_allclose(sampled, expected.numpy(), atol=1e-6)
    assert np.abs(sampled).max() <= 1.0 or not squash_output


@pytest.mark.parametrize("method", ["get_distribution", "_get_action_dist_from_latent"])
def test_a_subclass_with_an_action_mask_is_sampled_with_the_mask(method: str) -> None:
    class Masked(ActorPolicy):
        pass

    def masked(self: Any, argument: Any) -> Any:
        distribution = getattr(ActorPolicy, method)(self, argument)
        return distribution.proba_distribution(distribution.distribution.logits + th.tensor([0.0, -1e8, 0.0]))

    setattr(Masked, method, masked)
    model = GRPO(Masked, DummyVecEnv([lambda: SpacesEnv(VECTOR, spaces.Discrete(3))] * 2), **SMALL).learn(100)
    assert 1 not in model.rollout_buffer.actions
    assert (model.rollout_buffer.log_probs > -10.0).all()
