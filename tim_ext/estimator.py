"""TIM as a scikit-learn estimator: from the labels of a user to a task of a solver, and back."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import reference
from .errors import require
from .solver.extension import Extension, extend
from .solver.graph import smoothing_reach
from .solver.inputs import PADDING, QUERY
from .solver.params import OUTPUTS, AdmParams, TimParams, check_flag
from .solver.presets import PRESETS, with_defaults
from .solver.renames import renamed
from .solver.roots import LEAST

require("sklearn", extra="evaluate")

from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402
from sklearn.metrics import accuracy_score  # noqa: E402
from sklearn.utils import check_consistent_length, column_or_1d  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

UNLABELLED = QUERY  # -1, scikit-learn's marker too
FLOATS = [np.float64, np.float32]  # kept as they are; everything else becomes the first
Array = NDArray[Any]


class TIMClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Transductive classifier: labels all unlabelled samples at once, from a few labelled ones per class.

    `fit(X, y)` takes labelled and unlabelled samples together, with -1 in `y` for the unlabelled, and leaves
    the labels of all of them in `transduction_`. `predict` also takes samples that were not there. If no
    sample is unlabelled, the classifier is the nearest prototype.

    Args:
        method: "robust" (`tim_ext.robust`: for classes of any proportions), "adm" or "gd" (`tim_ext.adm`,
            `tim_ext.gd`: the paper's, for classes of about equal size), or "alpha-tim" (`tim_ext.gd` as
            `tim_ext.baselines.alpha_tim` calls it). The hyper-parameters below are those of these functions;
            None is the method's own default, and one that the method does not have is refused.
        normalize: scale the features of a sample to unit length (a zero vector stays zero).
        class_prior: proportions of the classes among the unlabelled samples, in the order of `classes_`
            (sorted), each > 0 and of sum 1; by default they are not known.
        lam: weight of the cross entropy on the labelled samples.
        alpha: weight of the conditional entropy of the unlabelled samples; 0 leaves it out.
        temperature: tau of p_ik = softmax_k(-tau/2 * ||w_k - z_i||^2).
        marginal_weight: weight m of the marginal entropy of the unlabelled samples; 0 leaves it out. "auto"
            ("robust", "adm"): the samples decide.
        smoothing: reach of the smoothing over nearest neighbours, 0 to 1, or "auto"; of "robust" and "adm".
        relaxation: factor of every step of W; of "robust" and "adm".
        beta: weight of the penalty that ties the assignments q to the probabilities p; of "robust" and "adm".
        entropy_order: order a > 0 of both entropies (Tsallis); of "gd" and "alpha-tim".
        lr: step size of Adam; of "gd" and "alpha-tim".
        iterations: number of updates; 0 gives the prototypes.
        tol: stop when no probability moved by more than this in an update; 0 runs all iterations.
        confidence: also estimate `confidences_`; takes five solves of "robust" more.

    Attributes:
        classes_: [K], the classes of `y` without -1, sorted.
        transduction_: [N], the class of each sample of `fit`: the argmax of `label_distributions_`. As in
            scikit-learn's LabelSpreading, a labelled sample may get another class than its own.
        label_distributions_: [N, K], the probabilities of each sample of `fit`, columns as in `classes_`.
        confidences_: [N], with `confidence`: the probability that `transduction_` is right, which the largest
            of `label_distributions_` is not; of a labelled sample 1, or 0 where it got another class.
        weights_: [K, d], the classifier W: one point per class; with smoothing ("robust") among the smoothed
            samples.
        proportions_: [K], the mean of the probabilities of the unlabelled samples; 0 without any.
        n_iter_: number of updates run; 0 if no sample was unlabelled.
        n_features_in_, feature_names_in_: as in every scikit-learn estimator.

    Example:
        >>> import numpy as np
        >>> from sklearn.datasets import load_digits
        >>> from tim_ext import TIMClassifier
        >>> X, classes = load_digits(return_X_y=True)
        >>> y = np.full_like(classes, -1)
        >>> y[:50] = classes[:50]  # 50 labelled images, 1747 unlabelled ones
        >>> model = TIMClassifier().fit(X, y)
        >>> print(f"{np.mean(model.transduction_[50:] == classes[50:]):.2f}")
        0.86
        >>> model.predict(X[:3])
        array([0, 1, 2])
    """

    classes_: Array
    transduction_: Array
    label_distributions_: Array
    confidences_: Array
    weights_: Array
    proportions_: Array
    n_iter_: int

    @renamed(solver="method")
    def __init__(
        self,
        method: str = "robust",
        *,
        normalize: bool = True,
        class_prior: Any = None,
        lam: float | None = None,
        alpha: float | None = None,
        temperature: float | None = None,
        marginal_weight: float | str | None = None,
        smoothing: float | str | None = None,
        relaxation: float | None = None,
        beta: float | None = None,
        entropy_order: float | None = None,
        lr: float | None = None,
        iterations: int | None = None,
        tol: float | None = None,
        confidence: bool = False,
    ) -> None:
        self.method = method
        self.normalize = normalize
        self.class_prior = class_prior
        self.lam = lam
        self.alpha = alpha
        self.temperature = temperature
        self.marginal_weight = marginal_weight
        self.smoothing = smoothing
        self.relaxation = relaxation
        self.beta = beta
        self.entropy_order = entropy_order
        self.lr = lr
        self.iterations = iterations
        self.tol = tol
        self.confidence = confidence

    def fit(self, X: Any, y: Any) -> TIMClassifier:
        """Labels the unlabelled samples.

        Args:
            X: [N, d], labelled and unlabelled samples. float32 and float64 are computed as they are, other
                types in float64.
            y: [N], the class of each sample, a number or a string, or the number -1 for an unlabelled one.
                An array of strings that also holds -1 needs dtype=object; a list may simply mix them.
        """
        given = self._given()
        X = validate_data(self, X, dtype=FLOATS)
        y, known = read_labels(y)
        check_consistent_length(X, y)
        with warnings.catch_warnings():  # one labelled sample per class is no regression
            warnings.filterwarnings("ignore", "The number of unique classes is greater")
            check_classification_targets(y[known])
        classes, numbers = np.unique(y[known], return_inverse=True)
        if len(classes) == 1:
            raise ValueError(
                f"y: expected two classes or more ({UNLABELLED} is not a class: it marks an unlabelled "
                f"sample), got one class, {classes.tolist()[0]!r}"
            )

        labels = np.full(len(y), UNLABELLED, dtype=np.int64)
        labels[known] = numbers
        given = with_defaults(self.method, given, support=len(numbers), num_classes=len(classes))
        task = {"normalize": self.normalize, "class_prior": self.class_prior}
        preset = PRESETS[self.method]
        solve: Callable[..., Any] = preset.solve
        outputs = (*OUTPUTS, "confidence") if check_flag("confidence", self.confidence) else OUTPUTS
        result = solve(X, labels, **task, outputs=outputs, **given)
        params = replace(preset.defaults, **given)
        self._of_new = OfNew.make(X, self.method, self.normalize, params, len(numbers), len(classes))
        self.classes_ = classes
        self.label_distributions_ = result.probs.numpy()
        self.transduction_ = classes[result.predictions.numpy()]
        if result.confidence is not None:
            self.confidences_ = result.confidence.numpy()
        self.weights_ = result.weights.numpy()
        self.proportions_ = result.proportions.numpy()
        self.n_iter_ = int(result.iterations)
        return self

    def predict(self, X: Any) -> Array:
        """The classes [N] of samples X [N, d], of `fit` or new: the argmax of `predict_proba`."""
        best = self.predict_proba(X).argmax(axis=1)
        classes: Array = self.classes_[best]
        return classes

    def predict_proba(self, X: Any) -> Array:
        """p_ik = softmax_k(-tau/2 * ||w_k - z_i||^2) of samples X [N, d], with the W of `fit`: [N, K].

        The samples do not influence one another. After a smoothed fit ("robust"), z_i is smoothed over its
        neighbours among the samples of `fit` first. Samples of `fit` get their `label_distributions_` again:
        up to rounding, and after a smoothed fit exactly (of equal ones, those of the first). Columns as in
        `classes_`.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)
        dtype = np.result_type(X, self.weights_)
        z, w, known = (
            torch.from_numpy(a.astype(dtype)) for a in (X, self.weights_, self.label_distributions_)
        )
        z, same = self._of_new.prepare(z)
        p = reference.log_distance_softmax(z, w, self._of_new.temperature).exp()
        if same is not None:
            p = torch.where(same[:, None] >= 0, known[same], p)
        if not p.isfinite().all():
            raise ValueError("X: expected finite probabilities, got NaN: the features are too large")
        probabilities: Array = p.numpy()
        return probabilities

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy on samples X [N, d] with labels y [N]; those with -1 do not count.

        This gives cross-validation over partly labelled samples a meaning.
        """
        predictions = self.predict(X)
        y, known = read_labels(y)
        check_consistent_length(predictions, y, sample_weight)
        if sample_weight is not None:
            sample_weight = column_or_1d(sample_weight)[known]
        return float(accuracy_score(y[known], predictions[known], sample_weight=sample_weight))

    def _given(self) -> dict[str, Any]:
        """The hyper-parameters that are not None; those that the method does not have are refused."""
        if self.method not in PRESETS:
            expected = ", ".join(map(repr, PRESETS))
            raise ValueError(f"method: expected one of {expected}, got {self.method!r}")
        checks = PRESETS[self.method].defaults.CHECKS
        given = {name: value for name, value in self.get_params(deep=False).items() if value is not None}
        for name in ("method", "normalize", "class_prior", "confidence"):
            given.pop(name, None)
        for name, value in given.items():
            if name not in checks:
                raise ValueError(
                    f"{name}: expected None with method={self.method!r}, which has no {name}, got {value!r}"
                )
            checks[name](name, value)
        return given


