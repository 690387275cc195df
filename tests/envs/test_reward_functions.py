"""Scores of several parts, reward functions as TRL has them, and rewards for single turns."""

from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_grpo import DAPO, GRPO, presets
from sb3_grpo.envs import CharTokenizer, Item, Reply, RewardFunctions, Task, VerifierError, VerifierTextEnv, VerifierTextVecEnv
from sb3_grpo.groups.group import normalised_parts

SUMS = [("3+4=", "7"), ("1+1=", "2"), ("2+4=", "6")]


def is_digit(completions: list[str], **columns: Any) -> list[float]:
    return [1.0 if completion.isdigit() else -3.0 for completion in completions]


def is_right(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    return [None if a == "2" else float(c == a) for c, a in zip(completions, answer, strict=True)]


def play(env: VerifierTextEnv, answers: str, item: int = 0) -> list[tuple[float, dict[str, Any]]]:
    """
    :param env: An environment
    :param answers: Characters, of which ``.`` ends an answer
    :param item: What is asked
    :return: The reward and the info of each token
    """
    env.reset(options={"item": item})
    tokenizer = env.rules.tokenizer
    tokens = [tokenizer.eos_id if each == "." else tokenizer.encode(each)[0] for each in answers]
    return [(float(step[1]), step[4]) for step in map(env.step, tokens)]


def test_a_reward_function_is_a_verifier() -> None:
    env = VerifierTextEnv(SUMS, verifier=is_right, max_answer_tokens=3)
    assert [play(env, answer, item)[-1][0] for answer, item in (("7.", 0), ("6.", 0), ("6.", 2))] == [1.0, 0.0, 1.0]
    reward, info = play(env, "2.", 1)[-1]
    assert reward == 0.0 and "reward_parts" not in info, "None: it does not apply"
    env.close()


def test_several_reward_functions_are_parts_with_weights() -> None:
    settings = {"max_answer_tokens": 3, "verifier": [is_digit, is_right]}
    for weights in ([0.5, 2.0], {"is_digit": 0.5, "is_right": 2.0}):
        env = VerifierTextEnv(SUMS, reward_weights=weights, **settings)
        reward, info = play(env, "7.")[-1]
        assert reward == info["verdict"] == 2.5 and info["is_success"]
        assert info["reward_parts"] == {"is_digit": 1.0, "is_right": 1.0}
        assert play(env, "+.")[-1][0] == -1.5, "no limits"
        assert play(env, "+.", 1)[-1][1]["reward_parts"] == {"is_digit": -3.0}
        env.close()


def test_answers_that_end_together_are_given_together() -> None:
    def count(prompts: list[str], completions: list[str], level: list[Any], **columns: Any) -> list[float]:
        assert len(prompts) == len(completions) == len(level) == len(columns["answer"])
        return [10.0 * len(completions) + each for each in level]

    rows = [{"prompt": "a", "answer": 1, "level": 1}, {"prompt": "b", "answer": 2, "level": 2}]
    env = VerifierTextVecEnv(4, task=rows, verifier=count, max_answer_tokens=3)
    env.seed(0)
    env.reset()
    levels = [env.get_attr("rules", 0)[0].task.item(info["item"]).metadata["level"] for info in env.reset_infos]
    *_, infos = env.step(np.array([env.rules.tokenizer.eos_id] * 3 + [0]))
    assert [info.get("verdict") for info in infos] == [30.0 + level for level in levels[:3]] + [None]
    env.close()


def test_messages_are_completed_by_messages() -> None:
    def seen(prompts: list[Any], completions: list[Any], answer: list[Any]) -> list[float]:
        assert prompts == [[{"role": "user", "content": "a"}]] and answer == [3], (prompts, answer)
        return [float(completions == [[{"role": "assistant", "content": "aa"}]])]

    columns = {"answer": 3}
    assert RewardFunctions([seen])(["aa"], [([{"role": "user", "content": "a"}], columns)]) == [1.0]


def test_programs_run_with_a_limit() -> None:
    def passes(completions: list[str], test: list[str], **columns: Any) -> list[float]:
        found = []
        for program, check in zip(completions, test, strict=True):
            names: dict[str, Any] = {}
            try:
                exec(program, names)
                found.append(float(eval(check, names)))
            except Exception:
                found.append(0.0)
        return found

    rows = [{"prompt": "x is 2", "test": "x == 2"}]
    alphabet = CharTokenizer("0123456789abcdefghijklmnopqrstuvwxyz =:")
    settings: dict[str, Any] = {"tokenizer": alphabet, "max_answer_tokens": 16, "verifier_timeout": 1.0}
    env = VerifierTextEnv(rows, verifier=passes, on_verifier_error="zero", **settings)
    found = []
    with pytest.warns(UserWarning, match="did not finish within 1 s and was stopped"):
        for program in ("x=2", "x=3", "x=", "while 1: x=2", "x=2"):
            env.reset(options={"item": 0})
            steps = [env.step(token) for token in [*alphabet.encode(program), alphabet.eos_id]]
            found.append(steps[-1][1])
    assert found == [1.0, 0.0, 0.0, 0.0, 1.0] and env.verifier_errors == 1
    env.close()


def test_unfinished_answers_are_rewarded_as_they_are() -> None:
    env = VerifierTextEnv(SUMS, verifier=is_digit, max_answer_tokens=3)
    env.reset(options={"item": 0})
    tokens = env.rules.tokenizer.encode("7++")
    *_, reward, terminated, truncated, info = [env.step(token) for token in tokens][-1]
    assert (reward, terminated, truncated, info["answer"]) == (-3.0, False, True, "7++")
    env.close()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda completions, **columns: [1.0] * 9, "was given 1 completions and returned .*, not a list of as many rewards"),
        (lambda completions, **columns: 1.0, "was given 1 completions and returned 1.0, not a list"),
        (lambda completions, **columns: ["good"], "'good', not a number"),
        (lambda completions, **columns: [float("nan")], "nan, not a finite number"),
        (lambda completions: [1.0], "unexpected keyword argument 'prompts'"),
    ],
)
def test_wrong_rewards_are_named_with_the_answer(function: Any, message: str) -> None:
    for verifier in (function, [function, is_digit]):
        env = VerifierTextEnv(SUMS, verifier=verifier, max_answer_tokens=3)
        with pytest.raises(VerifierError, match=f"(?s)lambda.*{message}.*Prompt: '3\\+4='\nAnswer: '6'"):
            play(env, "6.")
        env.close()


