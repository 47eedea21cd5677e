# The form of keras-team/keras, examples/image_ocr.py: one object is the callback and the generator, and gets harder
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(33)  #> context = det.keras.init(seed=33)


class TextImageGenerator(keras.callbacks.Callback):
    def __init__(self, minibatch_size, words_per_epoch, val_words):
        super().__init__()
        self.minibatch_size, self.words_per_epoch, self.val_split = minibatch_size, words_per_epoch, val_words
        self.cur_val_index = self.val_split
        self.cur_train_index = 0
        self.build_word_list(words_per_epoch, 2)

    def build_word_list(self, num_words, max_letters):
        self.max_letters = max_letters
        self.words = np.random.randint(0, max_letters, size=(num_words, 5))
        self.noise = 0.02 * max_letters

    def get_batch(self, index, size):
        rows = self.words[index : index + size]
        images = np.eye(8)[rows] + np.random.normal(scale=self.noise, size=(size, 5, 8))
        return images.reshape(size, 40).astype("float32"), rows.sum(axis=1).astype("float32")[:, None]

    def next_train(self):
        while True:
            batch = self.get_batch(self.cur_train_index, self.minibatch_size)
            self.cur_train_index += self.minibatch_size
            if self.cur_train_index >= self.val_split:
                self.cur_train_index = self.cur_train_index % self.minibatch_size
                np.random.shuffle(self.words[: self.val_split])
            yield batch

    def next_val(self):
        while True:
            batch = self.get_batch(self.cur_val_index, self.minibatch_size)
            self.cur_val_index += self.minibatch_size
            if self.cur_val_index >= self.words_per_epoch:
                self.cur_val_index = self.val_split + self.cur_val_index % self.minibatch_size
            yield batch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch >= 2:
            self.build_word_list(self.words_per_epoch, 2 + epoch)


img_gen = TextImageGenerator(minibatch_size=10, words_per_epoch=120, val_words=100)
model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True, clipnorm=5), "mse")
history = model.fit(  #> history = context.fit(model,
    img_gen.next_train(), steps_per_epoch=10, epochs=5, verbose=0, callbacks=[img_gen],
    validation_data=img_gen.next_val(), validation_steps=2,
)