class OfNew(NamedTuple):
    """How samples that come after `fit` become the z_i of its classifier."""

    roots: bool  # of features that have no negative value, as `robust` takes them
    normalize: bool
    temperature: float
    extension: Extension | None  # of the smoothing

    @classmethod
    def make(
        cls, X: Array, method: str, normalize: bool, params: TimParams, support: int, num_classes: int
    ) -> OfNew:
        roots = method == "robust" and bool((X >= 0).all())
        of_new = cls(roots, normalize, params.temperature, None)
        if not isinstance(params, AdmParams) or params.smoothing == 0:
            return of_new
        reach = smoothing_reach(params.smoothing, support, len(X), num_classes)
        z, _ = of_new.prepare(torch.from_numpy(X))
        return of_new._replace(extension=extend(z, num_classes, reach))

    def prepare(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """z_i [n, d], and which samples of a smoothed fit they are [n], -1 for none."""
        if self.roots:
            z = (z.clamp(min=0) + LEAST).sqrt()
        if self.normalize:
            z = reference.unit_length(z)
        return (z, None) if self.extension is None else self.extension.smooth(z)


def read_labels(y: Any) -> tuple[Array, NDArray[np.bool_]]:
    """Labels [N], numbers or strings, and which of them are known.

    Only the number -1 says "unlabelled". What else may have been meant to say so is refused, not taken for a
    class: NaN, None, "", the string "-1", and -100, which is padding elsewhere in tim_ext.
    """
    if y is None:
        raise ValueError("TIMClassifier requires y to be passed, but the target y is None")
    if isinstance(y, (list, tuple)):
        y = np.array(y, dtype=object)  # numpy alone would turn the -1 of ["cat", -1] into a string
    y = column_or_1d(y, warn=True)
    if y.dtype == object and not any(isinstance(label, str) for label in y):
        y = np.array(y.tolist())  # numbers in a list or in a column of mixed types
    if y.dtype.kind in "biuf":
        known = y != UNLABELLED
        wrong = (y == PADDING) | ~np.isfinite(y)
    else:
        known = np.array([isinstance(label, str) for label in y])
        allowed = _is_name_or_unlabelled if known.any() else _is_number
        wrong = np.array([not allowed(label) for label in y])
    if wrong.any():
        sample = int(wrong.argmax())
        label = y.tolist()[sample]
        hint = " (dtype=object keeps numbers among strings as they are)" if label == str(UNLABELLED) else ""
        raise ValueError(
            f"y: expected labels that are all numbers or all names, and the number {UNLABELLED} for "
            f"unlabelled samples, got {label!r} at sample {sample}{hint}"
        )
    if not known.any():
        raise ValueError(f"y: expected labelled samples, got only {UNLABELLED} (unlabelled)")
    return y, known


def _is_name_or_unlabelled(label: Any) -> bool:
    if isinstance(label, str):
        return label not in ("", str(UNLABELLED))
    return _is_number(label) and label == UNLABELLED


def _is_number(label: Any) -> bool:
    return isinstance(label, (int, float, np.number)) and bool(abs(label) < 2**63)  # not NaN
