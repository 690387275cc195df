from typing import Any

import numpy as np
import pytest
import torch as th
from digit_texts import LENGTH, Digits, growing_texts, make_policy
from gymnasium import spaces
from stable_baselines3 import PPO

from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.grpo import GRPO
from sb3_grpo.text.decoding import CachedReader
from sb3_grpo.text.policies import TokenActorCriticPolicy, TokenPolicy
from sb3_grpo.text.tokens import PAD, TokenSpace
from sb3_grpo.text.tree import TokenSteps

DEVICE = "cuda" if th.cuda.is_available() else "cpu"


@pytest.mark.gpu
@th.no_grad()
def test_cached_uncached_and_teacher_forced_log_probs_agree() -> None:
    policy = make_policy().to(DEVICE)
    reader = CachedReader(policy.read, policy.device, 16)
    for observations in growing_texts(7, 40):
        obs = th.as_tensor(observations, device=DEVICE)
        cached = policy._get_action_dist_from_latent(reader(observations)).distribution.logits.log_softmax(-1)
        uncached = policy.get_distribution(obs).distribution.logits
        th.testing.assert_close(cached, uncached, rtol=0, atol=1e-5)

        lengths = (obs != PAD).sum(1)
        text, last = th.tensor(
            [(text, last) for text, length in enumerate(lengths) for last in range(length)], device=DEVICE
        ).T
        forced = policy.get_distribution(TokenSteps(obs.cpu().numpy(), text, last)).distribution.logits
        th.testing.assert_close(forced[last == (lengths - 1)[text]], cached, rtol=0, atol=1e-5)
        prefix = th.where(th.arange(LENGTH, device=DEVICE) <= last[:, None], obs[text], PAD)
        expected = policy.get_distribution(prefix).distribution.logits
        th.testing.assert_close(forced, expected, rtol=0, atol=1e-5)


def test_the_cache_reads_each_token_once() -> None:
    policy = make_policy()
    n_read = []

    def counting(tokens: th.Tensor, *args: Any) -> th.Tensor:
        n_read.append(tokens.numel())
        return policy.read(tokens, *args)

    reader = CachedReader(counting, policy.device, 16)
    text = np.full((2, LENGTH), PAD)
    text[:, :3] = 1
    for length in range(3, 8):
        text[:, length - 1] = length
        reader(text.copy())
    assert n_read == [3, 2, 2, 2, 2], "and the same prompt once"
    text[1, 0] = 2  # another text in the second place
    reader(text)
    assert n_read[5:] == [1, 7]


def test_sampling_follows_the_distribution() -> None:
    policy = make_policy()
    observations = np.full((20_000, LENGTH), PAD)
    observations[:, :2] = [1, 2]
    with th.inference_mode():
        actions, log_prob, *_ = policy.action_sampler()(observations)
        probs = policy.get_distribution(th.as_tensor(observations[:1])).distribution.probs[0]
    frequencies = np.bincount(actions, minlength=Digits.vocab_size) / len(actions)
    np.testing.assert_allclose(frequencies, probs.numpy(), atol=0.02)
    th.testing.assert_close(log_prob, probs[th.as_tensor(actions)].log(), rtol=0, atol=1e-5)


def test_greedy_generation_is_prediction_token_by_token() -> None:
    policy = make_policy()
    prompts = ["1+2=", "7", "33+4="]
    expected = []
    for prompt in prompts:
        text = [*Digits().encode(prompt)]
        while len(text) < LENGTH and text[-1] != Digits.eos_id:
            observation = np.full(LENGTH, PAD)
            observation[: len(text)] = text
            text.append(int(policy.predict(observation, deterministic=True)[0]))
        expected.append(Digits().decode(text[len(prompt) :]))
    room = LENGTH - max(len(prompt) for prompt in prompts)
    assert policy.generate(prompts, batch_size=1) == expected
    assert [answer[:room] for answer in policy.generate(prompts)] == [answer[:room] for answer in expected]
    assert all(len(answer) <= 2 for answer in policy.generate(prompts, max_new_tokens=2, deterministic=False))


