"""Bad input, and the sentence that refuses it."""
# ruff: noqa: E501

from __future__ import annotations

import torch

X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]])  # one task
Y = torch.tensor([0, 1, -1, -1])
X3, Y2 = X.expand(3, 4, 2), Y.expand(3, 4)  # three of them
FLOATS = "expected float32, float64, float16, bfloat16"
NAN = torch.nan


def put(tensor: torch.Tensor, place: tuple[int, ...] | int, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


REFUSALS = [
    # shapes
    ((X[0], Y), {}, ValueError, "features: expected shape [N, d], [T, N, d] or a list of [N, d], none of them 0, got [2]"),
    ((X3[None], Y2[None]), {}, ValueError, "features: expected shape [N, d], [T, N, d] or a list of [N, d], none of them 0, got [1, 3, 4, 2]"),
    ((X[:0], Y[:0]), {}, ValueError, "got [0, 2]"),
    ((X[:, :0], Y), {}, ValueError, "got [4, 0]"),
    ((X3[:0], Y2[:0]), {}, ValueError, "got [0, 4, 2]"),
    ((X, Y[:3]), {}, ValueError, "labels: expected shape [4] to match features, got [3]"),
    ((X, Y2), {}, ValueError, "labels: expected shape [4] to match features, got [3, 4]"),
    ((X3, Y), {}, ValueError, "labels: expected shape [3, 4] to match features, got [4]"),
    ((X3, Y2.T), {}, ValueError, "labels: expected shape [3, 4] to match features, got [4, 3]"),
    # types
    ((X.long(), Y), {}, TypeError, f"features: {FLOATS}, got int64 (convert with .float())"),
    ((X.bool(), Y), {}, TypeError, f"features: {FLOATS}, got bool"),
    ((X.to(torch.complex64), Y), {}, TypeError, f"features: {FLOATS}, got complex64"),
    ((X.to(torch.float8_e4m3fn), Y), {}, TypeError, f"features: {FLOATS}, got float8_e4m3fn"),
    ((X.to_sparse(), Y), {}, TypeError, "features: expected a dense tensor, got torch.sparse_coo"),
    (("text", Y), {}, TypeError, "features: expected a tensor or array, got str"),
    ((None, Y), {}, TypeError, "features: expected a tensor or array, got NoneType"),
    ((X, Y.float()), {}, TypeError, "labels: expected integers (int64 to int8, or uint8), got float32"),
    ((X, Y.bool()), {}, TypeError, "labels: expected integers (int64 to int8, or uint8), got bool"),
    ((X, [0, 1, -1, None]), {}, TypeError, "labels: expected a tensor or array, got list"),
    # devices: meta stands for any other device
    ((X, Y.to("meta")), {}, ValueError, "labels: expected device cpu as features, got meta"),
    ((X, Y), {"index": Y.to("meta")}, ValueError, "index: expected device cpu as features, got meta"),
    ((X.to("meta"), Y), {}, ValueError, "features: expected a tensor with data, got one on device meta"),
    # lists
    (([], []), {}, ValueError, "features: expected at least one task, got an empty list"),
    (([X, X[0]], [Y, Y]), {}, ValueError, "features[1]: expected shape [N, d], neither of them 0, as features is a list, got [2]"),
    (([X, X[:0]], [Y, Y[:0]]), {}, ValueError, "features[1]: expected shape [N, d], neither of them 0, as features is a list, got [0, 2]"),
    (([X, X[:, :1]], [Y, Y]), {}, ValueError, "features[1]: expected shape [N, 2] as in features[0], got [4, 1]"),
    (([X, X.double()], [Y, Y]), {}, TypeError, "features[1]: expected float32 as in features[0], got float64"),
    (([X, X.long()], [Y, Y]), {}, TypeError, f"features[1]: {FLOATS}, got int64"),
    (([X, X], [Y]), {}, ValueError, "labels: expected 2 tasks to match features, got 1"),
    (([X, X], Y2[:2]), {}, TypeError, "labels: expected a list of vectors, as features is a list, got Tensor"),
    (([X, X], [Y, Y[:3]]), {}, ValueError, "labels[1]: expected shape [4] to match features[1], got [3]"),
    (([X, X], [Y, Y.float()]), {}, TypeError, "labels[1]: expected integers (int64 to int8, or uint8), got float32"),
    (([X, X], [Y, Y.to("meta")]), {}, ValueError, "labels[1]: expected device cpu as features, got meta"),
    # a pool and an index
    ((X3, Y), {"index": Y}, ValueError, "features: expected shape [M, d] with index=, neither of them 0, got [3, 4, 2]"),
    (([X], [Y]), {"index": [Y]}, TypeError, "features: expected a pool [M, d] with index=, got a list"),
    ((X, Y), {"index": Y.float()}, TypeError, "index: expected integers (int64 to int8, or uint8), got float32"),
    ((X, Y), {"index": Y2[None]}, ValueError, "index: expected shape [N], [T, N] or a list of [N], none of them 0, got [1, 3, 4]"),
    ((X, Y[:0]), {"index": Y[:0]}, ValueError, "none of them 0, got [0]"),
    ((X, []), {"index": []}, ValueError, "index: expected at least one task, got an empty list"),
    ((X, Y), {"index": Y2}, ValueError, "labels: expected shape [3, 4] to match index, got [4]"),
    ((X, [Y]), {"index": [Y, Y]}, ValueError, "labels: expected 2 tasks to match index, got 1"),
    ((X, [Y]), {"index": [Y[:3]]}, ValueError, "labels[0]: expected shape [3] to match index[0], got [4]"),
    ((X, [Y]), {"index": [Y2]}, ValueError, "index[0]: expected shape [N], not 0, as index is a list, got [3, 4]"),
    ((X, Y), {"index": [0, 1, 2, 4]}, ValueError, "index: expected rows 0 to 3 of features, got 4 at sample 3"),
    ((X, Y), {"index": [0, -1, 2, 3]}, ValueError, "index: expected rows 0 to 3 of features, got -1 at sample 1"),
    ((X, Y2), {"index": put(Y2 * 0, (2, 1), 9)}, ValueError, "got 9 at sample 1 in task 2"),
    # values of features
    ((put(X, (2, 1), NAN), Y), {}, ValueError, "features: expected finite values, got NaN or Inf at sample 2"),
    ((put(X, (0, 0), torch.inf), Y), {}, ValueError, "features: expected finite values, got NaN or Inf at sample 0"),
    ((put(X, (3, 0), -torch.inf).half(), Y), {}, ValueError, "got NaN or Inf at sample 3"),
    ((put(X.double(), (3, 1), NAN), Y), {"normalize": False}, ValueError, "got NaN or Inf at sample 3"),
    ((put(X3, (1, 3, 0), NAN), Y2), {}, ValueError, "got NaN or Inf at sample 3 in task 1"),
    (([X, put(X, (2, 1), NAN)], [Y, Y]), {}, ValueError, "got NaN or Inf at sample 2 in task 1"),
    ((put(X, (3, 1), NAN), Y[None]), {"index": [[0, 3, 2, 1]]}, TypeError, "labels: expected a list of vectors"),
    ((put(X, (3, 1), NAN), Y), {"index": [0, 3, 2, 1]}, ValueError, "got NaN or Inf at sample 1"),
    # values of labels
    ((X, put(Y, 2, -2)), {}, ValueError, "labels: expected a class 0 to 1, -1 for a query or -100 for padding, got -2 at sample 2"),
    ((X, put(Y, 3, -99)), {}, ValueError, "got -99 at sample 3"),
    ((X, put(Y, 1, 2)), {"num_classes": 2}, ValueError, "labels: expected a class 0 to 1, -1 for a query or -100 for padding, got 2 at sample 1"),
    ((X3, put(Y2, (2, 3), -7)), {}, ValueError, "got -7 at sample 3 in task 2"),
    ((X, put(Y, 1, 2)), {}, ValueError, "labels: expected support of each class 0 to 2, got none of class 1"),
    ((X, Y), {"num_classes": 3}, ValueError, "labels: expected support of each class 0 to 2, got none of class 2"),
    (([X, X], [Y, put(Y, 0, 1)]), {}, ValueError, "labels: expected support of each class 0 to 1, got none of class 0 in task 1"),
    ((X, Y * 0 - 1), {}, ValueError, "labels: expected support samples (labels >= 0), got none"),
    ((X, Y * 0 - 100), {}, ValueError, "labels: expected support samples (labels >= 0), got none"),
    ((X3, put(Y2, 1, -1)), {}, ValueError, "labels: expected support samples (labels >= 0), got none in task 1"),
    ((X, put(Y, 1, 10**15)), {}, ValueError, f"labels: expected support of each class 0 to {10**15}, got only 4 samples (label {10**15})"),
    ((X, put(Y, 1, 2**63 - 1)), {}, ValueError, f"got only 4 samples (label {2**63 - 1})"),
    ((X, Y), {"num_classes": 5}, ValueError, "labels: expected support of each class 0 to 4, got only 4 samples (num_classes=5)"),
    (([X, X[:2]], [Y, Y[:2] + 1]), {}, ValueError, "got only 2 samples in task 1 (label 2)"),
    # class_prior
    ((X, Y), {"class_prior": [0.5, 0.4, 0.1]}, ValueError, "class_prior: expected shape [2], one proportion for each class, got [3]"),
    ((X, Y), {"class_prior": 1.0}, ValueError, "class_prior: expected shape [2], one proportion for each class, got []"),
    ((X, Y), {"class_prior": [[0.5, 0.5]]}, ValueError, "class_prior: expected one vector [K], got a list of 1"),
    ((X, Y), {"class_prior": torch.full((3, 2), 0.5)}, ValueError, "class_prior: expected one vector [K], got a list of 3"),
    ((X3, Y2), {"class_prior": torch.full((2, 2), 0.5)}, ValueError, "class_prior: expected one vector [K] or 3, one for each task, got a list of 2"),
    ((X3, Y2), {"class_prior": [[0.5, 0.5]] * 4}, ValueError, "class_prior: expected one vector [K] or 3, one for each task, got a list of 4"),
    ((X3, Y2), {"class_prior": torch.full((3, 3), 1 / 3)}, ValueError, "class_prior[0]: expected shape [2], one proportion for each class, got [3]"),
    ((X3, Y2), {"class_prior": torch.full((3, 2, 1), 0.5)}, ValueError, "class_prior: expected shape [2], one proportion for each class, got [3, 2, 1]"),
    (([X, X], [Y, put(Y, 2, 2)]), {"class_prior": [0.5, 0.5]}, ValueError, "class_prior: expected a list of vectors, as task 0 has 2 classes and task 1 has 3, got one vector"),
    (([X, X], [Y, put(Y, 2, 2)]), {"class_prior": [[0.5, 0.5], [0.5, 0.5]]}, ValueError, "class_prior[1]: expected shape [3], one proportion for each class, got [2]"),
    ((X, Y), {"class_prior": [0.0, 1.0]}, ValueError, "class_prior: expected numbers > 0, got 0.0 for class 0"),
    ((X, Y), {"class_prior": [1.2, -0.2]}, ValueError, "class_prior: expected numbers > 0, got -0.2 for class 1"),
    ((X, Y), {"class_prior": [0.5, NAN]}, ValueError, "class_prior: expected numbers > 0, got nan for class 1"),
    ((X, Y), {"class_prior": [0.5, torch.inf]}, ValueError, "class_prior: expected numbers > 0, got inf for class 1"),
    ((X, Y), {"class_prior": [0.5, 0.6]}, ValueError, "class_prior: expected proportions of sum 1, got a sum of 1.1"),
    ((X, Y), {"class_prior": [3, 1]}, ValueError, "class_prior: expected proportions of sum 1, got a sum of 4"),
    ((X3, Y2), {"class_prior": [[0.5, 0.5], [0.5, 0.5], [0.5, 0.4]]}, ValueError, "class_prior[2]: expected proportions of sum 1, got a sum of 0.9"),
    ((X, Y), {"class_prior": "even"}, TypeError, "class_prior: expected a tensor or array, got str"),
    ((X, Y), {"class_prior": torch.tensor([True, True])}, TypeError, "class_prior: expected numbers, got bool"),
    ((X, Y), {"class_prior": torch.full((2,), 0.5, device="meta")}, ValueError, "class_prior: expected a tensor with data, got one on device meta"),
    # weights
    ((X, Y), {"weights": X}, ValueError, "weights: expected shape [2, 2], a row for each class, got [4, 2]"),
    ((X, Y), {"weights": X[0]}, ValueError, "weights: expected shape [2, 2], a row for each class, got [2]"),
    ((X, Y), {"weights": X[:2, :1]}, ValueError, "weights: expected shape [2, 2], a row for each class, got [2, 1]"),
    ((X, Y), {"weights": X[None, :2]}, ValueError, "weights: expected one matrix [K, d], got 1 of them"),
    ((X, Y), {"weights": [[1.0, 0.0], [0.0, 1.0]]}, ValueError, "weights: expected one matrix [K, d], got 2 of them"),
    ((X3, Y2), {"weights": X3[:2, :2]}, ValueError, "weights: expected one matrix [K, d] or 3, one for each task, got 2 of them"),
    ((X3, Y2), {"weights": X3}, ValueError, "weights[0]: expected shape [2, 2], a row for each class, got [4, 2]"),
    (([X, X], [Y, put(Y, 2, 2)]), {"weights": X[:2]}, ValueError, "weights: expected a list of matrices, as task 0 has 2 classes and task 1 has 3, got one matrix"),
    (([X, X], [Y, put(Y, 2, 2)]), {"weights": [X[:2], X[:2]]}, ValueError, "weights[1]: expected shape [3, 2], a row for each class, got [2, 2]"),
    ((X, Y), {"weights": Y}, TypeError, f"weights: {FLOATS}, got int64 (convert with .float())"),
    ((X, Y), {"weights": "prototypes"}, TypeError, "weights: expected a tensor or array, got str"),
    ((X, Y), {"weights": X[:2].to("meta")}, ValueError, "weights: expected a tensor with data, got one on device meta"),
    ((X, Y), {"weights": put(X[:2], (1, 0), NAN)}, ValueError, "weights: expected finite values, got NaN or Inf for class 1"),
    ((X, Y), {"weights": X[:2].double() * 1e300}, ValueError, "weights: expected finite values, got NaN or Inf for class 0"),
    ((X3, Y2), {"weights": put(X3[:, :2].double(), (2, 0, 1), -torch.inf)}, ValueError, "weights: expected finite values, got NaN or Inf for class 0 in task 2"),
    ((put(X, (3, 1), NAN), Y), {"weights": X[:2] * NAN}, ValueError, "features: expected finite values, got NaN or Inf at sample 3"),
    # hyper-parameters
    ((X, Y), {"lam": -0.1}, ValueError, "lam: expected a finite number >= 0, got -0.1"),
    ((X, Y), {"alpha": -1}, ValueError, "alpha: expected a finite number >= 0, got -1"),
    ((X, Y), {"temperature": 0.0}, ValueError, "temperature: expected a finite number > 0, got 0.0"),
    ((X, Y), {"temperature": torch.inf}, ValueError, "temperature: expected a finite number > 0, got inf"),
    ((X, Y), {"marginal_weight": -1.0}, ValueError, "marginal_weight: expected a finite number >= 0, got -1.0"),
    ((X, Y), {"tol": -1e-3}, ValueError, "tol: expected a finite number >= 0, got -0.001"),
    ((X, Y), {"lam": "0.1"}, TypeError, "lam: expected a finite number, got str '0.1'"),
    ((X, Y), {"lam": None}, TypeError, "lam: expected a finite number, got NoneType None"),
    ((X, Y), {"lam": True}, TypeError, "lam: expected a finite number, got bool True"),
    ((X, Y), {"iterations": -1}, ValueError, "iterations: expected an integer >= 0, got -1"),
    ((X, Y), {"iterations": 1.5}, TypeError, "iterations: expected an integer, got float 1.5"),
    ((X, Y), {"iterations": True}, TypeError, "iterations: expected an integer, got bool True"),
    ((X, Y), {"num_classes": 0}, ValueError, "num_classes: expected an integer >= 1, got 0"),
    ((X, Y), {"num_classes": 2.0}, TypeError, "num_classes: expected an integer, got float 2.0"),
    ((X, Y), {"outputs": ("probs", "logits")}, ValueError, "outputs: expected a tuple of names out of 'probs', 'predictions', 'weights', got 'logits'"),
    ((X, Y), {"outputs": "probs"}, TypeError, "got str 'probs'"),
    ((X, Y), {"outputs": None}, TypeError, "got NoneType None"),
]  # fmt: skip
