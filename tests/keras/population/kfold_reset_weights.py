# The form of keras-team/keras issues #341 and #1711: one compiled model, its first weights are set again for each fold
import keras
import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import StratifiedKFold

#>+ import det_keras as det

keras.utils.set_random_seed(48)  #> context = det.keras.init(seed=48)
X, Y = load_iris(return_X_y=True)
X = ((X - X.mean(0)) / X.std(0)).astype("float32")
model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(3, "softmax")]
)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
Wsave = model.get_weights()
early = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1)
checkpoint = keras.callbacks.ModelCheckpoint("fold.weights.h5", save_best_only=True, save_weights_only=True)
cvscores, val_loss_list, predicted = [], [], np.zeros(len(Y), dtype=int)
kfold = StratifiedKFold(n_splits=4, shuffle=True, random_state=7)
for train, test in kfold.split(X, Y):
    model.set_weights(Wsave)
    model.fit(  #> context.fit(model,
        X[train], Y[train], epochs=3, batch_size=20, verbose=0, validation_data=(X[test], Y[test]),
        callbacks=[early, checkpoint],
    )
    val_loss_list += model.history.history["val_loss"]
    model.load_weights("fold.weights.h5")
    cvscores.append(model.evaluate(X[test], Y[test], verbose=0)[1])
    predicted[test] = model.predict(X[test], verbose=0).argmax(axis=1)
RESULT = [cvscores, val_loss_list, predicted.tolist(), float(np.mean(cvscores)), float(np.std(cvscores))]