@pytest.mark.gpu
def test_generated_texts_end_where_they_end() -> None:
    policy = make_policy().to(DEVICE)
    prompts = th.full((200, 4), PAD, device=DEVICE)
    prompts[:, :2] = th.randint(Digits.eos_id, (200, 2), device=DEVICE)
    prompts[100:, 2:] = 3
    texts = policy.generate_tokens(prompts, 6)
    n_ended = 0
    for text, n_given in zip(texts.tolist(), [2] * 100 + [4] * 100, strict=True):
        answer = text[n_given:]
        end = answer.index(Digits.eos_id) + 1 if Digits.eos_id in answer[:6] else 6
        n_ended += end < 6
        assert PAD not in answer[:end] and set(answer[end:]) <= {PAD}
    assert n_ended > 10


def test_pretrain_learns_the_answers_of_pairs_and_all_of_a_text() -> None:
    policy = make_policy()
    reached = policy.pretrain([("1+2=", "3"), ("2+2=", "4"), ("9+9=", "18")], n_epochs=100, learning_rate=1e-2)
    assert reached.losses[-1] < 0.05 < reached.losses[0] and reached.accuracy == 1.0
    assert policy.generate(["1+2=", "2+2=", "9+9="]) == ["3", "4", "18"]
    assert policy.optimizer.state == {}, "the optimizer of the training is as it was"

    policy = make_policy()
    policy.pretrain(["123"], n_epochs=100, learning_rate=1e-2)
    assert policy.generate(["1"]) == ["23"]


@pytest.mark.parametrize("n_epochs", [4, 20])
def test_pretrain_says_how_many_answers_it_has_got_right(n_epochs: int) -> None:
    th.manual_seed(0)
    policy, pairs = make_policy(), [(f"{a}+{b}=", str(a + b)) for a in range(3) for b in range(5)]
    reached = policy.pretrain(pairs, n_epochs=n_epochs, batch_size=4, learning_rate=1e-2)
    answers = policy.generate([prompt for prompt, _ in pairs])
    right = [answer == reference for answer, (_, reference) in zip(answers, pairs, strict=True)]
    assert reached.accuracy == pytest.approx(np.mean(right)) and 0.0 < reached.accuracy
    assert len(reached.losses) == n_epochs


def test_pretrain_that_gets_no_answer_right_says_so() -> None:
    with pytest.warns(UserWarning, match=r"answers none of the 1 examples right.*More n_epochs \(now 1\)"):
        reached = make_policy().pretrain([("1+2=", "345")], n_epochs=1, learning_rate=1e-6)
    assert reached.accuracy == 0.0


