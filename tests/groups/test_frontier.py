"""Starts in an archive of what was reached."""

import functools
import pickle
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecExtractDictObs, VecNormalize, VecTransposeImage
from toy_envs import TINY, ToyEnv

from sb3_grpo import DAPO, FrontierStarts, SeedStart, make_group_env
from sb3_grpo.groups import frontier
from sb3_grpo.groups.collector import own_observations
from sb3_grpo.groups.frontier import Archive, Cell, FrontierState, _stack
from sb3_grpo.groups.group import Episode, Group
from sb3_grpo.starts.starts import SnapshotStart, StartNotSupportedError

SETTINGS: dict[str, Any] = {"group_size": 4, "policy_kwargs": TINY, "device": "cpu", "seed": 0}


class Corridor(gym.Env[Any, Any]):
    """A reward at the end, which random steps hardly ever reach."""

    observation_space = gym.spaces.Discrete(31)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = max(self.place + (1 if action else -1), 0)
        return self.place, float(self.place == 30), self.place == 30, False, {}

    def get_state(self) -> int:
        return self.place

    def set_state(self, state: int) -> None:
        self.place = state


def corridor(**kwargs: Any) -> gym.Env:
    return gym.wrappers.TimeLimit(Corridor(), 60)


class Seen(gym.ObservationWrapper):
    """
    The corridor, seen in another way.

    :param kind: Which
    """

    SPACES: ClassVar[dict[str, gym.Space]] = {
        "dict": gym.spaces.Dict({"b": gym.spaces.Box(0, 30, (1,), np.int64), "a": gym.spaces.Box(0, 9, (2,), np.int64)}),
        "image": gym.spaces.Box(0, 255, (5, 7, 3), np.uint8),
        "dict with an image": gym.spaces.Dict(
            {"a": gym.spaces.Box(0, 255, (5, 7, 3), np.uint8), "b": gym.spaces.Box(0, 35, (2, 3), np.int64)}
        ),
        "short": gym.spaces.Box(0, 30, (1,), np.int16),
        "float": gym.spaces.Box(0, 30, (2,), np.float32),
    }

    def __init__(self, kind: str):
        super().__init__(corridor())
        self.kind, self.observation_space = kind, self.SPACES[kind]

    def observation(self, observation: Any) -> Any:
        image = np.zeros((5, 7, 3), dtype=np.uint8)
        image[observation // 7, observation % 7, 1] = 1
        return {
            "dict": {"b": np.array([observation]), "a": np.array([observation % 3, 7])},
            "image": image,
            "dict with an image": {"a": image, "b": observation + np.arange(6).reshape(2, 3)},
            "short": np.array([observation]),
            "float": np.array([observation, observation / 4], dtype=np.float32),
        }[self.kind]


def n_right(model: DAPO) -> int:
    return int(sum(model.predict(np.array(place), deterministic=True)[0] == 1 for place in range(30)))


def test_a_distant_reward_is_found_and_learned() -> None:
    learned = {}
    for sampler in (None, FrontierStarts()):
        model = DAPO("MlpPolicy", make_group_env(corridor, 8, seed=0), seed=0, device="cpu", start_sampler=sampler)
        learned[sampler is not None] = n_right(model.learn(30_000))
    assert learned[True] >= 28 > learned[False]


@pytest.mark.parametrize("kind", ["dummy", "subproc"])
def test_groups_begin_where_scouts_have_been(kind: str) -> None:
    env_id = "MountainCar-v0"
    if kind == "subproc":
        env: VecEnv = make_group_env(env_id, 2, seed=0, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
    else:
        env = make_group_env(env_id, 4, seed=0)
    sampler = FrontierStarts()
    DAPO("MlpPolicy", env, start_sampler=sampler, **SETTINGS).learn(4000)
    places = [cell.state.observation[0] for cell in sampler.archive.cells.values()]
    # Actions that are drawn in each step stay within 0.1 of the bottom
    assert max(places) - min(places) > 0.6
    assert any(isinstance(sampler(np.random.default_rng(seed)), FrontierState) for seed in range(10))
    for cell in sampler.archive.cells.values():
        assert cell.n_visits > 0
        assert cell.parent is None or cell.parent.n_steps < cell.n_steps
    env.close()


@pytest.mark.parametrize("is_normalised", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in Seen.SPACES if kind != "dict with an image"])
def test_cells_have_the_same_names_for_copies_and_for_states(kind: str, is_normalised: bool) -> None:
    env: VecEnv = make_group_env(functools.partial(Seen, kind), 4, seed=0)
    if is_normalised:
        env = VecNormalize(env, norm_obs_keys=["b"] if kind == "dict" else None, norm_obs="image" not in kind)
    sampler = FrontierStarts()
    policy = "MultiInputPolicy" if "dict" in kind else "MlpPolicy"
    DAPO(policy, env, start_sampler=sampler, n_steps=64, **SETTINGS).learn(1000)
    cells = sampler.archive.cells
    assert len(cells) > 5
    assert [sampler.archive.keys(_stack([cell.state.observation]))[0] for cell in cells.values()] == [*cells]


def test_observations_are_those_of_the_environment() -> None:
    for wrap in (VecTransposeImage, lambda env: VecNormalize(VecTransposeImage(env), norm_obs=False)):
        inner = make_group_env(functools.partial(Seen, "dict with an image"), 2, seed=0)
        env = wrap(inner)
        env.reset()
        seen = own_observations(env, env.step(np.ones(2, dtype=int))[0])
        assert seen["a"].tolist() == inner._obs_from_buf()["a"].tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["a", "b"])
