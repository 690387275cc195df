"""Learning from a verifier, and what helps it."""

import csv
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor, VecNormalize
from toy_envs import Numbered

from sb3_grpo import GRPO
from sb3_grpo.common.batch import Minibatch
from sb3_grpo.envs import CharTokenizer, GuessNumberTask, HardPrompts, Item, PairsTask, VerifierTextEnv, VerifierTextVecEnv
from sb3_grpo.text.buffer import EpisodeTexts
from sb3_grpo.text.callbacks import TextEvalCallback, WarmStart, pass_at_k
from sb3_grpo.text.policies import TokenActorCriticPolicy
from sb3_grpo.text.tokens import PAD

NETWORK: dict[str, Any] = {"n_layers": 1, "width": 32, "n_heads": 2}
PAIRS = [(f"{digit}=", digit) for digit in "0123456789"]
SETTINGS: dict[str, Any] = {
    "gamma": 1.0,
    "advantage": "outcome",
    "learning_rate": 5e-3,
    "group_size": 8,
    "n_groups": 8,
    "n_epochs": 2,
}


def copying_env(n_envs: int = 64, **kwargs: Any) -> VerifierTextVecEnv:
    return VerifierTextVecEnv(n_envs, seed=0, task=PairsTask(PAIRS), max_answer_tokens=3, **kwargs)


def success_rate(model: Any) -> float:
    prompts, answers = zip(*(PAIRS * 20), strict=True)
    given = model.policy.generate(list(prompts), deterministic=False)
    return float(np.mean([a == b for a, b in zip(given, answers, strict=True)]))


def test_learns_to_answer_after_a_warm_start(tmp_path: Path) -> None:
    model: Any = GRPO("TokenPolicy", copying_env(), policy_kwargs=NETWORK, device="cpu", seed=0, ent_coef=0.02, **SETTINGS)
    model.policy.pretrain(PAIRS, n_epochs=25)
    assert success_rate(model) < 0.3
    model.learn(12_000)
    assert success_rate(model) > 0.7

    model.save(tmp_path / "model")
    loaded: Any = GRPO.load(tmp_path / "model", device="cpu")
    prompts = [prompt for prompt, _ in PAIRS]
    assert loaded.policy.generate(prompts) == model.policy.generate(prompts)


