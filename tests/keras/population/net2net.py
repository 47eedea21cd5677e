# The form of keras-team/keras, examples/mnist_net2net.py: a trained teacher becomes a wider and a deeper student
import keras
import numpy as np
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(34)  #> context = det.keras.init(seed=34)
x, y = load_digits(return_X_y=True)
x, y = (x[:400] / 16).astype("float32"), np.eye(10)[y[:400]]
train, validation = (x[:320], y[:320]), (x[320:], y[320:])


def wider2net_fc(teacher_w1, teacher_b1, teacher_w2, new_width):
    n = new_width - teacher_w1.shape[1]
    index = np.random.randint(teacher_w1.shape[1], size=n)
    factors = np.bincount(index)[index] + 1.0
    w2 = teacher_w2[index, :] / factors[:, None]
    w2 = w2 + np.random.normal(0, 5e-2 * w2.std(), size=w2.shape)
    student_w2 = np.concatenate((teacher_w2, w2))
    student_w2[index, :] = w2
    return (
        np.concatenate((teacher_w1, teacher_w1[:, index]), 1),
        np.concatenate((teacher_b1, teacher_b1[index])),
        student_w2,
    )


def make_model(widths, optimizer):
    model = keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(width, "relu") for width in widths)])
    model.add(keras.layers.Dense(10, activation="softmax"))
    model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
    return model


def make_teacher_model(epochs):
    model = make_model([16], keras.optimizers.SGD(0.1, momentum=0.9))
    return model, model.fit(  #> return model, context.fit(model,
        *train, epochs=epochs, validation_data=validation, verbose=0,
    )


def make_student_model(teacher, kind, epochs):
    (w1, b1), (w2, b2) = (layer.get_weights() for layer in teacher.layers)
    model = make_model([24] if kind == "wider" else [16, 16], keras.optimizers.SGD(0.01, momentum=0.9))
    if kind == "wider":
        *first, w2 = wider2net_fc(w1, b1, w2, 24)
        model.layers[0].set_weights(first)
    else:
        model.layers[0].set_weights([w1, b1])
        model.layers[1].set_weights([np.eye(16), np.zeros(16)])
    model.layers[-1].set_weights([w2, b2])
    return model, model.fit(  #> return model, context.fit(model,
        *train, epochs=epochs, validation_data=validation, verbose=0,
    )


teacher, history = make_teacher_model(2)
wider, wider_history = make_student_model(teacher, "wider", 2)
deeper, deeper_history = make_student_model(teacher, "deeper", 2)
RESULT = [model.evaluate(*validation, verbose=0) for model in (teacher, wider, deeper)]
