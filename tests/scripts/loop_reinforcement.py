"""Balance a pole with deep Q-learning, a replay buffer, and a loop written by hand."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(54)

EPISODES, BATCH, DISCOUNT = 12, 32, 0.95


class Pole:
    """A pole on a cart, by Barto, Sutton and Anderson (1983)."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, 4)
        return self.state.astype("float32")

    def step(self, action):
        x, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        bend = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        move = push - 0.05 * bend * np.cos(angle) / 1.1
        self.state = self.state + 0.02 * np.array([speed, move, turn, bend])
        return self.state.astype("float32"), bool(abs(x) > 2.4 or abs(angle) > 0.21)


class ReplayBuffer:
    """The last transitions, from which batches are drawn."""

    def __init__(self, size, rng):
        self.size, self.rng, self.items = size, rng, []

    def add(self, *item):
        self.items = [*self.items, item][-self.size :]

    def sample(self, count):
        chosen = self.rng.integers(0, len(self.items), count)
        return [np.array(part) for part in zip(*(self.items[index] for index in chosen), strict=True)]

    def get_state(self):
        return {"items": self.items}

    def load_state(self, state):
        self.items = state["items"]


rng = np.random.default_rng(55)
pole, replay = Pole(rng), ReplayBuffer(500, rng)
online, target = (
    keras.Sequential([keras.Input((4,)), layers.Dense(24, activation="tanh"), layers.Dense(2)])
    for _ in range(2)
)
target.set_weights(online.get_weights())
optimizer = keras.optimizers.Adam(5e-3)
steps = tf.Variable(0, dtype=tf.int64)


@tf.function
def train_step(states, actions, rewards, followers, ends):
    future = tf.reduce_max(target(followers), axis=1) * (1.0 - ends)
    with tf.GradientTape() as tape:
        values = tf.reduce_sum(online(states) * tf.one_hot(actions, 2), axis=1)
        loss = tf.reduce_mean((rewards + DISCOUNT * future - values) ** 2)
    gradients = tape.gradient(loss, online.trainable_variables)
    optimizer.apply(gradients, online.trainable_variables)
    return loss


for _ in range(EPISODES):
    state = pole.reset()
    for _ in range(40):
        explores = rng.random() < 0.3
        action = rng.integers(2) if explores else int(np.argmax(online(state[None])[0]))
        follower, has_fallen = pole.step(action)
        replay.add(state, np.int64(action), np.float32(1.0), follower, np.float32(has_fallen))
        state = follower
        loss = train_step(*replay.sample(BATCH))
        steps.assign_add(1)
        if has_fallen:
            break
    target.set_weights(online.get_weights())