@pytest.mark.parametrize("length", [40, 140])
def test_an_update_reads_a_long_prompt_once(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with small minibatches: four groups of four answers, each group in a minibatch of its own. Short ones are mixed."""
    pairs = [(length * digit + "=", digit) for digit in "0123456789"]
    env = VerifierTextVecEnv(16, seed=0, task=PairsTask(pairs), max_answer_tokens=3)
    sizes: dict[str, Any] = {"group_size": 4, "n_groups": 4, "batch_size": 12, "n_epochs": 1}
    model: Any = GRPO("TokenPolicy", env, policy_kwargs=NETWORK, device="cpu", seed=0, **sizes)
    read = model.policy.read
    n_read = 0

    def counted(tokens: th.Tensor, *args: Any, **kwargs: Any) -> th.Tensor:
        nonlocal n_read
        n_read += tokens.numel() if model.policy.training else 0
        return read(tokens, *args, **kwargs)

    monkeypatch.setattr(model.policy, "read", counted)
    model.learn(1)
    once = 4 * (length + 1 + 4 * 3)
    assert (n_read < once + length) == (length > 128)


@pytest.mark.parametrize(("prompt", "is_long"), [(2, False), (200, True)])
def test_replies_do_not_make_a_prompt_long(prompt: int, is_long: bool) -> None:
    first, second = prompt - 1, prompt + 200  # the last tokens that two answers follow, with a long reply in between
    texts = EpisodeTexts(np.zeros((2, 500), np.int64), np.array([second + 1] * 2), th.tensor([first, second] * 2))
    assert texts.begin_long(th.tensor([[2, 2]])) == is_long


@pytest.mark.slow
def test_ppo_learns_with_the_value_head() -> None:
    settings: Any = {"n_steps": 16, "batch_size": 256, "learning_rate": 2e-3, "gamma": 1.0, "ent_coef": 0.02, "n_epochs": 4}
    env = copying_env(truncate=False)
    model: Any = PPO(TokenActorCriticPolicy, env, policy_kwargs=NETWORK, device="cpu", seed=0, **settings)
    model.policy.pretrain(PAIRS, n_epochs=25)
    assert success_rate(model) < 0.3
    model.learn(16_000)
    assert success_rate(model) > 0.7


def test_hard_prompts_are_drawn_more_often_and_none_is_forgotten() -> None:
    hard = HardPrompts(10, rate=1.0)
    hard.success_rates[:5] = 1.0
    rng = np.random.default_rng(0)
    items = np.array([hard(rng).options["item"] for _ in range(20_000)])  # type: ignore[index]
    counts = np.bincount(items, minlength=10) / len(items)
    np.testing.assert_allclose(counts[:5], 0.05 / 5.5, atol=0.004)
    np.testing.assert_allclose(counts[5:], 1.05 / 5.5, atol=0.015)

    again = pickle.loads(pickle.dumps(hard))
    assert (again.success_rates == hard.success_rates).all()
    assert (again.floor, again.rate) == (hard.floor, hard.rate)


def test_hard_prompts_count_the_successes_of_each_prompt() -> None:
    env = copying_env()
    hard = HardPrompts(5)
    model: Any = GRPO("TokenPolicy", env, policy_kwargs=NETWORK, device="cpu", seed=0, start_sampler=hard, **SETTINGS)
    model.lr_schedule = lambda _: 0.0
    # Always "3", then the end
    model.policy.pretrain([(prompt, "3") for prompt, _ in PAIRS], n_epochs=100, learning_rate=1e-2)
    model.learn(3000)
    assert hard.success_rates[3] > 0.5
    assert (np.delete(hard.success_rates, 3) < 0.1).all()


def test_the_reference_is_the_policy_that_a_callback_has_taught() -> None:
    warm: list[th.Tensor] = []

    class Keep(BaseCallback):
        def _on_rollout_start(self) -> None:
            warm.extend(parameter.detach().clone() for parameter in self.model.policy.parameters())
            # What a checkpoint has of it
            saved = self.model.get_parameters()
            assert all(th.equal(saved["ref_policy"][key], values) for key, values in saved["policy"].items())

        def _on_step(self) -> bool:
            return True

    model: Any = GRPO("TokenPolicy", copying_env(), policy_kwargs=NETWORK, device="cpu", seed=0, kl_coef=0.1, **SETTINGS)
    model.learn(1, callback=[WarmStart(n_examples=10, n_epochs=20), Keep()])
    for reference, expected, parameter in zip(model.ref_policy.parameters(), warm, model.policy.parameters(), strict=True):
        assert th.equal(reference, expected) and not th.equal(parameter, expected)


@pytest.mark.parametrize("task", ["arithmetic", "guess_number", [("a", "b"), ("abcdef", "ab")]])
def test_log_probs_are_those_of_the_policy_that_acted(task: Any) -> None:
    """Also after an update, when other weights have read the beginning of a text."""
    env = VerifierTextVecEnv(20, seed=0, task=task, max_answer_tokens=9)
    settings: Any = {**SETTINGS, "group_size": 4, "n_groups": 3, "learning_rate": 0.03, "batch_size": 40, "ent_coef": 0.1}
    model: Any = GRPO("TokenPolicy", env, policy_kwargs=NETWORK, device="cpu", seed=1, **settings).learn(700)
    model.learning_rate, model.lr_schedule = 0.0, lambda _: 0.0
    for _ in range(6):  # until no episode is left that was begun before
        model.learn(1, reset_num_timesteps=False)
    batch = model.batch
    texts = batch.observations_at(Minibatch(th.arange(len(batch.rows)), np.arange(batch.lengths.numel()), 1))
    with th.no_grad():
        now = model.policy.get_distribution(texts).log_prob(batch.actions[batch.rows])
    th.testing.assert_close(now, batch.old_log_prob[batch.rows], rtol=0, atol=1e-5)


class LongReplies(GuessNumberTask):
    """Its replies have three tokens."""

    trusted = True
    max_reply_tokens = 9

    def reply(self, item: Item, messages: list[str]) -> str | None:
        hint = super().reply(item, messages)
        return None if hint is None else f"-{hint}-"


@pytest.mark.parametrize(("task", "n_reply"), [(GuessNumberTask(), 1), (LongReplies(), 3)])
def test_only_tokens_that_the_policy_wrote_are_in_the_loss(task: Any, n_reply: int) -> None:
    env = VerifierTextVecEnv(16, seed=0, task=task, max_answer_tokens=12)
    model: Any = GRPO("TokenPolicy", env, policy_kwargs=NETWORK, device="cpu", seed=1, **SETTINGS)
    model.policy.pretrain([("0-9?", digit) for digit in "0123456789"], n_epochs=20)
    model.learn(1)
    batch, eos_id = model.batch, env.rules.tokenizer.eos_id
    steps = batch.observations_at(Minibatch(th.arange(len(batch.rows)), np.arange(batch.lengths.numel()), 1))
    actions = batch.actions[batch.rows].flatten()
    n_replies = 0
    for number, text in enumerate(steps.texts.tolist()):
        # The last token that was written is in no observation
        rows = (steps.text == number).nonzero().flatten()
        written = dict(zip((steps.last[rows] + 1).tolist(), actions[rows].tolist(), strict=True))
        place, expected = 4, {}
        while place < len(text) and text[place] != PAD:
            expected[place] = text[place]
            is_end = text[place] == eos_id
            place += 1 + is_end * n_reply
            n_replies += is_end
        assert written.keys() - expected.keys() == {place}
        assert expected.items() <= written.items()
    assert n_replies > 50


@pytest.mark.parametrize("in_processes", [False, True])
def test_a_warm_start_learns_the_answers_of_the_task(in_processes: bool) -> None:
    # Its function cannot be pickled, and so cannot leave its process
    task = Numbered(lambda index: ("ab", "ba") if index else ("c", "cc"), 2)
    settings: Any = {"task": task, "tokenizer": CharTokenizer("abc"), "truncate": False}
    env: Any = VecNormalize(VerifierTextVecEnv(2, **settings), norm_obs=False)
    if in_processes:
        env = SubprocVecEnv([lambda: VerifierTextEnv(**settings)] * 2)
    model = PPO(TokenActorCriticPolicy, env, learning_rate=1e-9, n_steps=8, batch_size=16, device="cpu", seed=0)
    assert model.policy.generate(["ab", "c"]) != ["ba", "cc"]
    model.learn(16, callback=WarmStart(n_examples=2, n_epochs=100))
    assert model.policy.generate(["ab", "c"]) == ["ba", "cc"]
    env.close()


def test_a_warm_start_is_for_texts() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", device="cpu")
    with pytest.raises(ValueError, match=r"WarmStart is for policies of texts.*leave the callback out"):
        model.learn(100, callback=WarmStart(n_examples=2, n_epochs=1))


@pytest.mark.parametrize(("n", "right", "k", "expected"), [(8, 0, 8, 0.0), (8, 1, 8, 1.0), (4, 1, 1, 0.25), (4, 2, 2, 5 / 6)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n: int, right: int, k: int, expected: float) -> None:
    assert pass_at_k(n, right, k) == pytest.approx(expected)


def known_answers(**kwargs: Any) -> Any:
    """A policy that knows half of the answers, and is nearly certain."""
    model: Any = GRPO("TokenPolicy", copying_env(**kwargs), policy_kwargs=NETWORK, device="cpu", seed=0, **SETTINGS)
    pairs = [(prompt, answer if int(answer) < 5 else "0") for prompt, answer in PAIRS]
    model.policy.pretrain(pairs, n_epochs=150, learning_rate=1e-2)
    return model


def test_evaluation_of_texts_says_which_answers_are_right() -> None:
    model = known_answers()
    state = th.get_rng_state()
    # Fewer copies than prompts, and more
    for env in (copying_env(3), VecMonitor(copying_env(64))):
        result = TextEvalCallback(env, k=2, n_samples=4).evaluate(model.policy)
        assert result.accuracy == 0.5
        assert result.pass_at_k == pytest.approx(0.5, abs=0.1)
        answers = model.policy.generate([prompt for prompt, _ in PAIRS])
        assert {info["prompt"]: info["answer"] for info in result.answers} == dict(zip(dict(PAIRS), answers, strict=True))
    assert th.equal(th.get_rng_state(), state)
    assert TextEvalCallback(copying_env(), n_prompts=4, k=None).evaluate(model.policy).pass_at_k is None
    # Several turns: the first guess is always the same
    guesser: Any = GRPO("TokenPolicy", VerifierTextVecEnv(4, task="guess_number"), policy_kwargs=NETWORK, device="cpu")
    guesser.policy.pretrain([("0-9?", "3")], n_epochs=100, learning_rate=1e-2)
    found = TextEvalCallback({"task": "guess_number"}, k=None).evaluate(guesser.policy)
    assert len(found.answers) == 10 and found.accuracy >= 0.1


def test_evaluation_of_texts_during_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(callback: Any) -> Any:
        model = known_answers()
        model.set_logger(configure(str(tmp_path), ["csv", "tensorboard"]))
        return model.learn(1500, callback=callback)

    given = {"task": PairsTask(PAIRS), "max_answer_tokens": 3}
    callback = TextEvalCallback(given, eval_freq=400, k=2)
    model = train(callback)
    assert callback.points[0] == (0, 0.5)
    steps = [step for step, _ in callback.points]
    assert len(steps) > 2 and min(np.diff(steps)[:-1]) >= 400
    assert steps[-1] == model.num_timesteps, "what training has reached"
    rows = [row for row in csv.DictReader(open(tmp_path / "progress.csv")) if row["eval/accuracy"]]
    assert [float(row["eval/accuracy"]) for row in rows] == pytest.approx([accuracy for _, accuracy in callback.points])
    assert all(0.0 <= float(row["eval/pass_at_2"]) <= 1.0 for row in rows)
    printed = capsys.readouterr().out
    assert "Accuracy 50.0% after 0 steps" in printed and "reward 1" in printed
    without = train(None)
    for mine, other in zip(model.policy.parameters(), without.policy.parameters(), strict=True):
        assert th.equal(mine, other), "training is the same with and without it"


def test_evaluation_of_texts_refuses_what_it_cannot_answer() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", device="cpu")
    with pytest.raises(ValueError, match=r"TextEvalCallback is for policies of texts.*use EvalCallback of Stable-Baselines3"):
        TextEvalCallback(copying_env()).evaluate(model.policy)
    policy = known_answers().policy
    with pytest.raises(ValueError, match=r"needs eval_env=VerifierTextVecEnv\(...\), or .* got str"):
        TextEvalCallback("arithmetic").evaluate(policy)
    with pytest.raises(ValueError, match="have up to 52 tokens, and the policy reads 5: give eval_env"):
        TextEvalCallback({"task": PairsTask(PAIRS), "max_answer_tokens": 50}).evaluate(policy)
    with pytest.raises(ValueError, match="another tokenizer or other stops than the training"):
        TextEvalCallback(VerifierTextVecEnv(4, task=[("a=", "a")])).evaluate(policy)
    with pytest.raises(ValueError, match="n_samples must be at least 8"):
        TextEvalCallback(copying_env(), k=8, n_samples=4)
