"""Clips of the agents of a comparison: an untrained one and each variant side by side, from the same start."""

import base64
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sb3_grpo.classroom.clips.episodes import MAX_STEPS, Episode, Reply
from sb3_grpo.classroom.clips.pictures import MAX_BYTES, format_return, separate_pictures
from sb3_grpo.classroom.clips.recording import Exchanges, Pair
from sb3_grpo.classroom.clips.stored import DESCRIPTION, SHEET, load_played
from sb3_grpo.classroom.compare.packed import is_packed
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.runs import run_folder
from sb3_grpo.utils.user_warnings import warn_user

# Maximum number of variants side by side; more cannot be followed at once
MAX_VARIANTS = 11
UNTRAINED = "untrained"


@dataclass
class Panel:
    """
    The clip of an agent.

    :param name: name of the variant, or ``UNTRAINED``
    :param seed: seed of its run
    :param alt: alternative text
    :param moving: the animation as a data URL
    :param still: its last frame as a data URL
    """

    name: str
    seed: int
    alt: str
    moving: str
    still: str


@dataclass
class Clip:
    """
    The clips of the agents on an environment.

    :param caption: caption that describes them
    :param panels: the clips
    :param exchanges: for text environments: each question with the answers of the agents
    :param reason: why there is neither
    """

    caption: str = ""
    panels: list[Panel] = field(default_factory=list)
    exchanges: list[tuple[str, list[tuple[str, Reply]]]] = field(default_factory=list)
    reason: str = ""


def median_seeds(results: Results, env: str) -> dict[str, int]:
    """
    :param results: results of a comparison
    :param env: an environment
    :return: for each variant, the seed with the median final return among finished runs that have a clip or a reason for its
        absence; with an even number, the lower of the two in the middle
    """
    seeds = {}
    for name in results.variants[:MAX_VARIANTS]:
        done = sorted(results.done(env, name).seed)
        if done:
            scores = results.final_scores(env, name, results.main_mode(env)).tolist()
            found = [
                (score, int(seed))
                for score, seed in sorted(zip(scores, done, strict=True))
                if (_source(results, env, name, seed) / DESCRIPTION).is_file()
            ]
            if found:
                seeds[name] = found[(len(found) - 1) // 2][1]
    return seeds


def _folder(root: Path, env: str, variant: str, seed: int) -> Path:
    run = run_folder(root, env, variant, seed)
    return root / "clips" / run.relative_to(root / "runs") if is_packed(root) else run


def _source(results: Results, env: str, name: str, seed: int) -> Path:
    return _folder(results.roots.get((env, name, seed), results.folder), env, name, seed)


def _load(results: Results, env: str) -> dict[str, tuple[int, Pair | Exchanges | str]]:
    found = {}
    for name, seed in median_seeds(results, env).items():
        try:
            played = load_played(_source(results, env, name, seed))
        except ValueError as error:
            warn_user(f"{error}. This clip is left out.")
            continue
        if played is not None:
            found[name] = (seed, played)
    return found


def pack_clips(results: Results, target: Path) -> None:
    """
    Write the data for the clips of a report.

    :param results: results of a comparison
    :param target: folder with the packed results
    """
    # Remove clips of other runs that were packed before; other files in the folder are not ours
    for path in [path for name in (SHEET, DESCRIPTION) for path in (target / "clips").rglob(name)]:
        path.unlink()
    for env in results.envs:
        for name, (seed, _) in _load(results, env).items():
            folder = _folder(target, env, name, seed)
            folder.mkdir(parents=True, exist_ok=True)
            source = _source(results, env, name, seed)
            # Only these files
            for path in (source / file for file in (SHEET, DESCRIPTION)):
                if path.is_file():
                    shutil.copyfile(path, folder / path.name)


def env_clip(results: Results, env: str) -> Clip | None:
    """
    :param results: results of a comparison
    :param env: an environment
    :return: clips of its agents, as far as runs have recorded them
    """
    found = _load(results, env)
    pairs = {name: (seed, played) for name, (seed, played) in found.items() if isinstance(played, Pair)}
    # If an agent does not finish any answer, there is nothing to show
    texts = {name: (seed, each) for name, (seed, each) in found.items() if isinstance(each, Exchanges) and all(each)}
    n_variants = len(results.variants)
    whose = "each variant" if n_variants <= MAX_VARIANTS else f"each of the first {MAX_VARIANTS} of {n_variants} variants"
    if pairs:
        return _pictures(env, pairs, whose)
    if texts:
        return _texts(texts, whose)
    reasons = [played for _, played in found.values() if isinstance(played, str)]
    return Clip(reason=reasons[0]) if reasons else None


def _caption(actions: str, whose: str, first: str, seed: int, below: str) -> str:
    return (
        f"{actions} from the same start: of {whose}, the run whose final return is the median of those with a clip. "
        f"Untrained: {first}, seed {seed}, before it learned. {below}"
    )


def _pictures(env: str, pairs: Mapping[str, tuple[int, Pair]], whose: str) -> Clip:
    first_name, (first_seed, first) = next(iter(pairs.items()))
    shown = [(UNTRAINED, first_seed, first.untrained)] + [(name, seed, pair.trained) for name, (seed, pair) in pairs.items()]
    # Encoded as text in the page, it is a good third larger
    moving, still = separate_pictures([episode for _, _, episode in shown], MAX_BYTES * 7 // 10)
    panels = [
        Panel(name, seed, f"{env}, {name}, seed {seed}: {_outcome(episode)}.", _address(moving[place]), _address(still[place]))
        for place, (name, seed, episode) in enumerate(shown)
    ]
    below = "Below each: the step, and the return so far."
    caption = _caption("Sampled actions, as in training,", whose, first_name, first_seed, below)
    return Clip(caption, panels)


def _outcome(episode: Episode) -> str:
    so_far = "the episode is over" if episode.ended else f"the first {MAX_STEPS:,} steps"
    return f"return {format_return(episode.total)} after {episode.length:,} steps, {so_far}"


def _address(picture: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(picture).decode()}"


def _texts(texts: Mapping[str, tuple[int, Exchanges]], whose: str) -> Clip:
    first_name, (first_seed, first) = next(iter(texts.items()))
    columns = [(UNTRAINED, first.untrained)] + [(name, exchanges.trained) for name, (_, exchanges) in texts.items()]
    rows = [
        (replies[0].question, [(name, reply) for (name, _), reply in zip(columns, replies, strict=True)])
        for replies in zip(*(replies for _, replies in columns), strict=False)
    ]
    caption = _caption("Most likely answers", whose, first_name, first_seed, "After each answer: its reward.")
    return Clip(caption, exchanges=rows)
