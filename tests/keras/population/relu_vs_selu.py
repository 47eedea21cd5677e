# The form of keras-team/keras, examples/reuters_mlp_relu_vs_selu.py: two networks, trained one after the other
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(35)  #> context = det.keras.init(seed=35)
x = (np.random.rand(300, 40) < 0.2).astype("float32")
y = keras.utils.to_categorical(x[:, :30].reshape(-1, 3, 10).sum(-1).argmax(1), 3)


def create_network(n_dense, dense_units, activation, dropout, dropout_rate, kernel_initializer, optimizer):
    model = keras.Sequential([keras.Input((40,))])
    for _ in range(n_dense):
        model.add(keras.layers.Dense(dense_units, kernel_initializer=kernel_initializer))
        model.add(keras.layers.Activation(activation))
        model.add(dropout(dropout_rate))
    model.add(keras.layers.Dense(3, activation="softmax"))
    model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
    return model


network1 = {"n_dense": 3, "dense_units": 12, "activation": "relu", "dropout": keras.layers.Dropout}
network1 |= {"dropout_rate": 0.3, "kernel_initializer": "glorot_uniform", "optimizer": "sgd"}
network2 = network1 | {"activation": "selu", "dropout": keras.layers.AlphaDropout}
network2 |= {"dropout_rate": 0.1, "kernel_initializer": "lecun_normal"}
histories, scores = [], []
for network in (network1, network2):
    model = create_network(**network)
    history_model = model.fit(  #> history_model = context.fit(model,
        x, y, batch_size=16, epochs=2, verbose=0, validation_split=0.1,
    )
    histories.append(history_model.history)
    scores.append(model.evaluate(x, y, batch_size=16, verbose=0))
RESULT = scores
