import os

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from mirrorshot import FewShotClassifier
from mirrorshot.encoders import EncoderError, make_encoder
from mirrorshot.encoders.images import NETWORKS
from mirrorshot.tool import Items, Model, decide, encode_items, read_labelled, read_unlabelled
from mirrorshot.types import DataError, InvalidInputError


def encoded(model, items):
    return encode_items(model.encoder, items, thumbnails=True)


def test_a_model_answers_as_the_classifier_does(points, blobs):
    model, queries = Model.fit(points, parameters={"kernel": "cosine"}), blobs(seed=3)
    few = FewShotClassifier().fit(points.content, points.labels)
    prob, parts = few.predict_proba(queries.content), few.uncertainty(queries.content)
    in_set = few.predict_set(queries.content, 0.9)
    for i, answer in enumerate(model.predict(queries)):
        assert answer.label == few.classes_[prob[i].argmax()]
        assert answer.probability == prob[i].max()
        assert list(answer.probabilities.values()) == prob[i].tolist()
        assert answer.labels == tuple(few.classes_[in_set[i]])
        assert (answer.epistemic, answer.aleatoric) == (parts.epistemic[i], parts.aleatoric[i])
        assert answer.is_novel == (answer.novelty > few.novelty_threshold())


def test_pictures_are_classified(pictures):
    model = Model.fit(read_labelled(pictures / "support"), make_encoder("glyphs"))
    queries = read_labelled(pictures / "query")
    answers = model.predict(queries)
    assert np.mean([a.label == label for a, label in zip(answers, queries.labels, strict=True)]) >= 0.8


def test_pictures_may_be_the_bytes_of_their_files(pictures):
    items = read_labelled(pictures / "query")
    model = Model.fit(read_labelled(pictures / "support"), make_encoder("pixels"))
    data = items._replace(content=[path.read_bytes() for path in items.content])
    assert model.predict(data) == model.predict(items)
    assert decide(data) == decide(items)


def test_with_one_example_of_each_class_there_are_no_sets(blobs):
    answers = Model.fit(blobs(n_shot=1)).predict(blobs(seed=1))
    assert {answer.labels for answer in answers} == {None}
    assert not any(answer.is_novel for answer in answers)


def test_adding_and_removing_is_as_if_fitted_so(points, blobs):
    more, queries = blobs(seed=1, n_way=2, n_shot=2), blobs(seed=2)
    model = Model.fit(points, parameters={"kernel": "cosine"})
    model.add(encoded(model, more._replace(names=["n0", "n1", "n2", "n3"])), ["new", "new", "class 0", "new"])
    X = np.concatenate([points.content, more.content])
    direct = FewShotClassifier().fit(X, [*points.labels, "new", "new", "class 0", "new"])
    found, wanted = (head.predict_proba(queries.content) for head in (model.head, direct))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert model.remove(["n0", "n1", "n2", "n3"]).classes == ["class 0", "class 1", "class 2"]
    alone = Model.fit(points, parameters={"kernel": "cosine"})
    for found, wanted in zip(model.predict(queries), alone.predict(queries), strict=True):
        assert found.probabilities == pytest.approx(wanted.probabilities, abs=1e-6)
        assert (found.name, found.label, found.labels) == (wanted.name, wanted.label, wanted.labels)
        assert (found.novelty, found.epistemic) == pytest.approx((wanted.novelty, wanted.epistemic), abs=1e-6)


def test_the_estimator_of_a_model_is_its_classifier_and_apart_from_it(points, blobs):
    model, queries = Model.fit(points), blobs(seed=2)
    before = model.predict(queries)
    head = model.head
    assert head.predict(queries.content).tolist() == [answer.label for answer in before]
    head.add(queries.content, queries.labels)
    assert model.predict(queries) == before
    assert model.head.n_features_in_ == 6


def test_a_name_that_is_there_already_gets_a_number(points):
    model = Model.fit(points)
    model.add(encoded(model, points.take([0, 1])), ["class 0", "class 0"])
    assert model.names[-2:] == ["item 0 (2)", "item 1 (2)"]
    assert model.remove(["item 0 (2)"]).names[-1] == "item 1 (2)"


@pytest.mark.parametrize(
    "names", [["unheard of"], [], [f"item {i}" for i in range(12)], [f"item {i}" for i in range(8)]]
)
def test_a_model_stays_as_it_was_if_nothing_would_be_left(points, names):
    model = Model.fit(points)
    before = model.predict(points)
    with pytest.raises(InvalidInputError, match="Expected"):
        model.remove(names)
    assert model.predict(points) == before


@pytest.mark.parametrize("labels", [[], ["a"], ["a", ""]])
def test_examples_without_labels_are_not_added(points, labels):
    model = Model.fit(points)
    with pytest.raises(InvalidInputError, match="label for each"):
        model.add(encoded(model, points.take([0, 1])), labels)
    assert len(model.names) == 12


def test_explanations_add_up_to_the_latent(points, blobs):
    model, queries = Model.fit(points), blobs(seed=1)
    found = encoded(model, queries)
    reasons = model.explain(found, "class 1", n=len(points.names))
    latent = model.head.predict_latent(queries.content)[0][:, 1]
    assert np.allclose([sum(reason.added for reason in of_item) for of_item in reasons], latent)
    assert {reason.name for reason in reasons[0]} == set(points.names)
    with pytest.raises(InvalidInputError, match="class of the model"):
        model.explain(found, "unheard of")


