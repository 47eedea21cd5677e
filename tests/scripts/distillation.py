"""Teach a small network what a larger one knows."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(31)


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def get_network(width, name):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(width, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dropout(0.1),
            layers.Dense(10),
        ],
        name=name,
    )


teacher, student = get_network(32, "teacher"), get_network(4, "student")
alone = keras.models.clone_model(student)

digits = load_digits()
x, y = digits.images[..., None].astype("float32") / 16.0, digits.target
x_train, x_test, y_train, y_test = x[:1280], x[1280:], y[:1280], y[1280:]
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
metrics = [keras.metrics.SparseCategoricalAccuracy()]

teacher.compile(optimizer="adam", loss=loss, metrics=metrics)
teacher_history = teacher.fit(x_train, y_train, epochs=2, validation_data=(x_test, y_test))
scores = [teacher.evaluate(x_test, y_test)[1]]

distiller = Distiller(student=student, teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=loss,
    distillation_loss_fn=keras.losses.KLDivergence(),
)
history = distiller.fit(x_train, y_train, epochs=1, validation_data=(x_test, y_test))
scores.append(distiller.evaluate(x_test, y_test)[1])

alone.compile(optimizer="adam", loss=loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
alone_history = alone.fit(x_train, y_train, epochs=1, validation_data=(x_test, y_test))
scores.append(alone.evaluate(x_test, y_test)[1])
print("Teacher, student, student alone:", np.round(scores, 3))
