"""Scores of several parts, reward functions as TRL has them, and rewards for single turns."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_grpo import DAPO, GRPO, presets
from sb3_grpo.envs import CharTokenizer, Item, Reply, Task, VerifierError, VerifierTextEnv, VerifierTextVecEnv
from sb3_grpo.envs.verifiers.scores import RewardFunctions
from sb3_grpo.groups.group import Episode, Group, judge, live_groups, normalized_outcomes, normalized_parts
from sb3_grpo.groups.queue import GroupQueue

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
    assert play(env, "7.")[-1][1]["reward_parts"] == {"is_right": 1.0}
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
        assert not play(env, "6.")[-1][1]["is_success"], "a success: each function gives 1"
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
    rewards = RewardFunctions([seen], columns)(["aa"], [([{"role": "user", "content": "a"}], columns)])
    assert rewards == [{"seen": 1.0}]


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
    ],
)
def test_wrong_rewards_are_named_with_the_answer(function: Any, message: str) -> None:
    for verifier in (function, [function, is_digit]):
        env = VerifierTextEnv(SUMS, verifier=verifier, max_answer_tokens=3)
        with pytest.raises(VerifierError, match=f"(?s)lambda.*{message}.*Prompt: '3\\+4='\nAnswer: '6'"):
            play(env, "6.")
        env.close()


def test_a_function_may_take_what_it_needs() -> None:
    rows = [{"prompt": "3+4=", "level": 2.0}, {"prompt": "1+1=", "answer": "2"}]
    levels = lambda level, completions: [each or 0.0 for each in level]  # noqa: E731
    for functions, rewards in (
        (lambda completions: [1.0], (1.0, 1.0)),
        (lambda **given: given["level"], (2.0, 0.0)),
        (levels, (2.0, 0.0)),
    ):
        env = VerifierTextEnv(rows, verifier=functions, max_answer_tokens=3)
        assert tuple(play(env, "2.", item)[-1][0] for item in (0, 1)) == rewards
        env.close()
    with pytest.raises(ValueError, match="f needs 'solution', and the data have 'answer', 'level'"):
        VerifierTextEnv(rows, verifier=named_f(), max_answer_tokens=3)

    async def slow(completions: list[str]) -> list[float]:
        return []

    with pytest.raises(ValueError, match="slow is asynchronous"):
        VerifierTextEnv(rows, verifier=slow)


def named_f() -> Any:
    def f(completions: list[str], solution: list[str]) -> list[float]:
        return []

    return f


def test_one_that_hangs_takes_the_time_limit_of_one() -> None:
    def hangs(completions: list[str], **columns: Any) -> list[float]:
        if "7" in completions:
            while True:
                pass
        return [1.0] * len(completions)

    env = VerifierTextVecEnv(
        6, task=SUMS, verifier=hangs, max_answer_tokens=3, verifier_timeout=1.0, on_verifier_error="zero", score_range=(-1, 1)
    )
    env.reset()
    seven, end = env.rules.tokenizer.encode("7")[0], env.rules.tokenizer.eos_id
    env.step(np.array([0, seven, 0, 0, 0, 0]))
    with pytest.warns(UserWarning, match="did not finish within 1 s"):
        *_, infos = env.step(np.full(6, end))
    assert [info["verdict"] for info in infos] == [1.0, -1.0, 1.0, 1.0, 1.0, 1.0], "the smallest score"
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
    settings = {"reward_weights": {"right": 2.0}, "score_range": (0, 1.8)}
    env = VerifierTextEnv(SUMS, verifier=verifier, max_answer_tokens=3, **settings)
    assert play(env, "7.")[-1][1]["is_success"] and not play(env, "6.")[-1][1]["is_success"]
    env.close()
    env = VerifierTextEnv(SUMS, verifier=lambda answer, reference: 1.0, reward_weights={"right": 2.0}, max_answer_tokens=3)
    with pytest.raises(VerifierError, match=r"returned 1\.0, and reward_weights needs a dictionary of parts"):
        play(env, "7.")
    env.close()


def test_all_parts_are_a_success_whatever_the_weights() -> None:
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    env = VerifierTextEnv(SUMS, verifier=lambda answer, reference: dict.fromkeys("abc", 1), reward_weights=weights)
    assert play(env, "7.")[-1][1]["is_success"]
    env.close()


def test_unfinished_answers_have_the_smallest_score() -> None:
    env = VerifierTextEnv(SUMS, verifier=lambda answer, reference: -1.0, score_range=(-1, 1), max_answer_tokens=2)
    assert play(env, "77")[-1][0] == play(env, "7.")[-1][0] == -1.0
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
        ({"reward_weights": 0.5}, "reward_weights=0.5 has to be a dictionary"),
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
    found = normalized_parts(parts, weights)
    a, b = 2 / 3 / 3**-0.5, -1 / 3 / 3**-0.5
    th.testing.assert_close(found, th.tensor([[a + b, a + b, 2 * b]], dtype=th.float64), atol=1e-6, rtol=0)
    doubled = normalized_parts(parts, th.tensor([2.0, 1.0, 5.0], dtype=th.float64))
    th.testing.assert_close(doubled, th.tensor([[2 * b + a, 2 * a + b, 3 * b]], dtype=th.float64), atol=1e-6, rtol=0)
    assert not normalized_parts(parts[:, :1].expand(1, 4, 3), weights).any()


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
    th.testing.assert_close(rewards.sum(-1), model.batch.normalized_outcomes)
    env.close()


def test_dapo_keeps_groups_in_which_only_the_parts_differ() -> None:
    group = Group(0, None)
    for place, parts in enumerate([{"a": (1.0, 1.0), "b": (0.0, 1.0)}, {"a": (0.0, 1.0), "b": (1.0, 1.0)}]):
        group.episodes.append(Episode(place, group, place, outcome=1.0, reward_parts=parts))
    model = DAPO("MlpPolicy", "CartPole-v1", n_groups=2, normalize_reward_parts=True, device="cpu")
    assert judge([group], live_groups) == [False]
    # As one part outweighs the other in neither, the sums of the normalised parts are equal as well
    assert judge([group], live_groups, normalize_parts=True) == [False]
    group.episodes[0].reward_parts["b"] = (0.0, 2.0)
    group.episodes[1].reward_parts["b"] = (0.5, 2.0)
    assert judge([group], live_groups) == [False]
    queue: Any = SimpleNamespace(settings=model._group_settings)
    assert GroupQueue.live(queue, [group]) == [True]


def test_parts_have_the_unit_of_the_reward() -> None:
    settings: dict[str, Any] = {"verifier": [is_digit, is_right], "reward_weights": [0.5, 2.0], "max_answer_tokens": 3}
    env = VerifierTextEnv(SUMS, reward_correct=2.0, reward_wrong=-1.0, **settings)
    reward, info = play(env, "7.")[-1]
    assert info["reward_weights"] == {"is_digit": 1.5, "is_right": 6.0} and reward == -1.0 + 1.5 + 6.0
    env.close()


def test_a_missing_part_has_its_own_weight() -> None:
    group = Group(0, None)
    parts = [{"a": (1.0, 0.2)}, {"a": (1.0, 0.2)}, {}]
    group.episodes = [
        Episode(i, group, i, outcome=sum(v * w for v, w in each.values()), reward_parts=each) for i, each in enumerate(parts)
    ]
    spread = 3**-0.5
    expected = [[0.2 * (1 / 3) / spread] * 2 + [0.2 * (-2 / 3) / spread]]
    th.testing.assert_close(normalized_outcomes([group]), th.tensor(expected, dtype=th.float64), atol=1e-6, rtol=0)
    group.episodes = [Episode(i, group, i) for i in range(3)]
    assert normalized_outcomes([group]).isnan().all()


def test_an_update_without_a_finished_answer_goes_on() -> None:
    verifier = lambda answer, reference: {"format": 0.5, "right": 0.5 * (answer == reference)}  # noqa: E731
    env = VerifierTextVecEnv(8, seed=0, task=SUMS, verifier=verifier, max_answer_tokens=1)
    settings = {"n_groups": 1, "group_size": 8, "advantage": "outcome", "policy_kwargs": {"width": 16}, "device": "cpu"}
    model = GRPO("TokenPolicy", env, seed=3, normalize_reward_parts=True, **settings).learn(40)
    assert model.num_timesteps >= 40
    env.close()


def test_parts_need_an_environment_that_has_some() -> None:
    settings = {**presets.TEXT, "group_size": 4, "n_groups": 2, "normalize_reward_parts": True}
    model = GRPO("TokenPolicy", VerifierTextVecEnv(8, task=SUMS), device="cpu", policy_kwargs={"width": 16}, **settings)
    with pytest.raises(ValueError, match="the info of the last step needs reward_parts"):
        model.learn(200)
    with pytest.raises(ValueError, match=r"n_steps=8 takes .* and normalize_reward_parts=True needs whole"):
        GRPO("MlpPolicy", "CartPole-v1", n_steps=8, normalize_reward_parts=True)


@pytest.mark.parametrize("verifier", [lambda answer: 1.0, lambda answer, reference, more: 1.0])
def test_a_verifier_of_another_signature_is_refused_at_once(verifier: Any) -> None:
    with pytest.raises(
        ValueError, match=r"<lambda>\(answer.*\) is called with an answer and its reference: .* Write <lambda>"
    ):
        VerifierTextVecEnv(4, verifier=verifier)
    VerifierTextVecEnv(4, verifier=lambda answer, reference, more=1: 1.0)


def test_names_of_trl_are_translated() -> None:
    with pytest.raises(TypeError, match="has no argument 'max_completion_length': write max_answer_tokens"):
        VerifierTextVecEnv(4, max_completion_length=8)
    with pytest.raises(TypeError, match="VerifierTextVecEnv has no argument 'verifer': did you mean 'verifier'"):
        VerifierTextVecEnv(4, verifer="exact")