def test_suggestions_are_those_of_the_classifier(points, blobs):
    model, pool = Model.fit(points), blobs(seed=5)
    rows = model.head.suggest(pool.content, 3)
    assert model.suggest(encoded(model, pool), 3) == [pool.names[i] for i in rows]
    assert len(model.suggest(encoded(model, pool), 100)) == len(pool.names)


def test_scores_agree_with_counting(points, blobs):
    model, queries = Model.fit(points), blobs(seed=0, n_shot=10)
    strange = queries._replace(labels=["other" if label == "class 2" else label for label in queries.labels])
    found = model.score(encoded(model, strange))
    prob = model.head.predict_proba(queries.content[:20])
    right = prob.argmax(1) == np.repeat([0, 1], 10)
    assert (found.n_items, found.n_unknown) == (20, 10)
    assert found.accuracy == right.mean()
    assert found.nll == pytest.approx(-np.log(prob[np.arange(20), np.repeat([0, 1], 10)]).mean())
    assert found.accuracy_of == {"class 0": right[:10].mean(), "class 1": right[10:].mean()}
    with pytest.raises(DataError, match="classes of the model"):
        model.score(encoded(model, queries._replace(labels=["other"] * 30)))


def test_embeddings_of_another_length_are_refused(points):
    with pytest.raises(InvalidInputError, match="length 6"):
        Model.fit(points).predict(Items("embedding", ["x"], np.ones((1, 4)), None))


def test_one_class_is_not_enough(points):
    with pytest.raises(DataError, match="at least two classes"):
        Model.fit(points._replace(labels=["a"] * 12))
    with pytest.raises(DataError, match="labelled"):
        Model.fit(points._replace(labels=None))


def test_items_of_another_kind_are_refused(points, pictures):
    model = Model.fit(points)
    with pytest.raises(EncoderError, match="fitted on embeddings"):
        model.predict(read_labelled(pictures / "query"))
    of_pictures = Model.fit(read_labelled(pictures / "support"), make_encoder("pixels"))
    with pytest.raises(EncoderError, match="but got embeddings"):
        of_pictures.predict(points)
    with pytest.raises(EncoderError, match="but got texts"):
        of_pictures.predict(Items("text", ["x"], ["hello"], None))


def bomb(path):
    """A PNG whose header promises 100,000 x 100,000 pixels."""
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 10_000)))


def cut(path):
    Image.new("RGB", (200, 200), "red").save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:300])


def floats(path):
    Image.fromarray(np.ones((20, 20), np.float32)).save(path, "TIFF")


def many_scans(path):
    Image.new("L", (20, 20)).save(path, "JPEG", progressive=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + whole[whole.rfind(b"\xff\xda") : -2] * 1000 + b"\xff\xd9")


BAD_PICTURES = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no picture"),
    "a bomb": bomb,
    "cut off": cut,
    "floating-point numbers": floats,
    "postscript": lambda path: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"),
    "a link to nowhere": lambda path: path.symlink_to(path.with_name("nowhere")),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "many scans": many_scans,
}


if os.name == "nt":
    del BAD_PICTURES["a link to nowhere"]  # links need rights on Windows


@pytest.mark.parametrize("key", ["comment", "transparency"])
def test_texts_in_a_picture_do_not_matter(tmp_path, write_pictures, key):
    root = write_pictures(tmp_path / "support", n=2)
    texts = PngImagePlugin.PngInfo()
    texts.add_itxt(key, "\u00e9" * 40_000, zip=True)
    Image.new("L", (20, 20)).save(root / "bar" / "text.png", pnginfo=texts)
    items = read_labelled(root)
    found = encode_items(make_encoder("pixels"), items, thumbnails=True)
    assert found.damaged == {}
    assert len(found.embeddings) == len(items.names)


@pytest.mark.parametrize("what", BAD_PICTURES)
def test_a_damaged_picture_is_told_and_can_be_left_out(tmp_path, write_pictures, what):
    root = write_pictures(tmp_path / "support", n=2)
    bad = root / "bar" / "bad.png"
    BAD_PICTURES[what](bad)
    items = read_labelled(root)
    items = Items("picture", [*items.names, "bad"], [*items.content, bad], [*items.labels, "bar"])
    items = items.take([i for i, name in enumerate(items.names) if name != str(bad)])
    encoder = make_encoder("pixels")
    with pytest.raises(DataError, match=r"1 item cannot be read: .*bad"):
        Model.fit(items, encoder)
    model = Model.fit(items, encoder, skip_corrupt=True)
    assert len(model.names) == 6
    found = encode_items(model.encoder, items)
    assert list(found.damaged) == ["bad"]
    assert len(model.predict_encoded(found)) == 6


def test_a_class_that_loses_all_its_pictures_is_told(tmp_path, write_pictures):
    root = write_pictures(tmp_path / "support", n=2)
    for path in (root / "bar").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match="every class to have a readable item"):
        Model.fit(read_labelled(root), make_encoder("pixels"), skip_corrupt=True)


def test_nothing_readable_at_all_is_told(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="got 1 image that cannot"):
        encode_items(make_encoder("pixels"), read_unlabelled([str(tmp_path)]))


def test_auto_is_decided_by_the_pictures(pictures, tmp_path):
    assert decide(read_labelled(pictures / "support")).name == "glyphs"
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 255, (30, 30, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    choice = decide(read_unlabelled([str(tmp_path)]))
    assert choice.name in (*NETWORKS, "pixels")
    assert choice.name != "pixels" or "pip install 'mirrorshot[images]'" in choice.advice
