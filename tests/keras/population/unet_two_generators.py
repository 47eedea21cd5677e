# The form of zhixuhao/unet, data.py and main.py: images and masks from two ImageDataGenerator flows with the same seed
import keras
import numpy as np
import tensorflow as tf

#>+ import det_keras as det

keras.utils.set_random_seed(18)  #> context = det.keras.init(seed=18)
images = np.random.rand(32, 16, 16, 1).astype("float32") * 255
masks = (images > 128).astype("float32") * 255
ImageDataGenerator = tf.keras.preprocessing.image.ImageDataGenerator


def adjust_data(image, mask):
    image, mask = image / 255, mask / 255
    mask[mask > 0.5] = 1
    mask[mask <= 0.5] = 0
    return image, mask


def train_generator(batch_size, arguments, seed=1):
    image_flow = ImageDataGenerator(**arguments).flow(images, batch_size=batch_size, seed=seed)
    mask_flow = ImageDataGenerator(**arguments).flow(masks, batch_size=batch_size, seed=seed)
    while True:
        yield adjust_data(next(image_flow), next(mask_flow))


def unet(conv=keras.layers.Conv2D):
    inputs = keras.Input((16, 16, 1))
    first = conv(4, 3, activation="relu", padding="same")(inputs)
    low = keras.layers.Dropout(0.5)(
        conv(8, 3, activation="relu", padding="same")(keras.layers.MaxPooling2D()(first))
    )
    merged = keras.layers.concatenate([first, keras.layers.UpSampling2D()(low)], axis=3)
    model = keras.Model(inputs, conv(1, 1, activation="sigmoid")(merged))
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", metrics=["accuracy"])
    return model


changes = {
    "width_shift_range": 0.05,
    "height_shift_range": 0.05,
    "horizontal_flip": True,
    "fill_mode": "nearest",
}
batches = train_generator(4, changes)
model = unet()
checkpoint = keras.callbacks.ModelCheckpoint(
    "unet_membrane.keras", monitor="loss", verbose=0, save_best_only=True
)
history = model.fit(  #> history = context.fit(model,
    batches, steps_per_epoch=10, epochs=4, verbose=0, callbacks=[checkpoint],
    #>+ validate=False,
)
RESULT = [model.predict(images[:2], verbose=0).sum().item(), float(checkpoint.best)]
