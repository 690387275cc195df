"""SmolLM2 learns from a verifier: speed, memory and learning."""

import os


def language_model() -> str:
    """
    :return: Folder of SmolLM2-135M-Instruct
    """
    return os.environ["SMOL"]
