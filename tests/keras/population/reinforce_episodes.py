# The form of rlcode/reinforcement-learning, 2-cartpole/3-reinforce/cartpole_reinforce.py: one fit for each episode
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(30)  #> context = det.keras.init(seed=30)


class ReinforceAgent:
    def __init__(self, state_size, action_size):
        self.state_size, self.action_size, self.discount_factor = state_size, action_size, 0.99
        self.states, self.actions, self.rewards = [], [], []
        self.model = keras.Sequential([keras.Input((state_size,)), keras.layers.Dense(16, "relu")])
        self.model.add(keras.layers.Dense(action_size, "softmax"))
        self.model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")

    def get_action(self, state):
        policy = np.asarray(self.model(state[None]), dtype="float64")[0]
        return int(np.random.choice(self.action_size, 1, p=policy / policy.sum())[0])

    def append_sample(self, state, action, reward):
        self.states.append(state)
        self.actions.append(action)
        self.rewards.append(reward)

    def discount_rewards(self):
        running, discounted = 0.0, np.zeros(len(self.rewards))
        for t in reversed(range(len(self.rewards))):
            running = running * self.discount_factor + self.rewards[t]
            discounted[t] = running
        return (discounted - discounted.mean()) / (discounted.std() + 1e-8)

    def train_model(self):
        advantages = self.discount_rewards()
        self.model.fit(  #> context.fit(self.model,
            np.array(self.states), np.array(self.actions), sample_weight=advantages, batch_size=8, verbose=0,
            #>+ validate=False,
        )
        self.states, self.actions, self.rewards = [], [], []


agent, goal, scores = ReinforceAgent(3, 3), np.array([0.5, -0.5, 0.2]), []
for _ in range(14):
    place, score = np.random.uniform(-1, 1, 3), 0.0
    for _ in range(16):
        action = agent.get_action(place)
        after = place.copy()
        after[action] += 0.2 * np.sign(goal[action] - place[action])
        reward = float(np.abs(place - goal).sum() - np.abs(after - goal).sum())
        agent.append_sample(place, action, reward)
        place, score = after + np.random.normal(scale=0.02, size=3), score + reward
    agent.train_model()
    scores.append(score)
RESULT = scores
