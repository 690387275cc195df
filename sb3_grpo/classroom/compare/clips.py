"""Clips in reports: each variant before and after training."""

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from sb3_grpo.classroom.compare.collect import is_packed
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.runs import CLIP, run_folder
from sb3_grpo.utils.files import replace_file
from sb3_grpo.utils.user_warnings import warn_user


@dataclass
class Panel:
    """
    The clip of a run.

    :param name: name of the variant
    :param seed: seed of the run
    :param alt: alternative text
    :param moving: the animation as a data URL
    :param still: its last image as a data URL
    """

    name: str
    seed: int
    alt: str
    moving: str
    still: str


@dataclass
class Clip:
    """
    The clips of an environment.

    :param caption: caption that describes them
    :param panels: one for each variant
    """

    caption: str
    panels: list[Panel] = field(default_factory=list)


def median_seeds(results: Results, env: str) -> dict[str, int]:
    """
    :param results: results of a comparison
    :param env: an environment
    :return: for each variant, the seed with the median final return among finished runs that have a clip; with an even
        number, the lower of the two in the middle
    """
    seeds = {}
    for name in results.variants:
        done = sorted(results.done(env, name).seed)
        scores = results.final_scores(env, name, results.main_mode(env)).tolist() if done else []
        found = [
            (score, int(seed)) for score, seed in zip(scores, done, strict=True) if _path(results, env, name, seed).is_file()
        ]
        if found:
            seeds[name] = sorted(found)[(len(found) - 1) // 2][1]
    return seeds


def _in_folder(root: Path, env: str, variant: str, seed: int) -> Path:
    run = run_folder(root, env, variant, seed)
    return (root / "clips" / run.relative_to(root / "runs") if is_packed(root) else run) / CLIP


def _path(results: Results, env: str, name: str, seed: int) -> Path:
    return _in_folder(results.roots.get((env, name, seed), results.folder), env, name, seed)


def pack_clips(results: Results, target: Path) -> None:
    """
    Write the clips of a report.

    :param results: results of a comparison
    :param target: folder with the packed results
    """
    # The results may come from this folder: read all clips before any is written or removed
    clips = {
        _in_folder(target, env, name, seed): _path(results, env, name, seed).read_bytes()
        for env in results.envs
        for name, seed in median_seeds(results, env).items()
    }
    for path, content in clips.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as file:
            file.write(content)
    # Clips of other runs that were packed before; other files in the folder are not ours
    for path in {*(target / "clips").rglob(CLIP)} - {*clips}:
        path.unlink()


def env_clip(results: Results, env: str) -> Clip | None:
    """
    :param results: results of a comparison
    :param env: an environment
    :return: clips of its agents, as far as runs have recorded them
    """
    clip = Clip(
        "Sampled actions, before and after training from the same start: of each variant, the run whose final return is the "
        "median of those with a clip."
    )
    for name, seed in median_seeds(results, env).items():
        path = _path(results, env, name, seed)
        try:
            moving, still = path.read_bytes(), io.BytesIO()
            with Image.open(io.BytesIO(moving), formats=["WEBP"]) as picture:
                picture.seek(picture.n_frames - 1)
                picture.save(still, "WEBP", quality=75)
        # The errors that Pillow raises for damaged images differ between versions
        except (OSError, EOFError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            warn_user(f"{path} is damaged ({error}). This clip is left out.")
            continue
        alt = f"{env}, {name}, seed {seed}: an episode before and one after training"
        clip.panels.append(Panel(name, seed, alt, _address(moving), _address(still.getvalue())))
    return clip if clip.panels else None


def _address(picture: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(picture).decode()}"