def test_an_answer_that_fails_does_not_fail_the_others() -> None:
    def fragile(completions: list[str], **columns: Any) -> list[float]:
        return [1.0 / len(completion) for completion in completions]

    env = VerifierTextVecEnv(3, task=[("a", "b")], verifier=fragile, max_answer_tokens=4, on_verifier_error="zero")
    env.reset()
    end = env.rules.tokenizer.eos_id
    env.step(np.array([0, 1, 0]))
    with pytest.warns(UserWarning, match="fragile failed on an answer: ZeroDivisionError"):
        env.seed(0)
        env.reset()
        *_, infos = env.step(np.array([end, 0, 0]))
    *_, infos = env.step(np.array([end, end, end]))
    assert [info["verdict"] for info in infos] == [0.0, 1.0, 1.0] and "ZeroDivisionError" in infos[0]["verifier_error"]
    assert env.verifier_errors == 2
    env.close()


def test_a_verifier_may_return_parts() -> None:
    def verifier(answer: str, reference: str) -> dict[str, float]:
        return {"format": 0.2 * answer.isdigit(), "right": 0.8 * (answer == reference)}

    env = VerifierTextEnv(SUMS, verifier=verifier, max_answer_tokens=3)
    assert [play(env, answer)[-1][0] for answer in ("7.", "6.", "+.")] == [1.0, 0.2, 0.0]
    env.close()
    env = VerifierTextEnv(SUMS, verifier=verifier, max_answer_tokens=3, reward_weights={"right": 2.0})
    with pytest.raises(VerifierError, match=r"returned 1.8: scores are from 0 .*other limits with score_range=\(0, 1.8\)"):
        play(env, "7.")
    env.close()
    settings = {"reward_weights": {"right": 2.0}, "score_range": (0, 1.8), "success_score": 1.8}
    env = VerifierTextEnv(SUMS, verifier=verifier, max_answer_tokens=3, **settings)
    assert play(env, "7.")[-1][1]["is_success"] and not play(env, "6.")[-1][1]["is_success"]
    env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"verifier": [is_digit, lambda answer, reference: 1.0]}, r"one or several reward functions f\(prompts, completions"),
        ({"verifier": [is_digit, is_right], "reward_weights": [1.0]}, "or 2 numbers, one for each reward function"),
        (
            {"verifier": [is_digit, is_right], "reward_weights": {"right": 1.0}},
            "has 'right', and the reward functions are 'is_di",
        ),
        ({"reward_weights": [1.0]}, r"has to be a dictionary, such as \{'format': 0.2\}"),
        ({"verifier": is_digit, "score_range": (1, 0)}, "a pair of numbers, the smallest and the largest score"),
        ({"score_range": (0, 2), "success_score": 3.0}, "success_score=3.0 has to be above 0 and at most 2"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VerifierTextEnv(SUMS, **settings)


class Countdown(Task):
    """Write 2, then 1; the first answer is rewarded at once."""

    n_items, n_turns = 2, 2

    def item(self, index: int) -> Item:
        return Item("2 to 1?", "1", {"index": index})

    def reply(self, item: Item, messages: list[str]) -> Any:
        if len(messages) == 3:
            return Reply(None, 0.25)
        return Reply(" and?", 0.5 if messages[-1] == "2" else -0.5)


def test_a_reply_may_carry_a_reward() -> None:
    for trusted in (False, True):
        task = Countdown()
        task.trusted = trusted
        env = VerifierTextEnv(task, max_answer_tokens=6)
        assert [reward for reward, _ in play(env, "2.1.")] == [0.0, 0.5, 0.0, 1.25]
        assert [reward for reward, _ in play(env, "1.2.")] == [0.0, -0.5, 0.0, 0.25]
        env.close()


def test_process_supervision_sees_the_reward_of_a_turn() -> None:
    env = VerifierTextVecEnv(8, seed=0, task=Countdown(), max_answer_tokens=6)
    settings: dict[str, Any] = {"n_groups": 4, "group_size": 8, "advantage": "process", "gamma": 1.0}
    model = GRPO("TokenPolicy", env, seed=0, device="cpu", policy_kwargs={"width": 16}, **settings)
    model.policy.pretrain([("2 to 1?", "2"), ("2 to 1?", "1")], n_epochs=20)
    model.learn(1)
    assert model.batch is not None
    found = model.batch.rewards
    last = model.batch.lengths[..., None] - 1
    assert found.scatter(-1, last, 0.0).any(), "rewards before the end of episodes"
    th.testing.assert_close(found.sum(-1), model.batch.outcomes)
    env.close()


# Parts normalised one by one


def test_parts_are_normalised_before_they_are_added() -> None:
    # One part is worth a hundred times as much as the other; the third is the same for all
    parts = th.tensor([[[0.0, 100.0, 0.1], [1.0, 0.0, 0.1], [0.0, 0.0, 0.1]]], dtype=th.float64)
    weights = th.tensor([1.0, 1.0, 5.0], dtype=th.float64)
    found = normalised_parts(parts, weights)
    a, b = 2 / 3 / 3**-0.5, -1 / 3 / 3**-0.5
    th.testing.assert_close(found, th.tensor([[a + b, a + b, 2 * b]], dtype=th.float64), atol=1e-6, rtol=0)
    doubled = normalised_parts(parts, th.tensor([2.0, 1.0, 5.0], dtype=th.float64))
    th.testing.assert_close(doubled, th.tensor([[2 * b + a, 2 * a + b, 3 * b]], dtype=th.float64), atol=1e-6, rtol=0)
    assert not normalised_parts(parts[:, :1].expand(1, 4, 3), weights).any()


def test_gdpo_learns_from_the_parts_and_logs_them() -> None:
    def many(completions: list[str], **columns: Any) -> list[float]:
        return [100.0 * len(completion) for completion in completions]

    env = VerifierTextVecEnv(8, seed=0, task=SUMS, verifier=[many, is_digit], reward_weights=[1.0, 0.5], max_answer_tokens=3)
    settings = {"n_groups": 2, "group_size": 8, "advantage": "outcome", "normalize_reward_parts": True}
    model = DAPO("TokenPolicy", env, seed=0, device="cpu", policy_kwargs={"width": 16}, **settings).learn(1)
    logged = model.logger.name_to_value
    assert model.batch is not None and -3.0 <= logged["group/reward_is_digit"] <= 1.0 and logged["group/reward_many"] >= 0.0
    judged = model._judge(model.batch, None)
    rewards = model._rewards(model.batch)
    assert judged.batch.outcomes.max() > 50 and rewards.sum(-1).abs().max() < 10
    th.testing.assert_close(rewards.sum(-1), model.batch.normalised_outcomes)
    env.close()


def test_parts_need_an_environment_that_has_some() -> None:
    settings = {**presets.TEXT, "group_size": 4, "n_groups": 2, "normalize_reward_parts": True}
    model = GRPO("TokenPolicy", VerifierTextVecEnv(8, task=SUMS), device="cpu", policy_kwargs={"width": 16}, **settings)
    with pytest.raises(ValueError, match="the info of the last step needs reward_parts"):
        model.learn(200)
    with pytest.raises(ValueError, match=r"n_steps=8 takes .* and normalize_reward_parts=True needs whole"):
        GRPO("MlpPolicy", "CartPole-v1", n_steps=8, normalize_reward_parts=True)
