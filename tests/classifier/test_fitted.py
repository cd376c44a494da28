import threading
import time

import numpy as np

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.fit import learn

RNG = np.random.default_rng(0)
X, Q = RNG.normal(size=(30, 4)), RNG.normal(size=(20, 4))
TASKS = {2: (X[:8], np.arange(8) % 2), 5: (X, np.arange(30) % 5)}
ASKED = {
    "predict_proba": lambda model: model.predict_proba(Q),
    "novelty": lambda model: model.novelty(Q),
    "explain": lambda model: model.explain(Q),
    "influence": lambda model: model.influence(Q),
    "evidence": lambda model: np.stack(model.evidence(Q)),
    "predict": lambda model: model.predict(Q),
    "predict_set": lambda model: model.predict_set(Q, 0.5),
    "suspects": lambda model: model.suspects().proba,
    "novelty_threshold": lambda model: np.array(model.novelty_threshold()),
}


def test_a_prediction_during_a_fit_is_that_of_one_fit_or_the_other():
    fitted = {n_way: FewShotClassifier().fit(*task) for n_way, task in TASKS.items()}
    expected = {name: [ask(model) for model in fitted.values()] for name, ask in ASKED.items()}
    model, stop, wrong = FewShotClassifier().fit(*TASKS[2]), threading.Event(), []

    def swap():
        while not stop.is_set():
            for task in fitted.values():  # a fit that costs nothing, so that they come as fast as possible
                model._become(task.fitted_)
                time.sleep(1e-4)

    writer = threading.Thread(target=swap)
    writer.start()
    try:
        for _ in range(5):
            for name, ask in ASKED.items():
                found = ask(model)
                if not any(found.shape == other.shape and np.array_equal(found, other) for other in expected[name]):
                    wrong.append(name)
    finally:
        stop.set()
        writer.join()
    assert wrong == []


def test_a_fit_with_other_features_swaps_them_together_with_what_was_learned(monkeypatch):
    model = FewShotClassifier().fit(X, np.arange(30) % 5)
    states = []

    def spy(*args):
        states.append((model.n_features_in_, model.fitted_.support.x.shape[-1]))
        return learn(*args)

    monkeypatch.setattr("mirrorshot.classifier.estimator.learn", spy)
    model.fit(X[:, :3], np.arange(30) % 5)
    assert states == [(4, 4)]
    assert (model.n_features_in_, model.fitted_.support.x.shape[-1]) == (3, 3)
