"""TIMClassifier: scikit-learn's checks, the solvers' results, labels of all kinds."""

from __future__ import annotations

import doctest
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from helpers.forked import run_script
from helpers.make_tasks import Task, make_task
from hypothesis import given
from hypothesis import strategies as st

import tim_ext
from tim_ext.solver.params import ADM, GD
from tim_ext.solver.presets import PRESETS

pytest.importorskip("sklearn", "1.6")

from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

import tim_ext.estimator
from tim_ext.estimator import TIMClassifier

NAMES = np.array(["cat", "dog", "emu", "fox", "gnu"], dtype=object)  # sorted


def task(
    seed: int = 0,
    *,
    noise: float = 0.8,
    dtype: torch.dtype = torch.float64,
    shots: tuple[int, ...] = (5,) * 5,
) -> tuple[Task, np.ndarray, np.ndarray]:
    made = make_task(seed, shots, d=16, noise=noise, dtype=dtype)
    return made, made.features.numpy(), made.labels.numpy()


def names(labels: np.ndarray) -> np.ndarray:
    """Class names, and the number -1 where the label is -1."""
    return np.where(labels == -1, -1, NAMES[labels])


# scikit-learn's checks ----------------------------------------------------------------------------


class PartlyLabelled(TIMClassifier):
    """Hides every second label of a class from `fit`: scikit-learn's checks know no unlabelled samples, and
    would see prototypes only."""

    def fit(self, X, y):
        if y is not None:
            y = np.array(y, dtype=object)
            flat = y.reshape(-1)
            for label in set(flat):
                flat[np.flatnonzero(flat == label)[1::2]] = -1
        return super().fit(X, y)


def expected_failed_checks(estimator: TIMClassifier) -> dict[str, str]:
    return {
        "check_classifiers_classes": "its binary problem has the classes -1 and 1, and -1 means unlabelled; "
        "scikit-learn exempts its own semi-supervised classifiers, by name",
    }


@parametrize_with_checks(
    [
        TIMClassifier(),
        PartlyLabelled(),
        PartlyLabelled("adm"),
        PartlyLabelled("alpha-tim", iterations=50),
    ],
    expected_failed_checks=expected_failed_checks,
)
def test_scikit_learn_checks(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("estimator", [TIMClassifier(), PartlyLabelled()])
def test_the_expected_failure_passes_as_for_scikit_learns_own(estimator) -> None:
    """Under the name of a semi-supervised classifier of scikit-learn, the check leaves the class -1 out."""
    with pytest.raises(ValueError, match="-1 is not a class"):
        check_classifiers_classes("TIMClassifier", estimator)
    check_classifiers_classes("LabelSpreading", estimator)


# The same results as the solvers ------------------------------------------------------------------

COMMON = {
    "normalize": False,
    "lam": 0.3,
    "alpha": 0.2,
    "temperature": 9.0,
    "marginal_weight": 0.7,
    "class_prior": [0.1, 0.2, 0.3, 0.3, 0.1],
    "iterations": 20,
    "tol": 1e-4,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("robust", {}),
        ("robust", COMMON | {"smoothing": 0.3, "relaxation": 0.8}),
        ("adm", {}),
        ("adm", COMMON | {"beta": 0.8, "smoothing": 0.5}),
        ("adm", {"iterations": 0}),
        ("gd", {}),
        ("gd", COMMON | {"entropy_order": 2.0, "lr": 1e-3}),
        ("alpha-tim", {}),
        ("alpha-tim", {"entropy_order": 3.0, "alpha": 0.5}),
    ],
)
def test_fit_is_the_solver(method, arguments, dtype) -> None:
    made, X, y = task(dtype=dtype)
    model = TIMClassifier(method, **arguments)
    assert model.fit(X, names(y)) is model
    solve = tim_ext.baselines.alpha_tim if method == "alpha-tim" else getattr(tim_ext, method)
    result = solve(made.features, made.labels, **arguments)
    assert np.array_equal(model.label_distributions_, result.probs)
    assert np.array_equal(model.weights_, result.weights)
    assert np.array_equal(model.transduction_, NAMES[result.predictions])
    assert np.array_equal(model.proportions_, result.proportions)
    assert np.array_equal(model.classes_, NAMES)
    assert model.n_iter_ == result.iterations.item()
    assert model.weights_.dtype == model.label_distributions_.dtype == X.dtype


