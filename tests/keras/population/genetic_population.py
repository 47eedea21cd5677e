# The form of harvitronix/neural-network-genetic-algorithm, optimizer.py and train.py: networks that breed
import random

import keras
from sklearn.datasets import load_iris

#>+ import det_keras as det

keras.utils.set_random_seed(17)  #> context = det.keras.init(seed=17)
choices = {
    "neurons": [4, 8, 16],
    "layers": [1, 2],
    "activation": ["relu", "tanh"],
    "optimizer": ["adam", "sgd"],
}
x, y = load_iris(return_X_y=True)
x = ((x - x.mean(0)) / x.std(0)).astype("float32")
test = slice(0, None, 5)
stopper = keras.callbacks.EarlyStopping(patience=2)


class Network:
    def __init__(self):
        self.accuracy = 0.0
        self.network = {key: random.choice(values) for key, values in choices.items()}

    def train(self):
        if self.accuracy:
            return
        keras.backend.clear_session()
        genes = self.network
        layers = [keras.layers.Dense(genes["neurons"], genes["activation"]) for _ in range(genes["layers"])]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(3, "softmax")])
        model.compile(genes["optimizer"], "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(  #> context.fit(model,
            x, y, batch_size=50, epochs=3, verbose=0, validation_data=(x[test], y[test]), callbacks=[stopper],
        )
        self.accuracy = model.evaluate(x[test], y[test], verbose=0)[1]


def breed(mother, father):
    child = Network()
    child.network = {key: random.choice([mother.network[key], father.network[key]]) for key in choices}
    if random.random() < 0.3:
        gene = random.choice(list(choices))
        child.network[gene] = random.choice(choices[gene])
    return child


population, averages = [Network() for _ in range(4)], []
for _ in range(3):
    for network in population:
        network.train()
    averages.append(sum(network.accuracy for network in population) / len(population))
    graded = sorted(population, key=lambda network: network.accuracy, reverse=True)
    parents = graded[:2] + [network for network in graded[2:] if random.random() < 0.1]
    while len(parents) < 4:
        parents.append(breed(*random.sample(parents[:2], 2)))
    population = parents
RESULT = [averages, [network.network for network in population]]