def test_pretrain_that_diverges_leaves_the_policy_as_it_was() -> None:
    policy = make_policy()
    before = policy.parameters_to_vector()
    with pytest.raises(ValueError, match=r"diverged: in epoch \d.*as it was before.*smaller learning_rate than 1e\+30"):
        policy.pretrain([("1+2=", "3")] * 10, n_epochs=5, learning_rate=1e30)
    np.testing.assert_array_equal(policy.parameters_to_vector(), before)
    assert not policy.training


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"context": 5}, "context=5 is shorter"),
        ({"n_layers": 0}, "n_layers must be at least 1, got 0"),
        ({"width": 10, "n_heads": 4}, "multiple of n_heads"),
        ({"net_arch": [64]}, r"Policy has no net_arch: .*n_layers=..., width=..., n_heads=..."),
        ({"features_extractor_kwargs": {}}, "Policy has no features_extractor_kwargs"),
    ],
)
@pytest.mark.parametrize("policy_class", [TokenPolicy, TokenActorCriticPolicy])
def test_wrong_arguments_are_named(policy_class: Any, kwargs: dict[str, Any], message: str) -> None:
    space, actions = TokenSpace(LENGTH, Digits()), spaces.Discrete(Digits.vocab_size)
    with pytest.raises(ValueError, match=message):
        policy_class(space, actions, lambda _: 1e-3, **kwargs)
    with pytest.raises(ValueError, match=r'reads token ids.*TokenSpace.*For numbers take "MlpPolicy"'):
        policy_class(spaces.Box(-1, 12, (LENGTH,), np.int64), actions, lambda _: 1e-3)
    with pytest.raises(ValueError, match=r"must be Discrete\(13\)"):
        policy_class(space, spaces.Discrete(5), lambda _: 1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda policy: policy.generate(["1", "1" * 12]), r"from 1 to 11 tokens.*'1+' has 12"),
        (lambda policy: policy.generate(["1"], max_new_tokens=-1), "max_new_tokens must be at least 1, .*got -1"),
        (lambda policy: policy.generate(["1"], batch_size=0), "batch_size must be at least 1, got 0"),
        (lambda policy: policy.generate("1+1="), r"needs a list of prompts.*: write generate\(\['1\+1='\]"),
        (lambda policy: policy.pretrain(["1"], n_epochs=0), "n_epochs must be at least 1, got 0"),
        (lambda policy: policy.pretrain([]), r"at least one text or pair \(prompt, answer\), got \[\]"),
        (lambda policy: policy.pretrain(("1+1=", "2")), r"got \('1\+1=', '2'\). For a single one write pretrain\(\[...\]\)"),
        (lambda policy: policy.pretrain([""]), "from 2 to 12 tokens.* '' has 1"),
        (lambda policy: policy.pretrain([("1", "2", "3")]), r"a text or a pair \(prompt, answer\), got \('1', '2', '3'\)"),
        (lambda policy: policy.pretrain([("1+1=", 2)]), r"are texts, got 2 of type int"),
    ],
)
def test_wrong_texts_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(make_policy())


def test_normalised_tokens_are_refused() -> None:
    observation = np.zeros((1, LENGTH), np.float32)
    policy, critic = make_policy(), make_policy(TokenActorCriticPolicy)
    for read in (policy.action_sampler(), lambda obs: policy.get_distribution(th.as_tensor(obs)), critic_of(critic)):
        with pytest.raises(ValueError, match=r"whole numbers.*VecNormalize\(env, norm_obs=False\)"):
            read(observation)


def critic_of(policy: Any) -> Any:
    def read(observation: np.ndarray) -> Any:
        with th.no_grad():
            return policy(th.as_tensor(observation))

    return read


def test_spaces_with_other_meanings_are_not_equal() -> None:
    class Swapped(Digits):
        def decode(self, ids: Any) -> str:
            return super().decode(ids).translate(str.maketrans("01", "10"))

    assert TokenSpace(LENGTH, Digits()) == TokenSpace(LENGTH, Digits())
    assert TokenSpace(LENGTH, Digits()) != TokenSpace(LENGTH, Swapped())
    assert TokenSpace(LENGTH, Digits()) != TokenSpace(LENGTH + 1, Digits())
    assert TokenSpace(LENGTH, Digits()) != spaces.Box(PAD, 12, (LENGTH,), np.int64)
    assert "TokenSpace(12" in repr(TokenSpace(LENGTH, Digits()))


class WithoutRepeats:
    """Never writes the same token twice in a row: its distribution depends on more than the last hidden state."""

    def get_distribution(self, obs: Any) -> Any:
        distribution: Any = super().get_distribution(obs)  # type: ignore[misc]
        steps = obs if isinstance(obs, TokenSteps) else TokenSteps(obs.numpy(), th.arange(len(obs)), (obs != PAD).sum(1) - 1)
        newest = th.as_tensor(steps.texts)[steps.text, steps.last]
        logits = distribution.distribution.logits.scatter(1, newest[:, None], -1e9)
        return distribution.proba_distribution(logits)