def test_defaults_are_those_of_the_solvers() -> None:
    defaults = TIMClassifier().get_params()
    assert (defaults.pop("method"), defaults.pop("normalize")) == ("robust", True)
    assert defaults.pop("confidence") is False
    assert set(defaults.values()) == {None}
    assert set(defaults) - {"class_prior"} <= set(ADM.CHECKS) | set(GD.CHECKS)
    _, X, y = task()
    ran = {method: TIMClassifier(method).fit(X, y).n_iter_ for method in PRESETS}
    assert ran == {"robust": 100, "adm": 150, "gd": 1000, "alpha-tim": 1000}


@pytest.mark.parametrize("method", ["robust", "adm"])
def test_confidences(method: str) -> None:
    made, X, y = task()
    assert not hasattr(TIMClassifier(method).fit(X, y), "confidences_")
    model = TIMClassifier(method, confidence=True).fit(X, y)
    solve = PRESETS[method].solve
    expected = solve(X, made.labels, outputs=("confidence",)).confidence
    assert np.array_equal(model.confidences_, expected.numpy())
    assert np.array_equal(model.weights_, TIMClassifier(method).fit(X, y).weights_)
    with pytest.raises(TypeError, match=r"confidence: expected True or False, got int 2"):
        TIMClassifier(confidence=2).fit(X, y)  # type: ignore[arg-type]


def test_without_unlabelled_samples_it_is_the_nearest_prototype() -> None:
    made, X, _ = task()
    y = made.truth.numpy()
    model = TIMClassifier("adm").fit(X, y)
    z = X / np.linalg.norm(X, axis=1, keepdims=True)
    means = np.stack([z[y == k].mean(axis=0) for k in range(5)])
    np.testing.assert_allclose(model.weights_, means, rtol=1e-12)
    distances = ((z[:, None] - means) ** 2).sum(axis=2)
    assert np.array_equal(model.predict(X), distances.argmin(axis=1))
    assert model.n_iter_ == 0


def test_unlabelled_samples_help() -> None:
    prototype, tim = [], []
    for seed in range(10):
        made, X, y = task(seed, noise=1.2, shots=(1,) * 5)
        for model, accuracies in ((TIMClassifier("adm", iterations=0), prototype), (TIMClassifier(), tim)):
            model.fit(X, y)
            accuracies.append(made.accuracy(torch.as_tensor(model.transduction_)))
    assert np.mean(tim) > np.mean(prototype) + 0.05


# Labels -------------------------------------------------------------------------------------------


@given(
    st.one_of(
        st.lists(st.text(min_size=1), min_size=5, max_size=5, unique=True),
        st.lists(st.integers(-1000, 1000), min_size=5, max_size=5, unique=True),
        st.lists(st.integers(-1000, 1000).map(float), min_size=5, max_size=5, unique=True),
    ),
    st.sampled_from([list, tuple, lambda y: np.array(y, dtype=object)]),
)
def test_any_classes(classes, container) -> None:
    """Whatever the classes are called, the result is that of their numbers in sorted order."""
    if set(classes) & {-1, -100, "-1"}:
        return
    classes = sorted(classes)
    made, X, y = task()
    model = TIMClassifier(iterations=5).fit(X, container([classes[k] if k >= 0 else -1 for k in y]))
    assert model.classes_.tolist() == classes
    expected = tim_ext.robust(made.features, made.labels, iterations=5).predictions
    assert model.transduction_.tolist() == [classes[k] for k in expected]


@pytest.mark.parametrize(
    "classes",
    [
        np.array(["a", "b", "c", "d", "e"]),  # fixed-length strings: a dtype that cannot hold -1
        np.array([3, 5, 7, 200, 255], dtype=np.uint8),
        np.array([-7, -3, 0, 2, 9], dtype=np.int16),
    ],
)
def test_labels_keep_their_type(classes) -> None:
    made, X, _ = task()
    model = TIMClassifier().fit(X, classes[made.truth])
    assert model.classes_.dtype == model.transduction_.dtype == model.predict(X).dtype == classes.dtype
    assert np.array_equal(model.classes_, classes)


def test_two_boolean_classes() -> None:
    made, X, _ = task(shots=(3,) * 2)
    y = made.truth.numpy() == 1
    assert np.array_equal(TIMClassifier().fit(X, y).predict(X), y)


@pytest.mark.parametrize("frequent", [0, 4])
def test_class_prior_is_in_the_order_of_the_classes(frequent) -> None:
    _, X, y = task(shots=(1,) * 5, noise=1.6)
    prior = np.full(5, 0.1)
    prior[frequent] = 0.6
    model = TIMClassifier(class_prior=prior, marginal_weight=20.0).fit(X, names(y))
    share = model.label_distributions_[y == -1].mean(axis=0)
    np.testing.assert_allclose(share, prior, atol=0.05)
    assert np.unique(model.transduction_, return_counts=True)[1].argmax() == frequent


