"""
Published algorithms as keyword arguments: ``GRPO("MlpPolicy", env, **presets.GRPO_PAPER)``.

Each dictionary contains what an algorithm fixes, and where its paper states it. It is complete: :class:`DAPO` with a preset is
the same as :class:`GRPO` with it. The papers train language models; settings specific to these are left to you: learning
rates, the number of prompts per update (``n_groups``), lengths of answers. Minibatches are sized in steps here
(``batch_size``), so their number is left to you, too. A temperature is an argument of text policies. "Control" marks settings
that do not carry over to control.

``TEXT`` is our own: where to begin with texts and a small ``TokenPolicy``.

References: [DeepSeekMath] arXiv:2402.03300, [Dr. GRPO] arXiv:2503.20783, [RLOO] arXiv:2402.14740, [GSPO] arXiv:2507.18071,
[DAPO] arXiv:2503.14476, [ProRL] arXiv:2505.24864, [MiniMax-M1] arXiv:2506.13585, [ScaleRL] arXiv:2510.13786,
[SAPO] arXiv:2511.20347, [TPO] arXiv:2604.06159.
"""

from math import inf
from typing import Any

# Features that an algorithm does not use unless its dictionary sets them
_WITHOUT: dict[str, Any] = {
    "n_steps": None,
    "leave_one_out": False,
    "normalize_reward_parts": False,
    "ratio_level": "step",
    "policy_loss": "clip",
    "clip_range": 0.2,
    "clip_range_high": None,
    "target_kl": None,
    "ent_coef": 0.0,
    "kl_coef": 0.0,
    "kl_estimator": "exact",
    "ref_update_interval": None,
    "dynamic_sampling": False,
    "overlong_filter": False,
    "overlong_range": None,
}

# Vanilla policy gradient: REINFORCE (Williams 1992) with a baseline that is refitted after each update. Not for texts, because
# the baseline is a regression on the states. In addition, the group mean is subtracted here
VPG: dict[str, Any] = {
    **_WITHOUT,
    "n_groups": None,  # n_steps of each copy, so that the baseline was fitted to earlier updates
    "advantage": "gae",  # A_t = R_t - b(s_t): with lambda = 1 the sum of the TD residuals
    "gae_lambda": 1.0,
    "advantage_scale": "none",
    "loss_average": "step",  # the sum over all steps, up to a constant
    "clip_range": inf,  # no clipping: the ratio is 1
    "n_epochs": 1,  # a single optimizer step, on all steps
    "batch_size": None,
}

# GRPO with outcome supervision, [DeepSeekMath]. Sec. 4.2 also uses 1,024 answers per update (n_groups=16), learning rate 1e-6
GRPO_PAPER: dict[str, Any] = {
    **_WITHOUT,
    "advantage": "outcome",  # sec. 4.1.2: (R_i - mean(R)) / std(R) at all tokens of answer i
    "advantage_scale": "group",  # the sample standard deviation: not stated, TRL and verl also divide by G - 1
    "gamma": 1.0,  # sec. 4.1.2: no discount
    "group_size": 64,  # sec. 4.2. Control: 64 episodes from one start are many
    "loss_average": "episode",  # eq. 3: 1/G sum_i 1/|o_i| sum_t
    "clip_range": 0.2,  # eq. 3 does not give a value of epsilon, and a single step never clips
    "kl_coef": 0.04,  # sec. 4.2. Control: there is no pretrained policy to stay close to
    "kl_estimator": "k3_plain",  # eq. 4, in the loss as written (eq. 3)
    "n_epochs": 1,  # sec. 4.2: a single update after each exploration stage (mu = 1 in algorithm 1)
    "batch_size": None,
}

# GRPO with process supervision, [DeepSeekMath] sec. 4.1.3: the rewards of reasoning steps, normalised over the group and
# summed from each token on. Here, every token or step of an environment has a reward, and zeros are normalised as well.
# Control: no signal if all rewards are the same
GRPO_PAPER_PROCESS: dict[str, Any] = {**GRPO_PAPER, "advantage": "process"}

# [Dr. GRPO]. The published script also uses 128 prompts per update, learning rate 1e-6, temperature 1
DR_GRPO: dict[str, Any] = {
    **_WITHOUT,
    "advantage": "outcome",  # sec. 3.2: R_i - mean(R), without the standard deviation
    "advantage_scale": "none",
    "gamma": 1.0,
    "group_size": 8,  # published script
    # sec. 3.2: the sum over an answer, without 1/|o_i|. Listing 1: the maximum length of an answer. Control: your time limit
    "loss_average": 3000.0,
    "clip_range": 0.2,  # eq. 3
    "kl_coef": 0.0,  # sec. 3: beta = 0
    "n_epochs": 1,  # published script
}

# [RLOO]. Appendix C also uses the learning rate 1e-6
RLOO: dict[str, Any] = {
    **_WITHOUT,
    "advantage": "outcome",  # sec. 3: the whole answer is one action
    "leave_one_out": True,  # sec. 2.2: R_i minus the mean over the other answers
    "advantage_scale": "none",
    "gamma": 1.0,
    "group_size": 4,  # sec. 5: k = 2 and 4
    "loss_average": 1.0,  # sec. 2.2: the log probability of a whole answer, averaged over answers
    "clip_range": inf,  # sec. 3: no clipping
    "kl_coef": 0.03,  # appendix C. Control: there is no pretrained policy to stay close to
    "kl_estimator": "k1_in_reward",  # sec. 2: R = r - beta log(pi / ref)
    "n_epochs": 1,  # on-policy
    "batch_size": None,
}

