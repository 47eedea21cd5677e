# The form of keras-team/keras-io, examples/generative/dcgan_overriding_train_step.py, 2020: noise of tf.random.normal
import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(11)  #> context = det.keras.init(seed=11)
images = (load_digits().images[:256] / 16).astype("float32")[..., None]
dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(256).batch(32)
LATENT = 8
discriminator = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(8, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Flatten(),
        layers.Dropout(0.2),
        layers.Dense(1, activation="sigmoid"),
    ]
)
generator = keras.Sequential(
    [
        keras.Input((LATENT,)),
        layers.Dense(4 * 4 * 8),
        layers.Reshape((4, 4, 8)),
        layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
    ]
)


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real_images):
        batch_size = tf.shape(real_images)[0]
        generated = self.generator(tf.random.normal(shape=(batch_size, self.latent_dim)))
        combined = tf.concat([generated, real_images], axis=0)
        labels = tf.concat([tf.ones((batch_size, 1)), tf.zeros((batch_size, 1))], axis=0)
        labels += 0.05 * tf.random.uniform(tf.shape(labels))
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined, training=True))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights, strict=True))
        noise = tf.random.normal(shape=(batch_size, self.latent_dim))
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(tf.zeros((batch_size, 1)), predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


class GANMonitor(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.means = []

    def on_epoch_end(self, epoch, logs=None):
        noise = tf.random.normal(shape=(3, self.model.latent_dim))
        self.means.append(float(tf.reduce_mean(self.model.generator(noise))))


gan = GAN(discriminator, generator, LATENT)
gan.compile(
    d_optimizer=keras.optimizers.Adam(1e-3),  #> d_optimizer=context.wrap_optimizer(keras.optimizers.Adam(1e-3)),
    g_optimizer=keras.optimizers.Adam(1e-3),  #> g_optimizer=context.wrap_optimizer(keras.optimizers.Adam(1e-3)),
    loss_fn=keras.losses.BinaryCrossentropy(),
)
monitor = GANMonitor()
history = gan.fit(  #> history = context.fit(gan,
    dataset, epochs=4, verbose=0, callbacks=[monitor],
    #>+ validate=False,
)
