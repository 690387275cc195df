"""
Default hyperparameters on many tasks: a development list to choose defaults by, and a test list that is run once per design.

Needs ``pip install minigrid`` besides the extras ``box2d``, ``minatar`` and ``mujoco``; the tasks of dm_control also
``pip install "mujoco==3.3.7" "dm_control==1.0.34" shimmy``.

The rules. Three were changed after development runs had been seen: 100 final episodes instead of 20, because success rates
were too coarse; CPU seconds instead of wall-clock time; evaluations after 1/16, 1/8, 1/4, 1/2 of the budget instead of
every fifth, because at equal seconds PPO is read early. None was changed after a run on the test list:

- All algorithms learn with the defaults of the class, as in ``PPO("MlpPolicy", env)``. ``ppo-norm`` is PPO in a
  ``VecNormalize`` on the tasks where the RL Zoo normalises, and PPO elsewhere. ``grpo-paper`` is the preset, with our sizes.
- Budgets, evaluations and the scale of each task are those of ``tasks.py``. Development: 3 seeds. Test lists: 5 seeds.
  ``long``: four tasks on which the former defaults had failed, with larger budgets, 5 seeds.
- The score of a run is the mean return of 100 deterministic episodes after training, on a scale from a random policy (0) to
  the reference of the task (1).
- What may be said of the scores, and when, is defined in ``scores.py``.
- Nothing is chosen by a test list. Each look at it is one ``design``, and all designs stay in the table. After two looks it is
  used up, and its tasks become development tasks: that happened to ``test``, which ``test_2`` has replaced.
"""