def test_extracted_observations_are_those_of_the_environment(key: str) -> None:
    inner = make_group_env(functools.partial(Seen, "dict with an image"), 2, seed=0)
    env = VecExtractDictObs(VecTransposeImage(inner), key)
    env.reset()
    seen = own_observations(env, env.step(np.ones(2, dtype=int))[0])
    assert seen.tolist() == inner._obs_from_buf()[key].tolist()  # type: ignore[attr-defined]


def test_a_cell_is_live_by_the_metric_of_groups() -> None:
    sampler, rng = FrontierStarts(), np.random.default_rng(0)
    env = make_group_env(corridor, 2, seed=0)
    sampler.after_step(env, env.reset(), np.zeros(2, dtype=bool), rng)
    (cell,) = sampler.archive.cells.values()
    start = FrontierState(**vars(cell.state))
    for metrics in ((0, 1), (1, 1)):
        episodes = [Episode(n, n, 10, outcome=n, metric=metric) for n, metric in enumerate(metrics)]
        sampler.after_episode(Group(0, start, episodes, [None] * 2, n_ended=2), episodes[-1], {})
        assert cell.is_live == (metrics == (0, 1))


def test_steps_of_scouts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []
    scout = FrontierStarts._scout

    def counting(self: FrontierStarts, env: VecEnv, rng: np.random.Generator) -> int:
        played.append(scout(self, env, rng))
        return played[-1]

    monkeypatch.setattr(FrontierStarts, "_scout", counting)
    model = DAPO("MlpPolicy", make_group_env(corridor, 4, seed=0), start_sampler=FrontierStarts(), n_steps=64, **SETTINGS)
    model.learn(1000)
    assert sum(played) > 0 and (model.num_timesteps - sum(played)) % 4 == 0
    assert 0.1 < sum(played) / (model.num_timesteps - sum(played)) < 0.4


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "Pendulum-v1"])
def test_scouts_leave_no_trace(env_id: str) -> None:
    """Neither in the episode under way nor in what Monitor has counted."""
    if env_id == "LunarLander-v3":
        pytest.importorskip("Box2D")
    seen: list[Any] = []
    actions: list[Any] = []
    for is_scouted in (False, True):
        env = make_group_env(env_id, 1, seed=0)
        env.reset()
        actions = actions or [env.action_space.sample() for _ in range(40)]
        steps = []
        for n_steps, action in enumerate(actions):
            if is_scouted and n_steps in (0, 5):
                (start,) = env.env_method("capture_start")
                (reached,) = env.env_method("scout", start, actions[:20], 3)
                assert reached[0].elapsed == n_steps + 1
                (again,) = env.env_method("scout", reached[3], actions[4:20], 3)
                assert len(again) == len(reached) - 4
            observation, reward, done, infos = env.step([action])
            steps.append((observation.tolist(), reward.tolist(), done.tolist(), infos[0].get("episode", {}).get("l")))
        seen.append(steps)
    assert seen[0] == seen[1]


def test_cells() -> None:
    archive = Archive()
    small = np.array([[3, 1], [3, 1], [3, 2]])
    assert len({*archive.keys(small)}) == 2
    assert len({*archive.keys({"place": small, "key": np.array([0, 1, 1])})}) == 3
    rng = np.random.default_rng(0)
    for n_numbers, at_most in ((1, 12), (2, 144), (6, 729), (50, 1024)):
        archive = Archive()
        archive.keys(rng.uniform(size=(1000, n_numbers)))
        n_cells = len({*archive.keys(rng.uniform(size=(3000, n_numbers)))})
        assert min(12, 0.2 * at_most) <= n_cells <= at_most