# [GSPO]. The group size and the KL term are not stated. Sec. 5.1: four minibatches per update
GSPO: dict[str, Any] = {
    **_WITHOUT,
    "advantage": "outcome",  # eq. 6: (R_i - mean(R)) / std(R)
    "advantage_scale": "group",
    "gamma": 1.0,
    "ratio_level": "episode",  # eq. 7: s_i, the geometric mean of the ratios of an answer
    "loss_average": "episode",  # eq. 5: 1/G sum_i
    "clip_range": 3e-4,  # sec. 5.1. Control: chosen for thousands of tokens; s_i changes more in short episodes
    "clip_range_high": 4e-4,
    "n_epochs": 1,
}

# [DAPO]. Sec. 4.1 also uses 512 prompts per update (n_groups=512), 16 minibatches, learning rate 1e-6, rewards of 1 and -1
DAPO_PAPER: dict[str, Any] = {
    **_WITHOUT,
    "advantage": "outcome",  # eq. 9
    "advantage_scale": "group",
    "gamma": 1.0,
    "group_size": 16,  # sec. 4.1
    "clip_range": 0.2,  # sec. 4.1, eq. 10: clip-higher
    "clip_range_high": 0.28,
    "dynamic_sampling": True,  # eq. 11: counts correct answers. With rewards of 1 and -1, returns are equivalent
    "max_sampling_rounds": 10,  # published settings; sec. 3.2 has no limit (None): endless for a solved control task
    "loss_average": "step",  # eq. 12: 1 / sum_i |o_i|
    # eq. 13, sec. 4.1: 16,384 and a cache of 4,096 tokens. Control: no effect, as episodes are shorter
    "overlong_range": (16_384, 20_480),
    "overlong_filter": False,  # an intermediate step in table 1; the published settings only use the penalty
    "kl_coef": 0.0,  # sec. 2.3
    "n_epochs": 1,
}

# [ProRL]. Sec. 4 also uses 256 prompts per update, 4 minibatches, learning rate 2e-6, temperature 1.2
PRORL: dict[str, Any] = {
    **DAPO_PAPER,  # sec. 3: decoupled clip and dynamic sampling of DAPO
    "group_size": 16,  # sec. 4
    "clip_range": 0.2,  # sec. 4
    "clip_range_high": 0.4,
    "overlong_range": None,  # not used
    "kl_coef": 1e-3,  # sec. 3 does not give a value of beta; this one is ours
    "kl_estimator": "k3_plain",
    "ref_update_interval": 250,  # sec. 3: hard resets when progress stalls, also of the optimizer; the number is ours
}

# CISPO, the loss of [MiniMax-M1] and of [ScaleRL], which compares it with those of DAPO and GSPO
CISPO: dict[str, Any] = {
    **_WITHOUT,
    "policy_loss": "cispo",
    "advantage": "outcome",  # sec. 3.1: (R_i - mean(R)) / std(R), as in GRPO
    "advantage_scale": "group",
    "gamma": 1.0,
    "clip_range": 1.0,  # sec. 3.1: no lower bound
    "clip_range_high": 4.0,  # not stated; [ScaleRL], by TRL's documentation: a ratio of at most 5
    "loss_average": "step",  # sec. 3.1: 1 / sum_i |o_i|
    "kl_coef": 0.0,  # sec. 3.1: no KL penalty
    "n_epochs": 1,
}

# [SAPO]
SAPO: dict[str, Any] = {
    **_WITHOUT,
    "policy_loss": "sapo",
    "advantage": "outcome",  # (R_i - mean(R)) / std(R)
    "advantage_scale": "group",
    "gamma": 1.0,
    "loss_average": "episode",  # 1/G sum_i 1/|o_i| sum_t
    "n_epochs": 1,
}

# [TPO]: the target takes the place of advantages and clipping
TPO: dict[str, Any] = {
    **_WITHOUT,
    "policy_loss": "target_policy",
    "advantage": "outcome",  # the loss standardises outcomes itself
    "advantage_scale": "none",
    "gamma": 1.0,
    "loss_average": 1.0,  # log pi of an episode is the sum over its steps
    "batch_size": None,  # groups stay whole
    "dynamic_sampling": False,  # dead groups hold the policy where it is
    "n_epochs": 4,
}

# For texts, tried on three tasks (docs/text.md). A higher learning rate undoes a warm start on the harder one
TEXT: dict[str, Any] = {
    "learning_rate": 1e-4,
    "ent_coef": 0.02,
    "group_size": 32,
    "n_groups": 16,
    "batch_size": 512,
    "n_epochs": 4,
    "gamma": 1.0,
    "advantage": "outcome",
    "advantage_scale": "group",
}

PRESETS: dict[str, dict[str, Any]] = {
    "vpg": VPG,
    "grpo-paper": GRPO_PAPER,
    "grpo-paper-process": GRPO_PAPER_PROCESS,
    "dr-grpo": DR_GRPO,
    "rloo": RLOO,
    "gspo": GSPO,
    "dapo-paper": DAPO_PAPER,
    "prorl": PRORL,
    "cispo": CISPO,
    "sapo": SAPO,
    "tpo": TPO,
}


def preset(name: str) -> dict[str, Any]:
    """
    :param name: One of ``PRESETS``, as in ``--preset``
    :return: A copy of the keyword arguments
    :raises ValueError: if ``name`` is unknown
    """
    if name not in PRESETS:
        raise ValueError(f"Unknown preset {name!r}, must be one of {', '.join(PRESETS)}.")
    return dict(PRESETS[name])
