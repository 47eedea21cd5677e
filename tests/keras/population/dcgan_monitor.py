# The form of keras-team/keras-io, examples/generative/dcgan_overriding_train_step.py: two optimizers, a callback draws
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(9)  #> context = det.keras.init(seed=9)
images = (load_digits().images[:320, ..., None] / 8 - 1).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(320).batch(32)
leaky = keras.layers.LeakyReLU
conv = keras.layers.Conv2D(8, 3, 2, padding="same")
discriminator = keras.Sequential([keras.Input((8, 8, 1)), conv, leaky(), keras.layers.Flatten()])
discriminator.add(keras.layers.Dropout(0.2))
discriminator.add(keras.layers.Dense(1, "sigmoid"))
generator = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(32), leaky(), keras.layers.Dense(64, "tanh")]
)
generator.add(keras.layers.Reshape((8, 8, 1)))


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real):
        count = tf.shape(real)[0]
        noise = keras.random.normal((count, self.latent_dim), seed=self.seed_generator)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        labels += 0.05 * keras.random.uniform((2 * count, 1), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            both = tf.concat([self.generator(noise), real], axis=0)
            d_loss = self.loss_fn(labels, self.discriminator(both, training=True))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights))
        noise = keras.random.normal((count, self.latent_dim), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros((count, 1)), self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


class GANMonitor(keras.callbacks.Callback):
    def __init__(self, num_img=3, latent_dim=6):
        self.num_img, self.latent_dim = num_img, latent_dim
        self.seed_generator = keras.random.SeedGenerator(42)
        self.drawn = []

    def on_epoch_end(self, epoch, logs=None):
        noise = keras.random.normal((self.num_img, self.latent_dim), seed=self.seed_generator)
        self.drawn.append(self.model.generator(noise).numpy().mean((1, 2, 3)))


gan = GAN(discriminator, generator, 6)
gan.compile(keras.optimizers.Adam(0.001), keras.optimizers.Adam(0.002), keras.losses.BinaryCrossentropy())
monitor = GANMonitor()
history = gan.fit(  #> history = context.fit(gan,
    dataset, epochs=4, callbacks=[monitor], verbose=0,
    #>+ validate=False,
)
RESULT = [row.tolist() for row in monitor.drawn]