EXPECTED = (
    "y: expected labels that are all numbers or all names, and the number -1 for unlabelled samples, got "
)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            np.array(["a", "b", "-1"]),
            EXPECTED + "'-1' at sample 2 (dtype=object keeps numbers among strings as they are)",
        ),
        (np.array(["a", "b", -1]), EXPECTED + "'-1' at sample 2 (dtype=object"),
        (["a", "b", "-1"], EXPECTED + "'-1' at sample 2 (dtype=object"),
        (["a", "b", ""], EXPECTED + "'' at sample 2"),
        (["a", None, "b"], EXPECTED + "None at sample 1"),
        (["a", "b", float("nan")], EXPECTED + "nan at sample 2"),
        (["a", 3, "b"], EXPECTED + "3 at sample 1"),
        (["a", "b", True], EXPECTED + "True at sample 2"),
        ([0, None, 1], EXPECTED + "None at sample 1"),
        ([0, 1, float("nan")], EXPECTED + "nan at sample 2"),
        (np.array([0, np.inf, 1]), EXPECTED + "inf at sample 1"),
        ([0, 2**70, 1], EXPECTED + "1180591620717411303424 at sample 1"),
        ([0, 1, -100], EXPECTED + "-100 at sample 2"),
        (np.array([b"a", b"b", b"c"]), EXPECTED + "b'a' at sample 0"),
        ([-1, -1, -1], "y: expected labelled samples, got only -1 (unlabelled)"),
        (
            [1, -1, 1],
            "y: expected two classes or more (-1 is not a class: it marks an unlabelled sample), "
            "got one class, 1",
        ),
        (["a", "a", -1], "got one class, 'a'"),
        ([0.5, 1.5, 2.5], "Unknown label type: continuous"),
        ([0, 1], "inconsistent numbers of samples: [3, 2]"),
        ([[0, 1], [1, 0], [1, 1]], "y should be a 1d array"),
        (None, "requires y to be passed, but the target y is None"),
    ],
)
def test_labels_that_are_refused(y, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        TIMClassifier().fit(np.eye(3), y)


# Hyper-parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"method": "lbfgs"},
            ValueError,
            "method: expected one of 'robust', 'adm', 'gd', 'alpha-tim', got 'lbfgs'",
        ),
        ({"lam": -1.0}, ValueError, "lam: expected a finite number >= 0, got -1.0"),
        ({"alpha": "0.1"}, TypeError, "alpha: expected a finite number, got str '0.1'"),
        ({"temperature": 0}, ValueError, "temperature: expected a finite number > 0, got 0.0"),
        ({"marginal_weight": np.nan}, ValueError, "marginal_weight: expected a finite number >= 0, got nan"),
        ({"tol": -1}, ValueError, "tol: expected a finite number >= 0, got -1.0"),
        ({"iterations": 1.5}, TypeError, "iterations: expected an integer, got float 1.5"),
        ({"normalize": 1}, TypeError, "normalize: expected True or False, got int 1"),
        (
            {"class_prior": [0.5, 0.5]},
            ValueError,
            "class_prior: expected shape [5], one proportion for each class",
        ),
        ({"beta": 0}, ValueError, "beta: expected a finite number > 0, got 0.0"),
        ({"smoothing": 1.0}, ValueError, "smoothing: expected a number >= 0 and < 1, got 1.0"),
        ({"method": "gd", "lr": -1}, ValueError, "lr: expected a finite number >= 0, got -1.0"),
        ({"method": "gd", "marginal_weight": "auto"}, TypeError, "marginal_weight: expected a finite number"),
        # what the method does not have
        ({"lr": 0.1}, ValueError, "lr: expected None with method='robust', which has no lr, got 0.1"),
        (
            {"method": "adm", "entropy_order": 2.0},
            ValueError,
            "entropy_order: expected None with method='adm'",
        ),
        ({"method": "alpha-tim", "smoothing": 0.5}, ValueError, "which has no smoothing, got 0.5"),
    ],
)
def test_hyper_parameters_are_checked_by_fit(arguments, error, message) -> None:
    _, X, y = task()
    model = TIMClassifier(**arguments)  # not yet
    with pytest.raises(error, match=re.escape(message)):
        model.fit(X, y)
    assert not hasattr(model, "classes_")


# In the company of scikit-learn -------------------------------------------------------------------


def test_pipeline() -> None:
    _, X, y = task()
    pipeline = make_pipeline(StandardScaler(), PCA(8), TIMClassifier()).fit(X, names(y))
    z = PCA(8).fit_transform(StandardScaler().fit_transform(X))
    alone = TIMClassifier().fit(z, names(y))
    assert np.array_equal(pipeline[-1].transduction_, alone.transduction_)
    new = task(seed=1)[1]
    assert np.array_equal(pipeline.predict_proba(new), alone.predict_proba(pipeline[:-1].transform(new)))


