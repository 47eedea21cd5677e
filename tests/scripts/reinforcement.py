"""Learn to walk to a goal by the cross-entropy method: play, keep the best episodes, imitate them."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(23)

SIZE, MOST_STEPS, EPISODES, ROUNDS = 6, 20, 16, 12
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
GOAL = np.array([SIZE - 1, SIZE - 1])

policy = keras.Sequential(
    [
        keras.Input((2,)),
        layers.Rescaling(1.0 / SIZE),
        layers.Dense(24, activation="relu"),
        layers.Dense(len(MOVES), activation="softmax"),
    ]
)
policy.compile(optimizer=keras.optimizers.Adam(0.02), loss="sparse_categorical_crossentropy")


def play():
    """Return an episode: where the player was, what it did, and its reward."""
    position, states, actions = np.array([0, 0]), [], []
    for step in range(MOST_STEPS):
        probabilities = np.asarray(policy(position[None].astype("float32")))[0].astype("float64")
        action = np.random.choice(len(MOVES), p=probabilities / probabilities.sum())
        states.append(position)
        actions.append(action)
        position = np.clip(position + MOVES[action], 0, SIZE - 1)
        if (position == GOAL).all():
            return states, actions, 2.0 - step / MOST_STEPS
    return states, actions, -np.abs(GOAL - position).sum() / SIZE


rewards, losses = [], []
for number in range(ROUNDS):
    episodes = [play() for _ in range(EPISODES)]
    episodes.sort(key=lambda episode: episode[2], reverse=True)
    elite = episodes[: EPISODES // 4]
    states = np.concatenate([states for states, _, _ in elite]).astype("float32")
    actions = np.concatenate([actions for _, actions, _ in elite])
    history = policy.fit(states, actions, batch_size=8, epochs=1, verbose=0)
    losses.append(history.history["loss"][0])
    rewards.append(float(np.mean([reward for _, _, reward in episodes])))
    print(f"round {number}: mean reward {rewards[-1]:.3f}, loss {losses[-1]:.3f}")

print("Best round:", int(np.argmax(rewards)))
