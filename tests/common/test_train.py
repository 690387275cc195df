"""One update: minibatches, the statistics of the loss, and what stops it."""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from toy_envs import TINY, ToyEnv, judged, observations_of, parameters_of

from sb3_grpo.common import on_group_algorithm
from sb3_grpo.common.batch import Minibatch, minibatches
from sb3_grpo.common.buffers import Acted, GroupRolloutBuffer
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.dapo import DAPO
from sb3_grpo.groups.group import Episode, Group
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env


class Kept(GRPO):
    """Keeps what the update has seen."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.minibatches: list[dict[str, Any]] = []
        self.means: list[dict[str, float]] = []
        super().__init__(*args, **kwargs)

    def _loss(self, judged: Any, minibatch: Minibatch) -> Any:
        loss, stats = super()._loss(judged, minibatch)
        seen = {"steps": minibatch.steps, "loss": loss.item()}
        self.minibatches.append({**seen, **stats})
        return loss, stats

    def _log_update(self, stats: list[dict[str, th.Tensor]], *clip: Any) -> None:
        self.means.append({key: value.item() for key, value in stats[-1].items()})
        super()._log_update(stats, *clip)


def make_model(algo: Any = Kept, env: Any = None, n_envs: int = 3, **kwargs: Any) -> Any:
    env = env or make_group_env(functools.partial(ToyEnv, length=None), n_envs)
    small = {"group_size": 4, "n_groups": 3, "n_epochs": 1, "policy_kwargs": TINY, "device": "cpu", "seed": 0}
    return algo("MlpPolicy", env, **{**small, "gamma": 1.0, "learning_rate": 0.01, **kwargs})


def collected(**kwargs: Any) -> Any:
    """A model that has collected its first batch, and not changed its policy."""
    model = make_model(learning_rate=0.0, **kwargs)
    model.learn(1)
    return model


def whole_loss(model: Any) -> th.Tensor:
    of_update = judged(model)
    return model._loss(of_update, Minibatch(of_update.kept, None, 1))[0]


@pytest.mark.parametrize("ratio_level", ["step", "episode"])
@pytest.mark.parametrize("loss_average", ["episode", "step", 10.0])
@pytest.mark.parametrize("batch_size", [1, 16])
@pytest.mark.parametrize("overlong_filter", [False, True])
def test_minibatches_add_up_to_the_batch(ratio_level: str, loss_average: Any, batch_size: int, overlong_filter: bool) -> None:
    env = make_group_env(functools.partial(ToyEnv, length=None), 3)
    for copy in env.envs[1:]:
        copy.unwrapped.time_limit = True
    model = collected(
        env=env,
        ratio_level=ratio_level,
        loss_average=loss_average,
        overlong_filter=overlong_filter,
        ent_coef=0.1,
        kl_coef=0.1,
    )
    # Away from the policy that has acted, so that ratios and clipping matter
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(0.3 * th.randn_like(parameter))
    gradient = th.cat([each.flatten() for each in th.autograd.grad(whole_loss(model), list(model.policy.parameters()))])
    batch, of_update = model.batch, judged(model)
    kept = of_update.kept
    if not overlong_filter:
        assert len(kept) == len(batch.rows) == int(batch.lengths.sum())
    pieces = list(minibatches(batch.episode, kept, batch_size, ratio_level == "episode"))
    assert {piece.n_minibatches for piece in pieces} == {len(pieces)}
    assert sorted(th.cat([piece.steps for piece in pieces]).tolist()) == kept.tolist(), "every step is in one minibatch"
    total = th.zeros_like(gradient)
    for piece in pieces:
        steps = piece.steps
        if ratio_level == "step":
            assert len(steps) <= batch_size
        else:
            episodes = batch.episode[steps].unique()
            assert sorted(piece.episodes.tolist()) == episodes.tolist()
            assert len(steps) <= batch_size or len(episodes) == 1
            assert len(steps) == int(batch.lengths.flatten()[episodes].sum()), "episodes are not torn apart"
        loss, _ = model._loss(of_update, piece)
        total += th.cat([each.flatten() for each in th.autograd.grad(loss, list(model.policy.parameters()))]) / len(pieces)
    th.testing.assert_close(total, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("whole_episodes", [False, True])
def test_without_a_batch_size_there_is_one_minibatch(whole_episodes: bool) -> None:
    episode, kept = th.arange(10).repeat_interleave(3), th.arange(0, 30, 2)
    (part,) = minibatches(episode, kept, None, whole_episodes)
    assert part.n_minibatches == 1 and part.steps.sort().values.equal(kept)
    model = collected(batch_size=None, n_epochs=2, loss_average="episode")
    assert [len(each["steps"]) for each in model.minibatches] == 2 * [len(model.batch.rows)]


def test_minibatch_sizes_are_nearly_equal() -> None:
    episode = th.zeros(103, dtype=th.long)
    sizes = [len(piece.steps) for piece in minibatches(episode, th.arange(103), 25)]
    assert sorted(sizes) == [20, 20, 21, 21, 21]


@pytest.mark.parametrize(
    ("lengths", "batch_size", "expected"),
    [
        ([10] * 61, 100, [80] + [90] * 5 + [80]),  # and no stub of one episode, which would be a step of the optimizer as any
        ([100] * 8, 510, [400, 400]),
        ([60] * 4, 100, [60] * 4),
        ([20, 150, 20], 30, [20, 20, 150]),  # one is too long, and alone
        ([10] * 10, 100, [100]),
    ],
)
def test_minibatches_of_whole_episodes_are_nearly_equal(lengths: list[int], batch_size: int, expected: list[int]) -> None:
    episode = th.arange(len(lengths)).repeat_interleave(th.tensor(lengths))
    parts = list(minibatches(episode, th.arange(len(episode)), batch_size, whole_episodes=True))
    assert sorted(len(part.steps) for part in parts) == sorted(expected)


def test_groups_stay_together() -> None:
    """Next to each other, where minibatches begin and end in the middle of a group as well, in a new order in each epoch."""
    th.manual_seed(0)
    lengths = th.randint(1, 6, (32,))
    episode = th.arange(32).repeat_interleave(lengths)
    kept = th.arange(len(episode))[episode != 5]
    orders = []
    for _ in range(2):
        parts = list(minibatches(episode, kept, 10, True, 4))
        orders.append([int(index) for part in parts for index in part.episodes])
        assert sorted(orders[-1]) == [index for index in range(32) if index != 5]
        groups = [index // 4 for index in orders[-1]]
        assert sum(one != other for one, other in itertools.pairwise(groups)) == 7
    assert [index // 4 for index in orders[0]] != [index // 4 for index in orders[1]]
    first, second = ([index for index in order if index < 4] for order in orders)
    assert first != second, "members are shuffled as well"


def test_default_loss_average_goes_with_the_advantages(tmp_path: Path) -> None:
    # One judgement per step, or one per episode
    assert make_model(GRPO).loss_average == "step"
    model = make_model(GRPO, advantage="outcome")
    assert model.loss_average == "episode"
    model.save(tmp_path / "model.zip")
    assert GRPO.load(tmp_path / "model.zip").loss_average == "episode"
    assert make_model(GRPO, loss_average="episode").loss_average == "episode"
    assert make_model(GRPO, ratio_level="episode").loss_average == "episode", "as in GSPO"
    assert make_model(DAPO, advantage="outcome").loss_average == "step"


@pytest.mark.parametrize("unit", ["n_groups", "n_steps"])
def test_dynamic_sampling_without_a_limit(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_group_algorithm, "MAX_DEAD_STEPS", 300)
    size = {"n_groups": 6} if unit == "n_groups" else {"n_groups": None, "n_steps": 16}

    def make(**kwargs: Any) -> Any:
        env = make_group_env(functools.partial(ToyEnv, **kwargs), 2)
        return make_model(DAPO, env=env, group_size=2, max_sampling_rounds=None, gamma=1.0, **size)

    # Some groups are live: any number of rounds, until there are enough
    model = make(length=1).learn(1)
    assert model._sampling_rounds > 1
    if unit == "n_groups":
        assert len(model.batch.lengths) == 6
        model.n_groups = 400
        assert len(model.learn(1).batch.lengths) == 400 and model.num_timesteps > 2 * 300, "live groups are there"
    # None is
    model = make(length=1, reward=1.0)
    with pytest.raises(ValueError, match=r"300 steps have brought no live group.* such as max_sampling_rounds=4"):
        model.learn(1)
    assert model.num_timesteps == 300
    model.dynamic_sampling = False
    assert model.learn(1).num_timesteps < 300
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2 .* batch_size=None there is only one"):
        make_model(batch_size=None, gradient_accumulation_steps=2)


@pytest.mark.parametrize("rounds", [1, 2, 8])
def test_dynamic_sampling_fills_up_with_live_groups(rounds: int) -> None:
    env = make_group_env(functools.partial(ToyEnv, length=1), 2)
    model = make_model(DAPO, env=env, group_size=2, n_groups=6, max_sampling_rounds=rounds, gamma=1.0)
    model.learn(1)
    live = model.batch.rewards.sum(-1)
    assert (live[:, 0] != live[:, 1]).all()
    assert model._sampling_rounds <= rounds
    if rounds == 8:
        assert len(live) == 6
        assert 1 < model._sampling_rounds


def test_steps_of_open_episodes_are_kept_and_found_again() -> None:
    """Episodes of any length on 5 copies. What a step holds says where it comes from."""
    space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    buffer = GroupRolloutBuffer(space, spaces.Discrete(2), th.device("cpu"), n_envs=5)
    policy = ActorPolicy(space, spaces.Discrete(2), lambda _: 0.0, TINY["net_arch"])
    rng = np.random.default_rng(0)
    logits = th.as_tensor(rng.normal(size=(5000, 2)))
    playing: list[Episode] = []
    open_groups: list[Group] = []
    steps: dict[Episode, list[int]] = {}
    for row in range(1000):
        for idx in range(5):
            if row == 0 or rng.random() < 0.1:
                group = Group(len(open_groups), None)
                group.episodes = [Episode(len(steps), group, 0, env=idx, first_row=buffer.pos)]
                open_groups.append(group)
                playing[idx : idx + 1] = group.episodes
            playing[idx].length += 1
            steps.setdefault(playing[idx], []).append(5 * row + idx)
        numbers = np.arange(5.0) + 5 * row
        buffer.add(numbers[:, None], Acted(np.zeros(5), logits[5 * row : 5 * row + 5]), np.ones(5, bool))
        buffer.add_rewards(numbers)
        if row % 300 == 299:
            # Only the last 7 groups remain, which may have begun long ago
            open_groups = open_groups[-7:]
            buffer.finish_steps(policy)
            buffer.keep([group.episodes[0] for group in open_groups])
    buffer.finish_steps(policy)
    batch = buffer.batch(open_groups)
    expected = [step for group in open_groups for step in steps[group.episodes[0]]]
    assert len(expected) > 500
    assert isinstance(batch.observations, th.Tensor)
    assert batch.observations[batch.rows, 0].tolist() == expected == batch.flatten(batch.rewards).tolist()
    assert batch.lengths[:, 0].tolist() == [len(steps[group.episodes[0]]) for group in open_groups]
    np.testing.assert_allclose(batch.old_log_prob[batch.rows], logits.log_softmax(dim=1)[expected, 0], rtol=1e-5)


@pytest.mark.parametrize("size", [{"n_groups": 3}, {"n_groups": None, "n_steps": 16}])
def test_judging_changes_nothing(size: dict[str, Any]) -> None:
    model = make_model(GRPO, **size).learn(200)
    batch = model.batch
    values = model._fit_values(batch)
    first = model._judge(batch, values)
    assert first.advantages.any() and first.advantages.equal(model._judge(batch, values).advantages)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.batch.rewards = first.batch.rewards + 1.0


def test_an_update_in_steps_after_one_of_whole_groups() -> None:
    model = make_model(GRPO, n_groups=2).learn(100)
    model.n_groups, model.n_steps = None, 16
    model.learn(200, reset_num_timesteps=False)
    assert model.value_regression.state_dict()["sums"] is not None


def test_first_epoch_has_ratio_one() -> None:
    for stats in collected(n_epochs=2, batch_size=8).minibatches:
        assert stats["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert stats["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        assert stats["clip_fraction_low"] == stats["clip_fraction_high"] == 0.0


@pytest.mark.parametrize("whole_episodes", [False, True])
def test_minibatches_are_drawn_anew_in_each_epoch(whole_episodes: bool) -> None:
    episode = th.arange(40).repeat_interleave(5)
    epochs = [[*minibatches(episode, th.arange(200), 50, whole_episodes)] for _ in range(3)]
    first = [sorted(parts[0].steps.tolist()) for parts in epochs]
    assert first[0] != first[1] != first[2]
    for parts in epochs:
        # Not a run of neighbouring steps: those of an episode are alike
        assert len(parts[0].steps.diff().unique()) > 2
        assert th.cat([part.steps for part in parts]).sort().values.tolist() == [*range(200)]


def test_target_kl_stops_early() -> None:
    def epochs(target_kl: float | None) -> tuple[int, list[float]]:
        model = make_model(learning_rate=0.05, n_epochs=3, batch_size=None, target_kl=target_kl).learn(1)
        return model._n_updates, [seen["approx_kl"].item() for seen in model.minibatches]

    n_epochs, kl = epochs(None)
    # The KL divergence of the second epoch is below the limit, and then above
    assert n_epochs == 3 and kl[1] > 0.0
    assert epochs(kl[1] / 1.45)[0] == 3
    assert epochs(kl[1] / 1.55)[0] == 2


def test_overlong_filter() -> None:
    env = make_group_env(functools.partial(ToyEnv, length=None), 3)
    env.envs[0].unwrapped.time_limit = True
    model = make_model(env=env, overlong_filter=True).learn(1)
    truncated = model.batch.truncated.flatten()
    assert truncated.any() and not truncated.all()
    steps = th.cat([each["steps"] for each in model.minibatches])
    assert sorted(steps.tolist()) == (~truncated[model.batch.episode]).nonzero().flatten().tolist()
    # They are still compared with
    assert judged(model).advantages[truncated[model.batch.episode]].abs().sum() > 0


@pytest.mark.parametrize("ratio_level", ["step", "episode"])
@pytest.mark.filterwarnings("error")
def test_all_episodes_are_overlong(ratio_level: str) -> None:
    env = make_group_env(functools.partial(ToyEnv, time_limit=True), 2)
    model = make_model(env=env, overlong_filter=True, ratio_level=ratio_level)
    before = parameters_of(model)
    with pytest.warns(UserWarning, match="overlong_filter") as record:
        model.learn(200)
    assert len(record) == 1
    assert th.equal(parameters_of(model), before)
    assert model._n_updates == 0


def test_overlong_range() -> None:
    plain = collected(advantage_scale="none", advantage="outcome")
    punished = collected(advantage_scale="none", advantage="outcome", overlong_range=(4, 8))
    lengths = plain.batch.lengths
    assert th.equal(lengths, punished.batch.lengths)
    penalty = ((4 - lengths.float()) / 4).clamp(-1, 0)
    expected = judged(plain).advantages + plain.batch.flatten(
        (penalty - penalty.mean(1, keepdim=True))[..., None].expand(plain.batch.rewards.shape)
    )
    th.testing.assert_close(judged(punished).advantages, expected)
    # It is a reward of the last step, and so belongs to the return from every step on
    plain.advantage = punished.advantage = "return_to_go"
    changed = judged(punished).advantages - judged(plain).advantages
    assert changed[punished.batch.time == 2].abs().max() > 0.1


def test_ratio_level_episode_shares_the_ratio() -> None:
    model = collected(ratio_level="episode")
    with th.no_grad():
        model.policy.action_net.bias += th.tensor([1.0, -0.5])
    batch = model.batch
    log_prob = model.policy.get_distribution(observations_of(batch)).log_prob(batch.actions[batch.rows])
    of_update = judged(model)
    advantages, weights = of_update.advantages, of_update.weights
    expected = 0.0
    for episode in range(12):
        steps = batch.episode == episode
        ratio = (log_prob[steps] - batch.old_log_prob[batch.rows][steps]).mean().exp()
        gain = th.min(ratio * advantages[steps], ratio.clamp(0.8, 1.2) * advantages[steps])
        expected -= (weights[steps] * gain).sum().item()
    assert whole_loss(model).item() == pytest.approx(expected, abs=1e-5)
    model.ratio_level = "step"
    assert whole_loss(model).item() != pytest.approx(expected, abs=1e-3)


def policy_gradient(model: Any, loss: th.Tensor) -> th.Tensor:
    return th.cat([each.flatten() for each in th.autograd.grad(loss, list(model.policy.parameters()))])


def test_ratio_level_episode_gives_each_step_its_own_advantage() -> None:
    model = collected(ratio_level="episode")
    batch = model.batch
    # (3, 0, 0, ...) in every episode: at ratio one only the first action is to become more likely
    of_update = dataclasses.replace(judged(model), advantages=3.0 * (batch.time == 0))
    weights = of_update.weights
    loss, _ = model._loss(of_update, Minibatch(of_update.kept, None, 1))
    log_prob = model.policy.get_distribution(observations_of(batch)).log_prob(batch.actions[batch.rows])
    first = batch.time == 0
    expected = policy_gradient(model, -(3.0 * weights[first] * log_prob[first]).sum())
    th.testing.assert_close(policy_gradient(model, loss), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("loss_average", "kl_estimator"), [("episode", "exact"), ("step", "k3"), (100.0, "k3_plain")])
def test_the_logged_parts_add_up_to_the_loss(loss_average: Any, kl_estimator: str) -> None:
    model = make_model(
        loss_average=loss_average, kl_estimator=kl_estimator, kl_coef=0.5, ent_coef=0.3, n_epochs=3, batch_size=16
    ).learn(200)
    logged = model.logger.name_to_value
    parts = logged["train/policy_gradient_loss"] + 0.3 * logged["train/entropy_loss"] + 0.5 * logged["train/kl_loss"]
    assert logged["train/loss"] == pytest.approx(parts, abs=1e-6)
    assert 0.4 < logged["train/entropy"] < 0.7, "that of a step, whatever its weight in the loss"


def test_ent_coef() -> None:
    def entropy(ent_coef: float) -> float:
        env = make_group_env(functools.partial(ToyEnv, length=4), 3)
        model = make_model(env=env, ent_coef=ent_coef, learning_rate=0.03, n_epochs=4).learn(800)
        return -model.means[-1]["entropy_loss"]

    assert entropy(0.0) < 0.3 < 0.6 < entropy(10.0)


@pytest.mark.parametrize("interval", [None, 1, 3])
def test_ref_update_interval(interval: int | None) -> None:
    model = make_model(kl_coef=0.01, ref_update_interval=interval, n_epochs=2)
    initial = parameters_of(model)
    seen = []

    def reference() -> th.Tensor:
        return th.nn.utils.parameters_to_vector(model.ref_policy.parameters()).detach().clone()

    for n_updates in range(1, 7):
        model.learn(1)
        assert not reference().requires_grad
        if interval is not None and n_updates % interval == 0:
            assert th.equal(reference(), parameters_of(model))
            seen.append(reference())
        else:
            assert th.equal(reference(), seen[-1] if seen else initial)
    if interval == 1:
        assert not th.equal(seen[0], seen[1])


def test_clip_range_high() -> None:
    """Only a raised upper bound lets the ratio of good actions grow."""
    tight = make_model(n_epochs=30, learning_rate=0.02, clip_range=0.01).learn(1)
    high = make_model(n_epochs=30, learning_rate=0.02, clip_range=0.01, clip_range_high=5.0).learn(1)
    assert tight.minibatches[-1]["clip_fraction_high"] > 0.0
    assert high.minibatches[-1]["clip_fraction_high"] == 0.0
    assert high.minibatches[-1]["ratio_max"] > tight.minibatches[-1]["ratio_max"]


def test_max_grad_norm() -> None:
    small = make_model(max_grad_norm=1e-12, policy_kwargs={**TINY, "optimizer_class": th.optim.SGD})
    before = parameters_of(small)
    small.learn(1)
    th.testing.assert_close(parameters_of(small), before, rtol=0, atol=1e-10)


def test_accumulated_gradients_are_those_of_a_larger_minibatch() -> None:
    def after_update(**kwargs: Any) -> th.Tensor:
        # Not Adam, which makes the same step of gradients of any size
        sgd = {**TINY, "optimizer_class": th.optim.SGD, "optimizer_kwargs": {}}
        model = collected(policy_kwargs=sgd, max_grad_norm=1e9, **kwargs)
        model.learning_rate = 0.1
        model.lr_schedule = lambda _: 0.1
        model.train()
        return parameters_of(model)

    large = after_update(batch_size=10_000)
    th.testing.assert_close(after_update(batch_size=7, gradient_accumulation_steps=1000), large, rtol=0, atol=1e-6)
    assert not th.allclose(after_update(batch_size=7), large, rtol=0, atol=1e-4)
