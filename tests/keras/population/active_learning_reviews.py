# The form of keras-team/keras-io, examples/nlp/active_learning_review_classification.py: pools of tf.data that shrink
import keras
import numpy as np
import tensorflow as tf

#>+ import det_keras as det

keras.utils.set_random_seed(28)  #> context = det.keras.init(seed=28)
words = np.random.randint(1, 40, size=(360, 12))
labels = (words < 20).mean(axis=1).round().astype("int32")
x_test, y_test = words[300:], labels[300:]
val_dataset = tf.data.Dataset.from_tensor_slices((words[240:300], labels[240:300])).batch(20)
test_dataset = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(20)
chosen = np.random.permutation(240)
pools = {kind: [i for i in chosen[60:] if labels[i] == kind] for kind in (0, 1)}
train_indices = list(chosen[:60])


def create_model():
    layers = [keras.layers.Embedding(40, 8), keras.layers.GlobalMaxPooling1D()]
    return keras.Sequential(
        [keras.Input((12,)), *layers, keras.layers.Dropout(0.3), keras.layers.Dense(1, "sigmoid")]
    )


def append_history(losses, val_losses, history):
    return losses + history.history["loss"], val_losses + history.history["val_loss"]


model = create_model()
metrics = [
    keras.metrics.BinaryAccuracy(name="acc"),
    keras.metrics.FalseNegatives(),
    keras.metrics.FalsePositives(),
]
model.compile("rmsprop", "binary_crossentropy", metrics=metrics)
checkpoint = keras.callbacks.ModelCheckpoint("AL_Model.keras", save_best_only=True, verbose=0)
early_stopping = keras.callbacks.EarlyStopping(patience=2, verbose=0)
losses, val_losses, mistakes = [], [], []
for _ in range(3):
    train_dataset = tf.data.Dataset.from_tensor_slices((words[train_indices], labels[train_indices]))
    history = model.fit(  #> history = context.fit(model,
        train_dataset.cache().shuffle(200).batch(10), epochs=2, validation_data=val_dataset, verbose=0,
        callbacks=[checkpoint, early_stopping],
    )
    losses, val_losses = append_history(losses, val_losses, history)
    model = keras.models.load_model("AL_Model.keras")
    _, _, false_negatives, false_positives = model.evaluate(test_dataset, verbose=0)
    mistakes.append([float(false_negatives), float(false_positives)])
    share = false_negatives / max(false_negatives + false_positives, 1)
    taken = {1: round(20 * share), 0: 20 - round(20 * share)}
    for kind, count in taken.items():
        train_indices += pools[kind][:count]
        pools[kind] = pools[kind][count:]
    model.compile("rmsprop", "binary_crossentropy", metrics=metrics)
RESULT = [losses, val_losses, mistakes, len(train_indices)]
