"""Steps of the optimizer that would spoil the policy are refused."""

from typing import Any

import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.common.diagnostics import what_broke

SMALL: dict[str, Any] = {"n_steps": 32, "n_epochs": 2, "batch_size": 16, "seed": 0, "device": "cpu"}


class SpoilGradients(BaseCallback):
    """
    Makes gradients infinite.

    :param which: In which passes
    """

    def __init__(self, which: set[int]):
        super().__init__()
        self.which, self.n_passes = which, 0

    def _init_callback(self) -> None:
        self.model.policy.action_net.weight.register_hook(self._hook)

    def _hook(self, gradient: th.Tensor) -> th.Tensor:
        self.n_passes += 1
        return gradient * th.inf if self.n_passes in self.which else gradient

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize("algo", [GRPO, DAPO])
def test_a_gradient_that_is_not_finite_does_not_touch_the_policy(algo: type[GRPO]) -> None:
    model = algo("MlpPolicy", make_group_env("CartPole-v1", 2), **SMALL)
    with pytest.warns(UserWarning, match=r"refused at 64 steps: the gradient of action_net\.weight is not finite"):
        model.learn(640, callback=SpoilGradients({1, 2, 6}))
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())
    assert all(th.isfinite(state["exp_avg"]).all() for state in model.policy.optimizer.state.values())


def test_training_ends_when_all_steps_are_refused(tmp_path: Any) -> None:
    model = GRPO("MlpPolicy", make_group_env("CartPole-v1", 2), **SMALL)
    before = [parameter.clone() for parameter in model.policy.parameters()]
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"10 steps of the optimizer in a row were refused"):
        model.learn(10_000, callback=SpoilGradients({*range(10_000)}))
    assert all(th.equal(now, then) for now, then in zip(model.policy.parameters(), before, strict=True))
    model.save(tmp_path / "model")
    env = make_vec_env("CartPole-v1")
    GRPO.load(tmp_path / "model").predict(env.reset())


def test_what_broke_is_the_first_of_a_chain() -> None:
    sound, nan = th.zeros(3), th.tensor(th.nan)
    layer = th.nn.Linear(1, 1)
    layer.weight.grad, layer.bias.grad = th.ones(1, 1), th.full((1,), th.inf)
    named = list(layer.named_parameters())
    stats = [{"ratio_max": th.tensor(1.0), "loss": nan}, {"ratio_max": th.tensor(th.inf), "loss": nan}]
    assert what_broke(th.tensor([0.0, th.nan]), stats, named) == "1 of 2 advantages are not finite (nan)"
    assert what_broke(sound, stats, named) == "the ratio of the new to the old probability of an action is inf"
    assert what_broke(sound, stats[:1], named) == "the loss is nan"
    assert what_broke(sound, [{"loss": th.tensor(0.0)}], named) == "the gradient of bias is not finite"