def test_clone_and_pickle() -> None:
    _, X, y = task()
    model = TIMClassifier("gd", iterations=20, class_prior=np.full(5, 0.2)).fit(X, names(y))
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(again.transduction_, model.transduction_)
    fresh = clone(model).set_params(iterations=3)
    assert not hasattr(fresh, "classes_")
    assert (fresh.method, fresh.fit(X, y).n_iter_) == ("gd", 3)


def test_one_labelled_sample_per_class_is_no_regression() -> None:
    """scikit-learn would warn of it from 20 samples on."""
    X = np.random.default_rng(0).standard_normal((60, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TIMClassifier(iterations=3).fit(X, np.where(np.arange(60) < 30, np.arange(60), -1))


def test_score_leaves_unlabelled_samples_out() -> None:
    made, X, y = task(noise=1.6)
    model = TIMClassifier(iterations=0).fit(X, y)
    right = model.predict(X) == made.truth.numpy()
    y = y.copy()
    y[40:60] = made.truth[40:60]
    known = y != -1
    assert 0 < right[known].mean() < 1
    assert model.score(X, y) == pytest.approx(right[known].mean())
    weight = np.arange(100.0)
    assert model.score(X, y, weight) == pytest.approx(np.average(right[known], weights=weight[known]))
    assert model.score(X, made.truth.numpy()) == pytest.approx(right.mean())
    with pytest.raises(ValueError, match="y: expected labelled samples, got only -1"):
        model.score(X, np.full(100, -1))


@pytest.mark.parametrize(
    ("y_of", "cv"),
    [(np.array, 4), (lambda y: names(y).tolist(), 4), (names, KFold(4, shuffle=True, random_state=0))],
    ids=["numbers", "list", "objects"],
)
def test_grid_search_scores_the_labelled_samples_of_a_fold(y_of, cv) -> None:
    _, X, y = task(noise=1.6, shots=(8,) * 5)
    pipeline = make_pipeline(StandardScaler(), TIMClassifier("adm", iterations=30))
    grid = {"timclassifier__alpha": [0.1, 20.0]}
    search = GridSearchCV(pipeline, grid, cv=cv, error_score="raise").fit(X, y_of(y))
    folds = StratifiedKFold(4) if cv == 4 else cv
    truth = names(y)
    for alpha, score in zip([0.1, 20.0], search.cv_results_["mean_test_score"], strict=True):
        model = clone(pipeline).set_params(timclassifier__alpha=alpha)
        scores = []
        # stratified by the class names, which are in the order of the numbers: "-1" < "cat" < ...
        for train, test in folds.split(X, y):
            labelled = test[y[test] != -1]
            predictions = model.fit(X[train], truth[train]).predict(X[labelled])
            scores.append(np.mean(predictions == truth[labelled]))
        assert score == pytest.approx(np.mean(scores))
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 2
    assert set(search.predict(X)) == set(NAMES if y_of is not np.array else range(5))


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    _, X, y = task()
    columns = [f"feature {j}" for j in range(16)]
    frame = pandas.DataFrame(X, columns=columns)
    model = TIMClassifier().fit(frame, pandas.Series(names(y)))
    assert model.feature_names_in_.tolist() == columns
    assert np.array_equal(model.predict(frame), model.transduction_)
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        model.predict(frame[columns[::-1]])
    numbers = TIMClassifier().fit(frame, pandas.Series(y, dtype="Int64"))
    assert np.array_equal(NAMES[numbers.transduction_.astype(int)], model.transduction_)
    column = pandas.Series([NAMES[k] if k >= 0 else None for k in y])  # as read from a file
    with pytest.raises(ValueError, match=re.escape(EXPECTED)):
        TIMClassifier().fit(frame, column)
    filled = TIMClassifier().fit(frame, column.astype(object).fillna(-1))
    assert np.array_equal(filled.transduction_, model.transduction_)


def test_without_scikit_learn() -> None:
    script = "import sys; sys.modules['sklearn'] = None; import tim_ext, tim_ext.estimator"
    done = run_script(script)
    assert done.stderr.splitlines()[-1].endswith("sklearn is not installed: pip install 'tim_ext[evaluate]'")


def test_example() -> None:
    results = doctest.testmod(tim_ext.estimator)
    assert results.attempted > 0
    assert results.failed == 0


def test_method_was_called_solver() -> None:
    with pytest.raises(TypeError, match=r"^solver: expected its new name, method='gd', got solver='gd'$"):
        TIMClassifier(solver="gd")
    assert "solver" not in TIMClassifier().get_params()