def test_ways_to_live_cells_lead_back_to_the_start() -> None:
    archive, rng = Archive(), np.random.default_rng(0)
    state: Any = object()
    cell = None
    for place in range(10):
        cell = archive.reach(bytes([place]), place, cell, state)
    archive.reach(b"aside", 3, None, state)
    assert archive.cell_behind(rng) is None
    archive.cells[bytes([6])].is_live = True
    assert {archive.cell_behind(rng).n_steps for _ in range(200)} == {*range(7)}  # type: ignore[union-attr]


def test_the_archive_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "N_CELLS", 20)
    archive, cell = Archive(), None
    state: Any = object()
    for place in range(200):
        cell = archive.reach(bytes([place]), place, cell, state)
        cell.n_visits = place + 1
    kept, open_cells = set(), [*archive.cells.values()]
    assert len(open_cells) <= 20
    while open_cells:
        each = open_cells.pop()
        if each not in kept:
            kept.add(each)
            open_cells += [] if each.parent is None else [each.parent]
    # Also those that are only remembered as a way to others
    assert len(kept) <= 40


def test_it_fades_out_where_ordinary_starts_succeed() -> None:
    sampler, rng = FrontierStarts(), np.random.default_rng(0)
    env = make_group_env(corridor, 2, seed=0)
    sampler.after_step(env, env.reset(), np.zeros(2, dtype=bool), rng)

    def share() -> float:
        return float(np.mean([isinstance(sampler(rng), FrontierState) for _ in range(200)]))

    def play(*results: float) -> None:
        episodes = [Episode(n, n, 10, result) for n, result in enumerate(results)]
        sampler.after_episode(Group(0, SeedStart(0), episodes, [None] * 4, n_ended=4), episodes[-1], {})

    for _ in range(100):
        play(0, 0, 0, 0)
    assert 0.35 < share() < 0.65
    for _ in range(100):
        play(1, 1, 1, 1)
    assert share() < 0.05


def test_it_is_saved_without_the_states(tmp_path: Any) -> None:
    sampler = FrontierStarts()
    model = DAPO("MlpPolicy", make_group_env(corridor, 4, seed=0), start_sampler=sampler, **SETTINGS).learn(500)
    assert len(sampler.archive.cells) > 5
    assert len(pickle.dumps(sampler)) < 500
    model.save(tmp_path / "model")
    loaded = DAPO.load(tmp_path / "model", env=model.get_env())
    loaded.learn(500)
    assert len(loaded.start_sampler.archive.cells) > 5


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="FrontierStarts needs groups whose members share a start"):
        DAPO("MlpPolicy", "CartPole-v1", start_sampler=FrontierStarts(), unrelated_starts=True)
    for other in ({"vine_share": 0.5}, {"horizon": 8, "n_groups": 4}):
        with pytest.raises(ValueError, match=r"FrontierStarts begins groups in mid-episode already: leave vine_share=0"):
            DAPO("MlpPolicy", "CartPole-v1", start_sampler=FrontierStarts(), **other)  # type: ignore[arg-type]
    with pytest.raises(StartNotSupportedError, match=r"get_state\(self\).*a start_sampler of seeds"):
        DAPO("MlpPolicy", make_group_env(NoState, 4, seed=0), start_sampler=FrontierStarts(), **SETTINGS).learn(100)


class NoState(ToyEnv):
    """Nobody knows how to capture it."""


def test_an_archive_with_long_ways_is_saved_and_loaded() -> None:
    sampler, other = FrontierStarts(), FrontierStarts()
    start = SnapshotStart(observation=np.zeros(1), identity=("toy",), layers=b"")
    cell: Cell | None = None
    for n_steps in range(5000):
        cell = sampler.archive.reach(b"%d" % n_steps, n_steps, cell, start)
        cell.n_visits += n_steps % 7
    assert cell is not None
    cell.is_live = True
    del sampler.archive.cells[b"42"]  # forgotten, but still on the way
    sampler._cells, sampler._n_steps, sampler._hope = [cell, None], [4999, 0], 0.25
    other.load_state_dict(pickle.loads(pickle.dumps(sampler.state_dict())))
    assert other.archive.cells.keys() == sampler.archive.cells.keys()
    assert (other._n_steps, other._hope, other._cells[1]) == ([4999, 0], 0.25, None)
    here = other._cells[0]
    assert here is other.archive.cells[b"4999"] and here is not cell
    for seed in range(5):
        ways = [each.archive.cell_behind(np.random.default_rng(seed)) for each in (sampler, other)]
        assert ways[0].n_steps == ways[1].n_steps  # type: ignore[union-attr]
    while here.parent is not None:
        assert (here.n_steps, here.n_visits) == (cell.n_steps, cell.n_visits)
        here, cell = here.parent, cell.parent  # type: ignore[union-attr, assignment]
    assert here.n_steps == 0
