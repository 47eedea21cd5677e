# The form of afshinea/keras-data-generator, my_classes.py and keras_script.py: a Sequence that shuffles its indexes
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(22)  #> context = det.keras.init(seed=22)
for number in range(80):
    np.save(f"id-{number}.npy", np.random.normal(size=(6, 6, 1)) + number % 3)
labels = {f"id-{number}": number % 3 for number in range(80)}
partition = {"train": [f"id-{n}" for n in range(60)], "validation": [f"id-{n}" for n in range(60, 80)]}


class DataGenerator(keras.utils.Sequence):
    def __init__(self, list_IDs, labels, batch_size=32, dim=(6, 6), n_channels=1, n_classes=3, shuffle=True):
        self.dim, self.batch_size, self.labels, self.list_IDs = dim, batch_size, labels, list_IDs
        self.n_channels, self.n_classes, self.shuffle = n_channels, n_classes, shuffle
        self.on_epoch_end()

    def __len__(self):
        return int(np.floor(len(self.list_IDs) / self.batch_size))

    def __getitem__(self, index):
        indexes = self.indexes[index * self.batch_size : (index + 1) * self.batch_size]
        return self.__data_generation([self.list_IDs[k] for k in indexes])

    def on_epoch_end(self):
        self.indexes = np.arange(len(self.list_IDs))
        if self.shuffle:
            np.random.shuffle(self.indexes)

    def __data_generation(self, list_IDs_temp):
        x = np.empty((self.batch_size, *self.dim, self.n_channels))
        y = np.empty(self.batch_size, dtype=int)
        for i, ID in enumerate(list_IDs_temp):
            x[i] = np.load(f"{ID}.npy")
            y[i] = self.labels[ID]
        return x, keras.utils.to_categorical(y, num_classes=self.n_classes)


params = {"dim": (6, 6), "batch_size": 5, "n_classes": 3, "n_channels": 1, "shuffle": True}
training_generator = DataGenerator(partition["train"], labels, **params)
validation_generator = DataGenerator(partition["validation"], labels, **params)
model = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3, activation="relu")])
model.add(keras.layers.Flatten())
model.add(keras.layers.Dense(3, "softmax"))
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    training_generator, validation_data=validation_generator, epochs=5, verbose=0,
)
RESULT = training_generator.indexes.tolist()
