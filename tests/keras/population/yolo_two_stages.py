# The form of qqwweee/keras-yolo3, train.py: endless generators over a shared list, frozen first, then all layers
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(20)  #> context = det.keras.init(seed=20)
rows = np.random.rand(120, 2)
lines = [f"{a:.4f} {b:.4f}" for a, b in rows]
np.random.shuffle(lines)
num_val = int(len(lines) * 0.2)
num_train = len(lines) - num_val


def get_random_data(line, random=True):
    point = np.array(line.split(), dtype="float32")
    noise = np.random.normal(scale=0.05, size=8).astype("float32") if random else 0
    return np.sin(np.arange(8) * point[0] + point[1]).astype("float32") + noise, point


def data_generator(annotation_lines, batch_size):
    n = len(annotation_lines)
    i = 0
    while True:
        image_data, box_data = [], []
        for _ in range(batch_size):
            if i == 0:
                np.random.shuffle(annotation_lines)
            image, box = get_random_data(annotation_lines[i])
            image_data.append(image)
            box_data.append(box)
            i = (i + 1) % n
        yield np.array(image_data), np.array(box_data)


checkpoint = keras.callbacks.ModelCheckpoint(
    "ep{epoch:03d}.weights.h5", monitor="val_loss", save_weights_only=True, save_best_only=True
)
reduce_lr = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.1, patience=1, verbose=0)
early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=4, verbose=0)
body = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization()]
)
model = keras.Sequential([keras.Input((8,)), body, keras.layers.Dense(2)])
body.trainable = False
model.compile(keras.optimizers.Adam(1e-2), "mse")
first = model.fit(  #> first = context.fit(model,
    data_generator(lines[:num_train], 12), steps_per_epoch=max(1, num_train // 12), epochs=3, initial_epoch=0,
    validation_data=data_generator(lines[num_train:], 8), validation_steps=max(1, num_val // 8),
    callbacks=[checkpoint], verbose=0,
)
model.save_weights("trained_weights_stage_1.weights.h5")
body.trainable = True
model.compile(keras.optimizers.Adam(1e-3), "mse")
second = model.fit(  #> second = context.fit(model,
    data_generator(lines[:num_train], 8), steps_per_epoch=max(1, num_train // 8), epochs=6, initial_epoch=3,
    validation_data=data_generator(lines[num_train:], 8), validation_steps=max(1, num_val // 8),
    callbacks=[checkpoint, reduce_lr, early_stopping], verbose=0,
)
