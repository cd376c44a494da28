"""Encoders for texts without downloads other than pip packages: static word embeddings, and TF-IDF."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, Kind, unit
from mirrorshot.encoders.packages import read_weights

MAX_CHARACTERS = 2**15
"""Number of characters, about ten pages, to which texts are truncated."""

_AT_ONCE = 256  # texts in a batch
_WEIGHTS = (
    "wordllama",
    "weights/l2_supercat_256.safetensors",
    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
)
_TOKENS = (
    "wordllama",
    "tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
)
_INSTALL = "'mirrorshot[text]'"


class WordLlama(Encoder):
    """For texts: the mean of 256-dimensional token embeddings of the package `wordllama`.

    Fast; ignores the order of words.
    """

    kind: Kind = "text"

    def __init__(self) -> None:
        import safetensors.numpy

        self.name, self.settings = "wordllama", {}
        weights = safetensors.numpy.load(read_weights(*_WEIGHTS, install=_INSTALL))
        self._vectors = weights["embedding.weight"].astype(np.float32)
        self._tokenizer = load_tokenizer(read_weights(*_TOKENS, install=_INSTALL))

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return embeddings of texts, (n, 256)."""
        texts = shortened(items)
        parts = [self._means(texts[i : i + _AT_ONCE]) for i in range(0, len(texts), _AT_ONCE)]
        return np.concatenate(parts)

    def _means(self, texts: list[str]) -> NDArray[np.float32]:
        tokens = [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        return np.stack([self._vectors[ids].mean(0) if ids else np.zeros_like(self._vectors[0]) for ids in tokens])


class Tfidf(Encoder):
    """For texts, without extra packages: words and pairs of words, hashed into columns and weighted by rarity.

    Args:
        idf: weight of each column, (2048,), from `fit`; None: equal weights.

    Example:
        >>> Tfidf().fit(["red apple", "red car"]).encode(["a car"]).shape
        (1, 2048)
    """

    kind: Kind = "text"
    n_features = 2048

    def __init__(self, idf: NDArray[Any] | None = None) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self.name, self.settings = "tfidf", {}
        self._idf = np.ones(self.n_features, np.float32) if idf is None else np.asarray(idf, np.float32)
        if self._idf.shape != (self.n_features,) or not np.isfinite(self._idf).all():
            raise EncoderError(
                f"Expected {self.n_features} finite weights of the encoder 'tfidf', but got shape {self._idf.shape}."
            )
        self._counts = HashingVectorizer(
            n_features=self.n_features, ngram_range=(1, 2), norm=None, alternate_sign=True, dtype=np.float32
        )

    def fit(self, items: Sequence[Item]) -> "Tfidf":
        """Return an encoder with weights from these texts; frequent columns have smaller weights."""
        n_with = np.asarray((self._counts.transform(shortened(items)) != 0).sum(0)).ravel()
        return Tfidf((np.log((1 + len(items)) / (1 + n_with)) + 1).astype(np.float32))

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return the weights of the columns."""
        return {"idf": self._idf}

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return embeddings of texts, (n, 2048)."""
        counts = self._counts.transform(shortened(items))
        counts.data = np.sign(counts.data) * (1 + np.log(np.abs(counts.data).clip(1)))
        return unit(np.asarray(counts.todense()) * self._idf)


def load_tokenizer(content: bytes) -> Any:
    """Return a tokenizer of the package `tokenizers`, or raise an `EncoderError` if that is not installed."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise EncoderError(
            f"Expected the package tokenizers for texts, but it is not installed. Install it: pip install {_INSTALL}"
        ) from error
    return Tokenizer.from_str(content.decode())


def shortened(items: Sequence[Item]) -> list[str]:
    """Truncate texts to `MAX_CHARACTERS`."""
    return [str(item)[:MAX_CHARACTERS] for item in items]