class NoRepeats(WithoutRepeats, TokenPolicy):
    """One without a critic."""


def test_a_subclass_with_its_own_distribution_is_sampled_with_it() -> None:
    policy = make_policy(NoRepeats)
    observations = np.full((500, LENGTH), PAD)
    observations[:, 0], observations[:, 1] = 3, np.arange(500) % 10
    with th.inference_mode():
        actions, log_prob, *_ = policy.action_sampler()(observations)
        expected = policy.get_distribution(th.as_tensor(observations)).log_prob(th.as_tensor(actions))
    assert (actions != observations[:, 1]).all()
    th.testing.assert_close(log_prob, expected, rtol=0, atol=1e-5)

    prompts = th.as_tensor(observations[:, :3])
    for deterministic in (True, False):
        texts = policy.generate_tokens(prompts, 8, deterministic)
        assert not ((texts[:, 2:] == texts[:, 1:-1]) & (texts[:, 2:] != PAD)).any()
    with pytest.raises(ValueError, match=r"NoRepeats\.get_distribution has no top_p"):
        make_policy(NoRepeats, top_p=0.5).generate(["1"])
    (answer,) = policy.generate(["37"], max_new_tokens=1)
    observation = np.array([3, 7] + [PAD] * (LENGTH - 2))
    assert answer == Digits().decode([int(policy.predict(observation, deterministic=True)[0])])

    model: Any = GRPO(NoRepeats, VerifierTextVecEnv(8, seed=0), group_size=4, n_groups=2, device="cpu", seed=0).learn(50)
    assert model.rollout_buffer.log_probs.min() > -100.0, "what was sampled is possible"


@pytest.mark.gpu
def test_ppo_samples_from_its_present_weights_after_a_fused_optimizer() -> None:
    """Such an optimizer does not count up the version of the weights."""
    differences = []

    class Checked(PPO):
        def train(self) -> None:
            buffer = self.rollout_buffer
            obs, actions = (th.as_tensor(each, device=DEVICE).flatten(0, 1) for each in (buffer.observations, buffer.actions))
            with th.no_grad():
                log_prob = self.policy.evaluate_actions(obs.long(), actions.flatten())[1]
            differences.append((log_prob.cpu() - th.as_tensor(buffer.log_probs).flatten()).abs().max().item())
            super().train()

    # Each rollout goes on with the texts of the one before
    env = VerifierTextVecEnv(32, seed=0, truncate=False, max_answer_tokens=8)
    policy_kwargs = {"n_layers": 1, "width": 16, "optimizer_kwargs": {"fused": True}}
    settings: Any = {"n_steps": 3, "batch_size": 96, "learning_rate": 0.01, "ent_coef": 0.1, "device": DEVICE, "seed": 0}
    model = Checked(TokenActorCriticPolicy, env, policy_kwargs=policy_kwargs, **settings)
    model.learn(3 * 3 * 32)
    assert len(differences) == 3 and max(differences) < 1e-5


@th.no_grad()
def test_critic_reads_with_the_cache_until_the_weights_change() -> None:
    policy = make_policy(TokenActorCriticPolicy)
    for step, observations in enumerate(growing_texts(5, 30)):
        if step == 15:
            for parameter in policy.parameters():
                parameter.add_(0.1 * th.randn_like(parameter))
        obs = th.as_tensor(observations)
        actions, values, log_prob = policy(obs)
        expected_values, expected_log_prob, entropy = policy.evaluate_actions(obs, actions)
        th.testing.assert_close(values, expected_values, rtol=0, atol=1e-5)
        th.testing.assert_close(values, policy.predict_values(obs), rtol=0, atol=1e-5)
        th.testing.assert_close(log_prob, expected_log_prob, rtol=0, atol=1e-5)
        assert (entropy >= 0).all()
