"""Recommend movies by embeddings of users and movies, with averaged weights at each epoch's end."""

import keras
import numpy as np
import pandas as pd
from keras import layers, ops

keras.utils.set_random_seed(36)

EMBEDDING_SIZE = 8

rng = np.random.default_rng(6)
taste, kind = rng.normal(size=(60, 2)), rng.normal(size=(90, 2))
user, movie = rng.integers(0, 60, 2000), rng.integers(0, 90, 2000)
stars = np.clip(np.round(3 + (taste[user] * kind[movie]).sum(axis=1)), 1, 5)
df = pd.DataFrame({"userId": user + 1000, "movieId": movie + 5000, "rating": stars})

user2encoded = {user_id: number for number, user_id in enumerate(df["userId"].unique())}
movie2encoded = {movie_id: number for number, movie_id in enumerate(df["movieId"].unique())}
df["user"] = df["userId"].map(user2encoded)
df["movie"] = df["movieId"].map(movie2encoded)
df = df.sample(frac=1, random_state=42)
x = df[["user", "movie"]].values
y = ((df["rating"] - 1) / 4).values
split = int(0.9 * len(df))
x_train, x_val, y_train, y_val = x[:split], x[split:], y[:split], y[split:]


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        regularizer = keras.regularizers.l2(1e-6)
        initializer = "he_normal"
        self.user_embedding = layers.Embedding(num_users, embedding_size, initializer, regularizer)
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(num_movies, embedding_size, initializer, regularizer)
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        users, movies = self.user_embedding(inputs[:, 0]), self.movie_embedding(inputs[:, 1])
        dot = ops.sum(users * movies, axis=1, keepdims=True)
        return ops.sigmoid(dot + self.user_bias(inputs[:, 0]) + self.movie_bias(inputs[:, 1]))


model = RecommenderNet(len(user2encoded), len(movie2encoded), EMBEDDING_SIZE)
model.compile(
    loss=keras.losses.BinaryCrossentropy(),
    optimizer=keras.optimizers.Adam(0.005, use_ema=True, ema_momentum=0.95),
)
history = model.fit(
    x_train,
    y_train,
    batch_size=64,
    epochs=3,
    shuffle=False,
    validation_data=(x_val, y_val),
    callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
)

user_id = df["userId"].iloc[0]
watched = set(df[df["userId"] == user_id]["movieId"])
candidates = [number for movie_id, number in movie2encoded.items() if movie_id not in watched]
rows = np.column_stack([np.full(len(candidates), user2encoded[user_id]), candidates])
ratings = model.predict(rows, verbose=0).flatten()
print("Recommended:", [candidates[i] for i in ratings.argsort()[-5:][::-1]])
