"""Presets: complete, the same for both classes, and the algorithms of trl on the same numbers."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import FloatSchedule
from toy_envs import TINY, TINY_TEXT, ToyEnv, judged, parameters_of

import sb3_grpo.grpo.grpo
from sb3_grpo import DAPO, GRPO, make_group_env, presets
from sb3_grpo.cli.settings import known_settings
from sb3_grpo.common.advantages import group_advantages
from sb3_grpo.common.batch import GroupBatch, Minibatch
from sb3_grpo.envs import VerifierTextVecEnv

# Written by benchmarks/trl_losses.py
TRL: dict[str, Any] = json.loads((Path(__file__).parent / "trl_losses.json").read_text())
# Of the constructor, those that a paper may be silent about: sizes, and what belongs to the task or the machine
FREE = {
    *("policy", "env", "learning_rate", "group_size", "n_groups", "batch_size", "gradient_accumulation_steps"),
    *("gamma", "gae_lambda", "max_grad_norm", "unrelated_starts", "start_sampler"),
    "max_sampling_rounds",  # only used where dynamic_sampling is set
    *("use_sde", "sde_sample_freq", "stats_window_size", "tensorboard_log", "policy_kwargs", "verbose", "seed", "device"),
    *("use_masking", "vf_coef"),
    "_init_setup_model",
}
SMALL: dict[str, Any] = {"policy_kwargs": TINY, "seed": 0, "device": "cpu"}


def make_model(name: str, algo: type[GRPO] = GRPO, **changes: Any) -> Any:
    env = make_group_env(functools.partial(ToyEnv, length=None), 4)
    return algo("MlpPolicy", env, **{**SMALL, **presets.PRESETS[name], "group_size": 4, **changes})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", presets.PRESETS)
def test_both_classes_are_the_same_with_a_preset(name: str) -> None:
    preset = presets.preset(name)
    missing = known_settings(GRPO).keys() - FREE - preset.keys()
    assert not missing, "a preset says all that is not free"
    grpo, dapo = make_model(name), make_model(name, DAPO)
    for key in preset:
        mine, other = getattr(grpo, key), getattr(dapo, key)
        assert mine == other or isinstance(mine, FloatSchedule), key
        if isinstance(mine, FloatSchedule):
            assert mine(0.5) == other(0.5), key


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_learns_a_control_task(name: str) -> None:
    model = make_model(name, learning_rate=0.01)
    before = parameters_of(model)
    model.learn(1000)
    assert model._n_updates > 0
    assert not th.equal(parameters_of(model), before)
    whole = name != "vpg"
    assert (model.n_steps is None) == whole and (model.n_groups is None) != whole


@pytest.mark.parametrize("algo", [GRPO, DAPO])
def test_settings_for_texts(algo: type[GRPO]) -> None:
    model = algo("TokenPolicy", VerifierTextVecEnv(64), **presets.TEXT, policy_kwargs=TINY_TEXT, seed=0, device="cpu")
    model.policy.pretrain([("1+2=", "3"), ("4+8=", "12")], n_epochs=60, learning_rate=1e-2)
    model.learn(1000)
    assert model.policy.generate(["1+2=", "4+8="]) == ["3", "12"], "the warm start is kept"
    assert model._n_updates > 0


@pytest.mark.parametrize("name", [name for name in presets.PRESETS if name != "vpg"])
def test_a_preset_learns_a_task_of_text(name: str) -> None:
    env = VerifierTextVecEnv(8, seed=0, task=[("a", "b"), ("b", "a")], max_answer_tokens=2)
    settings = {**SMALL, **presets.PRESETS[name], "policy_kwargs": TINY_TEXT, "group_size": 8}
    model = GRPO("TokenPolicy", env, **settings)
    model.learn(100)
    assert model._n_updates > 0


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="Unknown preset 'grpo', must be one of vpg, grpo-paper, grpo-paper-process, dr-grpo"):
        presets.preset("grpo")
    presets.preset("vpg")["n_epochs"] = 100
    assert presets.VPG["n_epochs"] == 1, "a copy"


def test_vpg_makes_one_step_along_the_policy_gradient() -> None:
    """The step of plain gradient descent is that of -mean(A log pi), with A = R - b minus its mean over the group."""

    class Seen(GRPO):
        def _judge(self, *args: Any) -> Any:
            self.seen = super()._judge(*args)
            return self.seen

    plain = {**TINY, "optimizer_class": th.optim.SGD}
    model = make_model("vpg", Seen, policy_kwargs=plain, learning_rate=0.5, max_grad_norm=float("inf"))
    before = parameters_of(model)
    model.learn(1)
    after = parameters_of(model)
    batch = model.seen.batch
    th.nn.utils.vector_to_parameters(before, model.policy.parameters())
    steps = th.arange(len(batch.rows))
    log_prob = model.policy.get_distribution(batch.observations_at(Minibatch(steps, None, 1))).log_prob(
        batch.actions[batch.rows]
    )
    loss = -(model.seen.advantages * log_prob).mean()
    gradient = th.autograd.grad(loss, list(model.policy.parameters()))
    expected = th.cat([each.flatten() for each in gradient])
    assert expected.abs().max() > 1e-3
    th.testing.assert_close(after, before - 0.5 * expected, rtol=1e-4, atol=1e-6)


# --- trl ----------------------------------------------------------------------------------------------------------------


class Known:
    """A distribution whose log probabilities are known: an action is the number of its step."""

    def __init__(self, log_probs: th.Tensor):
        self.log_probs = log_probs

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        return self.log_probs[actions]

    def entropy(self) -> th.Tensor:
        return th.zeros(len(self.log_probs))


def trl_batch() -> tuple[GroupBatch, dict[str, th.Tensor]]:
    """The answers of the file as a batch, and the log probabilities of their tokens, flat."""
    given = {key: th.tensor(values) for key, values in TRL["given"].items()}
    lengths = given["lengths"].reshape(3, 4)
    longest = int(lengths.max())
    mask = th.arange(longest) < lengths[..., None]
    rewards = th.zeros(mask.shape, dtype=th.float64)
    rewards.scatter_(-1, lengths[..., None] - 1, given["rewards"].double().reshape(3, 4, 1))
    flat = {key: given[key][:, :longest][mask.flatten(0, 1)] for key in ("old", "new", "ref")}
    n_steps = int(lengths.sum())
    steps = th.arange(n_steps)
    batch = GroupBatch(
        observations=steps[:, None].float(),
        actions=steps,
        old_log_prob=flat["old"],
        rows=steps,
        episode=th.arange(12).repeat_interleave(lengths.flatten()),
        time=th.arange(longest).expand(12, longest)[mask.flatten(0, 1)],
        rewards=rewards,
        mask=mask,
        lengths=lengths,
        outcomes=rewards.sum(-1),
        truncated=th.zeros(3, 4, dtype=th.bool),
        elapsed=th.zeros(3, 4, dtype=th.long),
        unfinished=th.zeros(0, dtype=th.long),
        next_observations=None,
    )
    return batch, flat


@pytest.mark.parametrize("case", TRL["expected"])
def test_presets_have_the_losses_and_gradients_of_trl(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, estimator = case.partition(", ")
    changes = {"kl_estimator": estimator} if estimator else {"clip_range_high": 0.5} if name == "cispo" else {}
    model = make_model(name, n_groups=3, **changes)
    batch, log_probs = trl_batch()
    # trl adds more to the standard deviation
    ours = functools.partial(group_advantages, eps=TRL["epsilon"])
    monkeypatch.setattr(sb3_grpo.grpo.grpo, "group_advantages", ours)
    # RLOO is on-policy
    new = log_probs["old" if name == "rloo" else "new"].clone().requires_grad_()
    monkeypatch.setattr(model.policy, "get_distribution", lambda _: Known(new))
    if model.reference is not None:
        monkeypatch.setattr(model.reference.policy, "get_distribution", lambda _: Known(log_probs["ref"]))
    model.batch = batch
    model.set_logger(Logger(None, []))
    of_update = judged(model)
    loss, stats = model._loss(of_update, Minibatch(of_update.kept, None, 1))
    (gradient,) = th.autograd.grad(loss, new)

    expected = TRL["expected"][case]
    firsts = batch.time == 0
    th.testing.assert_close(of_update.advantages[firsts], th.tensor(expected["advantages"]), rtol=1e-5, atol=1e-6)
    wanted = th.tensor(expected["gradient"])[:, : batch.mask.shape[-1]][batch.mask.flatten(0, 1)]
    assert wanted.abs().max() > 1e-6
    th.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-7)
    if name != "rloo":  # whose value is of the ratio of whole answers: at 1 only the gradient is the same
        assert loss.item() == pytest.approx(expected["loss"], rel=1e-5, abs=1e-7)
        clipped = sum(share for key, share in stats.items() if key.startswith("clip_fraction_"))
        assert clipped > 0.0 or name == "sapo", "numbers that clipping matters for"
