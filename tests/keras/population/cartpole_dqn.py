# The form of rlcode/reinforcement-learning, 2-cartpole/1-dqn/cartpole_dqn.py: replay memory, a target network
import random
from collections import deque

import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(29)  #> context = det.keras.init(seed=29)


class Env:
    def reset(self):
        self.state, self.steps = np.random.uniform(-0.05, 0.05, 4), 0
        return self.state

    def step(self, action):
        x, speed, angle, spin = self.state
        push = 0.3 if action == 1 else -0.3
        self.state = np.array(
            [x + 0.05 * speed, speed + push, angle + 0.05 * spin, spin + 0.2 * angle - push]
        )
        self.steps += 1
        return self.state, 1.0, abs(self.state[2]) > 0.15 or self.steps >= 15


class DQNAgent:
    def __init__(self, state_size, action_size):
        self.state_size, self.action_size = state_size, action_size
        self.discount_factor, self.epsilon, self.epsilon_decay = 0.99, 1.0, 0.95
        self.batch_size, self.train_start = 8, 10
        self.memory = deque(maxlen=100)
        self.model, self.target_model = self.build_model(), self.build_model()
        self.update_target_model()

    def build_model(self):
        model = keras.Sequential([keras.Input((self.state_size,)), keras.layers.Dense(16, "relu")])
        model.add(keras.layers.Dense(self.action_size))
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    def update_target_model(self):
        self.target_model.set_weights(self.model.get_weights())

    def get_action(self, state):
        if np.random.rand() <= self.epsilon:
            return random.randrange(self.action_size)
        return int(np.argmax(self.model(state[None])[0]))

    def append_sample(self, *sample):
        self.memory.append(sample)
        if self.epsilon > 0.01:
            self.epsilon *= self.epsilon_decay

    def train_model(self):
        if len(self.memory) < self.train_start:
            return
        batch = random.sample(self.memory, self.batch_size)
        states, actions, rewards, following, done = map(np.array, zip(*batch))
        target = np.array(self.model(states))
        ahead = np.array(self.target_model(following)).max(axis=1)
        target[np.arange(self.batch_size), actions] = rewards + (1 - done) * self.discount_factor * ahead
        self.model.fit(  #> context.fit(self.model,
            states, target, batch_size=self.batch_size, epochs=1, verbose=0,
            #>+ validate=False,
        )


env, agent, scores = Env(), DQNAgent(4, 2), []
for _ in range(6):
    done, score, state = False, 0, env.reset()
    while not done:
        action = agent.get_action(state)
        following, reward, done = env.step(action)
        agent.append_sample(state, action, reward if not done else -10.0, following, float(done))
        agent.train_model()
        score += reward
        state = following
    agent.update_target_model()
    scores.append(score)
RESULT = [scores, agent.epsilon, len(agent.memory)]
