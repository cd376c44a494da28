"""Many users at once: no errors, no lost label, nobody sees another's; models are fitted once and forgotten in time."""

import threading

import numpy as np
import pytest
from PIL import Image

from mirrorshot.files.imaging.reading import make_preview
from mirrorshot.serve.fitting import Cache, fit
from mirrorshot.serve.records import Rows

PNG = {"content-type": "image/png"}


def work(server, seed, pictures, found):
    """One user who adds and asks; keeps the user and what it must have."""
    rng = np.random.default_rng(seed)
    user = server.client().begin()
    classes = {f"{kind} of {seed}": user.make_class(f"{kind} of {seed}") for kind in pictures}
    labels = {}
    for _ in range(2):
        for (name, number), picture in zip(classes.items(), pictures.values(), strict=True):
            labels[user.add(picture, number)] = number
            if rng.random() < 0.5 and len(labels) > 2:
                answer = user.http.post("/api/predict", content=picture, headers=PNG)
                assert answer.status_code == 200, answer.text
                shares = {share["label"] for share in answer.json()["probabilities"]}
                assert shares <= set(classes)
                assert name in shares
    found[seed] = (user, labels)


def test_users_do_not_disturb_each_other(shared, picture_of):
    pictures = {kind: picture_of(kind) for kind in ("bar", "cross", "ring")}
    found = {}
    threads = [threading.Thread(target=work, args=(shared, seed, pictures, found)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(found) == 8  # a thread that failed has left nothing
    for user, labels in found.values():
        assert {p["id"]: p["class_id"] for p in user.get("session")["pictures"]} == labels


def test_one_user_in_many_threads_loses_no_label(taught, picture_of):
    before = taught.get("session")["support"]
    picture, numbers = picture_of("bar"), []
    threads = [
        threading.Thread(target=lambda: numbers.append(taught.add(picture, taught.classes["bar"]))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    overview = taught.get("session")
    assert overview["support"] == before + 12
    assert set(numbers) <= {p["id"] for p in overview["pictures"]}
    assert taught.get("answers")["support"] == overview["support"]


def test_questions_at_the_same_time_fit_one_model(serve, picture_of, monkeypatch):
    fits = []

    def counted(*arguments):
        fits.append(1)
        return fit(*arguments)

    monkeypatch.setattr("mirrorshot.serve.service.fit", counted)
    user = serve().client().begin()
    for kind in ("bar", "ring"):
        user.add(picture_of(kind), user.make_class(kind))
    threads = [threading.Thread(target=user.get, args=("calibration",)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(fits) == 1


def rows(seed, n=6):
    rng = np.random.default_rng(seed)
    labels = ["a", "b"] * (n // 2)
    preview = make_preview(Image.new("L", (4, 4)), 8)
    return Rows(
        seed, "pixels", list(range(n)), [str(i) for i in range(n)], labels, rng.normal(size=(n, 3)), [preview] * n
    )


def changed(before, gone=(), come=(), relabelled=None):
    """Rows after changes: places that go, labels of new examples, and new labels by place."""
    rng = np.random.default_rng(99)
    labels = [(relabelled or {}).get(place, label) for place, label in enumerate(before.labels)]
    places = [place for place in range(len(before.ids)) if place not in gone]
    kept = before._replace(labels=labels).take(places)
    ids = [*kept.ids, *range(1000, 1000 + len(come))]
    X = np.concatenate([kept.embeddings, rng.normal(size=(len(come), 3))])
    names, previews = [str(number) for number in ids], before.previews[:1] * len(ids)
    return Rows(before.support + 1, before.encoder, ids, names, [*kept.labels, *come], X, previews)


@pytest.mark.parametrize(
    "change",
    [
        {"come": ["a"]},
        {"come": ["a", "new"]},
        {"gone": [0]},
        {"gone": [3], "come": ["b"]},
        {"relabelled": {2: "b"}},
        {"relabelled": {2: "only"}},
        {"gone": [0, 1]},
        {},
    ],
    ids=str,
)
def test_a_model_that_is_brought_up_to_date_is_that_which_is_fitted_anew(encoders, change):
    encoder = encoders.get(encoders.identities["pixels"])  # no prior
    before = rows(0, n=12)
    earlier = fit(before, encoder, {})
    proba = earlier.model.head.predict_proba(before.embeddings)
    now = changed(before, **change)
    anew, updated = fit(now, encoder, {}), fit(now, encoder, {}, earlier)
    labels = dict(zip(now.ids, now.labels, strict=True))
    assert sorted(updated.ids) == now.ids
    assert updated.model.labels == [labels[number] for number in updated.ids]
    assert np.array_equal(updated.model.embeddings, now.embeddings[[now.ids.index(n) for n in updated.ids]])
    assert updated.model.head.classes_.tolist() == anew.model.head.classes_.tolist()
    X = np.random.default_rng(5).normal(size=(20, 3))
    assert np.allclose(updated.model.head.predict_proba(X), anew.model.head.predict_proba(X), atol=1e-5)
    assert updated.novelty_threshold == pytest.approx(anew.novelty_threshold, abs=1e-4)
    assert np.array_equal(earlier.model.head.predict_proba(before.embeddings), proba)  # others still use it


def test_the_cache_keeps_what_was_used_last(encoders):
    encoder = encoders.get(encoders.identities["pixels"])  # no prior
    models = [fit(rows(seed), encoder, {}) for seed in range(3)]
    cache = Cache(2 * models[0].n_bytes)
    cache.put("first", models[0])
    cache.put("second", models[1])
    assert cache.get("first", 0) is models[0]
    cache.put("third", models[2])
    assert cache.get("second", 1) is None
    assert cache.get("first", 0) is models[0]
    assert cache.get("first", 1) is None  # of other labels
    cache.forget("first")
    cache.forget("third")
    assert len(cache) == 0


def test_answers_count_for_the_size_of_the_cache(encoders):
    encoder = encoders.get(encoders.identities["pixels"])  # no prior
    first, second = (fit(rows(seed), encoder, {}) for seed in range(2))
    cache = Cache(first.n_bytes + second.n_bytes)
    cache.put("first", first)
    cache.put("second", second)
    second.told[1] = None
    cache.shrink()
    assert (cache.earlier("first"), cache.earlier("second")) == (None, second)
