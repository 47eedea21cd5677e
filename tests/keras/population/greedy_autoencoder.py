# The form of keras-team/keras issue #4177: an autoencoder that is pretrained layer by layer, and then fine tuned
import keras
import numpy as np
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(38)  #> context = det.keras.init(seed=38)
x, y = load_digits(return_X_y=True)
x, y = (x[:320] / 16).astype("float32"), y[:320]
encoders, decoders, losses = [], [], []
codes = x
for size in (32, 16, 8):
    inputs = keras.Input((codes.shape[1],))
    encoder, decoder = keras.layers.Dense(size, "relu"), keras.layers.Dense(codes.shape[1])
    noisy = keras.layers.GaussianNoise(0.05)(inputs)
    pair = keras.Model(inputs, decoder(encoder(noisy)))
    pair.compile("adam", "mse")
    history = pair.fit(  #> history = context.fit(pair,
        codes, codes, batch_size=32, epochs=2, verbose=0,
        #>+ validate=False,
    )
    losses.append(history.history["loss"])
    encoders.append(encoder)
    decoders.insert(0, decoder)
    codes = keras.Model(inputs, encoder(inputs)).predict(codes, verbose=0)
stacked = keras.Sequential([keras.Input((64,)), *encoders, *decoders])
stacked.compile(keras.optimizers.Adam(1e-4), "mse")
tuned = stacked.fit(  #> tuned = context.fit(stacked,
    x, x, batch_size=32, epochs=2, verbose=0, validation_split=0.1,
)
classifier = keras.Sequential([keras.Input((64,)), *encoders, keras.layers.Dense(10, "softmax")])
classifier.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
last = classifier.fit(  #> last = context.fit(classifier,
    x, y, batch_size=32, epochs=2, verbose=0, validation_split=0.1,
)
RESULT = [losses, float(np.abs(codes).sum())]
