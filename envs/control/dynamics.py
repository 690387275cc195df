"""
Vectorized dynamics of Gymnasium's classic control tasks.

The operations are those of the ordinary environments, in the same order and precision, so that the results are equal to the
last bit. States are (d, n): d quantities of n copies.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv, MountainCarEnv, PendulumEnv


class Steps(NamedTuple):
    """
    The result of a step.

    :param states: (d, n) next states
    :param rewards: (n,) rewards
    :param terminated: (n,) whether the episodes have ended
    """

    states: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray


class Dynamics(NamedTuple):
    """
    The dynamics of a task.

    :param step: takes the ordinary environment (for its constants), (d, n) states and (n, ...) actions
    :param observe: takes (d, n) states, returns (n, k) observations
    """

    step: Callable[[Any, np.ndarray, np.ndarray], Steps]
    observe: Callable[[np.ndarray], np.ndarray]


def _square(values: np.ndarray) -> np.ndarray:
    # Powers of Python numbers use the C library, whose result is not always that of NumPy's power of an array
    return np.array([value**2 for value in values.tolist()])


def _cart_pole(env: CartPoleEnv, states: np.ndarray, actions: np.ndarray) -> Steps:
    x, x_dot, theta, theta_dot = states
    force = np.where(actions == 1, env.force_mag, -env.force_mag)
    cos, sin = np.cos(theta), np.sin(theta)
    temp = (force + env.polemass_length * np.square(theta_dot) * sin) / env.total_mass
    theta_acc = (env.gravity * sin - cos * temp) / (env.length * (4.0 / 3.0 - env.masspole * np.square(cos) / env.total_mass))
    x_acc = temp - env.polemass_length * theta_acc * cos / env.total_mass
    x = x + env.tau * x_dot
    x_dot = x_dot + env.tau * x_acc
    theta = theta + env.tau * theta_dot
    theta_dot = theta_dot + env.tau * theta_acc
    fallen = (np.abs(x) > env.x_threshold) | (np.abs(theta) > env.theta_threshold_radians)
    if env._sutton_barto_reward:
        rewards = np.where(fallen, -1.0, 0.0)
    else:
        rewards = np.ones(len(x))
    return Steps(np.stack((x, x_dot, theta, theta_dot)), rewards, fallen)


def _acrobot(env: AcrobotEnv, states: np.ndarray, actions: np.ndarray) -> Steps:
    torque = np.array(env.AVAIL_TORQUE)[actions]
    half = env.dt / 2.0
    k1 = _acrobot_derivatives(env, states, torque)
    k2 = _acrobot_derivatives(env, states + half * k1, torque)
    k3 = _acrobot_derivatives(env, states + half * k2, torque)
    k4 = _acrobot_derivatives(env, states + env.dt * k3, torque)
    states = states + env.dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
    states[:2] = _wrap(states[:2])
    states[2] = states[2].clip(-env.MAX_VEL_1, env.MAX_VEL_1)
    states[3] = states[3].clip(-env.MAX_VEL_2, env.MAX_VEL_2)
    swung_up = -np.cos(states[0]) - np.cos(states[1] + states[0]) > 1.0
    return Steps(states, np.where(swung_up, 0.0, -1.0), swung_up)


def _acrobot_derivatives(env: AcrobotEnv, states: np.ndarray, torque: np.ndarray) -> np.ndarray:
    m1, m2, l1, g = env.LINK_MASS_1, env.LINK_MASS_2, env.LINK_LENGTH_1, 9.8
    c1, c2, i1, i2 = env.LINK_COM_POS_1, env.LINK_COM_POS_2, env.LINK_MOI, env.LINK_MOI
    theta1, theta2, dtheta1, dtheta2 = states
    cos2, sin2 = np.cos(theta2), np.sin(theta2)
    d1 = m1 * c1**2 + m2 * (l1**2 + c2**2 + 2 * l1 * c2 * cos2) + i1 + i2
    d2 = m2 * (c2**2 + l1 * c2 * cos2) + i2
    phi2 = m2 * c2 * g * np.cos(theta1 + theta2 - np.pi / 2.0)
    phi1 = (
        -m2 * l1 * c2 * _square(dtheta2) * sin2
        - 2 * m2 * l1 * c2 * dtheta2 * dtheta1 * sin2
        + (m1 * c1 + m2 * l1) * g * np.cos(theta1 - np.pi / 2)
        + phi2
    )
    ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * c2 * _square(dtheta1) * sin2 - phi2) / (m2 * c2**2 + i2 - _square(d2) / d1)
    ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
    return np.stack((dtheta1, dtheta2, ddtheta1, ddtheta2))


def _wrap(angles: np.ndarray) -> np.ndarray:
    turn = 2 * np.pi
    while (too_large := angles > np.pi).any():
        angles = np.where(too_large, angles - turn, angles)
    while (too_small := angles < -np.pi).any():
        angles = np.where(too_small, angles + turn, angles)
    return angles


def _observe_acrobot(states: np.ndarray) -> np.ndarray:
    theta1, theta2, dtheta1, dtheta2 = states
    columns = (np.cos(theta1), np.sin(theta1), np.cos(theta2), np.sin(theta2), dtheta1, dtheta2)
    return np.stack(columns, axis=1).astype(np.float32)


def _mountain_car(env: MountainCarEnv, states: np.ndarray, actions: np.ndarray) -> Steps:
    position, velocity = states
    # math.cos, as the environment does
    slope = np.array([math.cos(angle) for angle in (3 * position).tolist()])
    velocity = velocity + ((actions - 1) * env.force + slope * (-env.gravity))
    velocity = velocity.clip(-env.max_speed, env.max_speed)
    position = (position + velocity).clip(env.min_position, env.max_position)
    velocity[(position == env.min_position) & (velocity < 0)] = 0.0
    arrived = (position >= env.goal_position) & (velocity >= env.goal_velocity)
    return Steps(np.stack((position, velocity)), np.full(len(position), -1.0), arrived)


def _pendulum(env: PendulumEnv, states: np.ndarray, actions: np.ndarray) -> Steps:
    theta, theta_dot = states
    g, m, length, dt = env.g, env.m, env.l, env.dt
    torque = np.clip(actions, -env.max_torque, env.max_torque)[:, 0]
    angle = ((theta + np.pi) % (2 * np.pi)) - np.pi
    # With NumPy scalars: before NumPy 2, a scalar in single precision times a Python number is in double precision
    effort = np.array([0.001 * (each**2) for each in torque])
    push = np.array([3.0 / (m * length**2) * each for each in torque])
    costs = _square(angle) + 0.1 * _square(theta_dot) + effort
    theta_dot = theta_dot + (3 * g / (2 * length) * np.sin(theta) + push) * dt
    theta_dot = theta_dot.clip(-env.max_speed, env.max_speed)
    theta = theta + theta_dot * dt
    return Steps(np.stack((theta, theta_dot)), -costs, np.zeros(len(theta), bool))


def _observe_pendulum(states: np.ndarray) -> np.ndarray:
    theta, theta_dot = states
    return np.stack((np.cos(theta), np.sin(theta), theta_dot), axis=1).astype(np.float32)


def _observe_state(states: np.ndarray) -> np.ndarray:
    return states.T.astype(np.float32)


DYNAMICS: dict[type[gym.Env], Dynamics] = {
    AcrobotEnv: Dynamics(_acrobot, _observe_acrobot),
    CartPoleEnv: Dynamics(_cart_pole, _observe_state),
    MountainCarEnv: Dynamics(_mountain_car, _observe_state),
    PendulumEnv: Dynamics(_pendulum, _observe_pendulum),
}
