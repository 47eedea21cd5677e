# The form of keras-team/keras, examples/variational_autoencoder.py: a Lambda layer samples with the backend's random op
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(7)  #> context = det.keras.init(seed=7)
x = (load_digits().data[:400] / 16).astype("float32")


def sampling(args):
    z_mean, z_log_var = args
    epsilon = tf.random.normal(tf.shape(z_mean))
    return z_mean + tf.exp(0.5 * z_log_var) * epsilon


class KLDivergence(keras.layers.Layer):
    def call(self, inputs):
        z_mean, z_log_var = inputs
        kl = 1 + z_log_var - tf.square(z_mean) - tf.exp(z_log_var)
        self.add_loss(tf.reduce_mean(-0.5 * tf.reduce_sum(kl, axis=-1)) / 64)
        return inputs


inputs = keras.Input((64,))
hidden = keras.layers.Dense(32, activation="relu")(inputs)
moments = [keras.layers.Dense(2)(hidden), keras.layers.Dense(2)(hidden)]
z = keras.layers.Lambda(sampling, output_shape=(2,), name="z")(KLDivergence()(moments))
encoder = keras.Model(inputs, [*moments, z])
latent = keras.Input((2,))
decoded = keras.layers.Dense(64, activation="sigmoid")(keras.layers.Dense(32, activation="relu")(latent))
decoder = keras.Model(latent, decoded)
vae = keras.Model(inputs, decoder(encoder(inputs)[2]))
vae.compile(optimizer="adam", loss="binary_crossentropy")
history = vae.fit(  #> history = context.fit(vae,
    x, x, epochs=4, batch_size=32, verbose=0,
    #>+ validate=False,
)
RESULT = decoder.predict(encoder.predict(x[:4], verbose=0)[0], verbose=0).tolist()
