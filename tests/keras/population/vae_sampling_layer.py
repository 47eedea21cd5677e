# The form of tensorflow/docs, site/en/guide/keras/making_new_layers_and_models_via_subclassing.ipynb: Sampling
import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(3)  #> context = det.keras.init(seed=3)
digits = (load_digits().data[:360] / 16).astype("float32")
x_train, x_test = digits[:300], digits[300:]


class Sampling(layers.Layer):
    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = tf.random.normal(shape=(tf.shape(z_mean)[0], tf.shape(z_mean)[1]))
        return z_mean + tf.exp(0.5 * z_log_var) * epsilon


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.projection = layers.Dense(24, activation="relu")
        self.mean, self.log_var = layers.Dense(4), layers.Dense(4)
        self.sampling = Sampling()
        self.hidden, self.output_layer = layers.Dense(24, activation="relu"), layers.Dense(64, activation="sigmoid")

    def call(self, x):
        projected = self.projection(x)
        z_mean, z_log_var = self.mean(projected), self.log_var(projected)
        z = self.sampling((z_mean, z_log_var))
        self.add_loss(-0.05 * tf.reduce_mean(z_log_var - tf.square(z_mean) - tf.exp(z_log_var) + 1))
        return self.output_layer(self.hidden(z))


vae = VAE()
vae.compile(optimizer=keras.optimizers.Adam(1e-3), loss=keras.losses.MeanSquaredError())
first = vae.fit(  #> first = context.fit(vae,
    x_train, x_train, epochs=3, batch_size=50, verbose=0,
    validation_data=(x_test, x_test),
)
between = float(tf.reduce_sum(vae(x_test[:2])))
second = vae.fit(  #> second = context.fit(vae,
    x_train, x_train, epochs=2, batch_size=50, verbose=0,
    validation_data=(x_test, x_test),
)
score = vae.evaluate(  #> score = context.evaluate(vae,
    x_test, x_test, verbose=0, return_dict=True)
sampled = vae.predict(  #> sampled = context.predict(vae,
    x_test[:5], verbose=0)
