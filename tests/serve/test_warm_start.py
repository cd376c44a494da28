import numpy as np

from mirrorshot.encoders import make_encoder
from mirrorshot.serve import fitting
from mirrorshot.serve.records import Rows


def rows_of(ids, labels, embeddings):
    names, classes = [f"{i}.jpg" for i in ids], [labels[i] for i in ids]
    return Rows(0, "pixels", list(ids), names, classes, np.stack([embeddings[i] for i in ids]), [b""] * len(ids))


def test_a_model_that_is_brought_up_to_date_is_what_a_fit_gives(monkeypatch):
    """Pictures come, go and change their class, some of them near-copies with another label."""
    monkeypatch.setattr(fitting, "read_previews", lambda previews: None)
    rng = np.random.default_rng(0)
    encoder = make_encoder("pixels")
    embeddings = {i: rng.normal(size=4) for i in range(60)}
    for i in range(30, 60):
        embeddings[i] = embeddings[i - 30] + 1e-3 * rng.normal(size=4)
    labels = {i: "abc"[i % 3] for i in range(60)}
    ids, before, starts = list(range(12)), None, []
    parameters = {"outputscale": 100.0}
    for turn in range(12):
        rows = rows_of(ids, labels, embeddings)
        warm, cold = fitting.fit(rows, encoder, parameters, before), fitting.fit(rows, encoder, parameters)
        queries = np.stack(list(embeddings.values()))
        np.testing.assert_allclose(
            warm.model.head.predict_proba(queries), cold.model.head.predict_proba(queries), atol=1e-6
        )
        assert abs(warm.model.head.elbo_ - cold.model.head.elbo_) <= 1e-6
        starts.append(warm.model.head.start_)
        before = warm
        changed = int(rng.choice(ids[3:]))
        kind = turn % 3
        if kind == 0:
            ids = [*ids, 30 + turn]
        elif kind == 1:
            labels[changed] = "abc"["bca".index(labels[changed])]
        else:
            ids = [i for i in ids if i != changed]
    assert "previous" in starts
