"""The table of exchanges on the Atari page: ``python -m benchmarks.pages atari``."""

from benchmarks.blocks import Writers, markdown
from benchmarks.common import RESULTS, rows

EXCHANGED = {
    "fast": "GRPO's rates",
    "detached": "the value loss does not train the convolutions",
    "slow": "PPO's rates",
    "unaided": "no auxiliary value loss",
    "forgetful": "values from mean frames, memory 0.5",
    "critic": "values from PPO's critic",
    "short": "discount factor 0.95",
    "shared": "groups that share a life",
}


def exchanges(env_id: str, timesteps: str, max_exchanges: str) -> str:
    """
    :param env_id: Id of a game
    :param timesteps: Only runs of this length
    :param max_exchanges: Maximum number of exchanges of a variant, all of them in ``EXCHANGED``
    :return: A row for each variant: its scores at each time, one for each seed
    """
    runs = [
        row for row in rows(RESULTS / "atari_exchange.jsonl") if (row["env"], row["timesteps"]) == (env_id, int(timesteps))
    ]
    lines: list[list[str]] = []
    at: list[int] = []
    variants = {
        variant
        for variant in {run["variant"] for run in runs}
        if variant.count("_") <= int(max_exchanges) and {*variant.split("_")[1:]} <= EXCHANGED.keys()
    }
    for variant in sorted(variants, key=lambda name: (not name.startswith("ppo"), name.count("_"), name)):
        algo, *changes = variant.split("_")
        found = sorted((run for run in runs if run["variant"] == variant), key=lambda run: run["seed"])
        at = found[0]["steps"]
        scores = [", ".join(f"{run['training'][idx]:.1f}" for run in found) for idx in range(len(at))]
        what = "; ".join(EXCHANGED[change] for change in changes)
        lines.append([f"{algo.upper()}: {what}" if what else algo.upper(), *scores])
    return markdown(["", *(f"{round(steps / 1000)}k" for steps in at)], lines)


WRITERS: Writers = {"exchanges": exchanges}
