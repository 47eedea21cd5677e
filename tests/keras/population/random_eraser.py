# The form of yu4u/cutout-random-erasing, random_eraser.py: a preprocessing function that draws numbers
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(23)  #> context = det.keras.init(seed=23)
x, y = load_digits(return_X_y=True)
x, y = (x[:300] / 16).reshape(-1, 8, 8, 1).astype("float32"), np.eye(10)[y[:300]]


def get_random_eraser(p=0.5, s_l=0.02, s_h=0.4, r_1=0.3, r_2=1 / 0.3, v_l=0.0, v_h=1.0):
    def eraser(input_img):
        img_h, img_w, _ = input_img.shape
        if np.random.rand() > p:
            return input_img
        while True:
            s = np.random.uniform(s_l, s_h) * img_h * img_w
            r = np.random.uniform(r_1, r_2)
            w, h = int(np.sqrt(s / r)), int(np.sqrt(s * r))
            left, top = np.random.randint(0, img_w), np.random.randint(0, img_h)
            if left + w <= img_w and top + h <= img_h:
                break
        input_img[top : top + h, left : left + w, :] = np.random.uniform(v_l, v_h)
        return input_img

    return eraser


datagen = tf.keras.preprocessing.image.ImageDataGenerator(
    width_shift_range=0.1, height_shift_range=0.1, preprocessing_function=get_random_eraser()
)
datagen.fit(x[:240])
layers = [keras.layers.Conv2D(6, 3, activation="relu"), keras.layers.GlobalAveragePooling2D()]
model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(10, "softmax")])
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    datagen.flow(x[:240], y[:240], batch_size=20), epochs=4, verbose=0, validation_data=(x[240:], y[240:]),
)
RESULT = [float(np.random.rand()), history.history["val_loss"]]
