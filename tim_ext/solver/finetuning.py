"""Fine-tuning of an encoder together with the classifier, task by task: the {phi, W} variant of TIM.

    L(phi, W) = lam CE - m M + alpha H   at the features z_i = encoder(image_i), by Adam on phi and W

All queries meet in phat, so a mini-batch has no loss of its own. The gradient of the whole task still needs
the graph of only one mini-batch at a time:

    z_b = encoder(x_b)           for every mini-batch b, without graph
    G = dL/dz, dL/dW             of all features together
    z_b = encoder(x_b) again     for every mini-batch b, with graph and the same dropout:
                                 dL/dphi = sum_b G_b dz_b/dphi
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from .. import reference
from .batch import Batch, make_image_batch, make_result, refuse
from .inputs import PADDING, QUERY
from .params import FINETUNE, OUTPUTS, GdParams, check_count, check_outputs
from .refusals import find_label_problem, in_task
from .result import Result


def finetune(
    encoder: nn.Module,
    images: Any,
    labels: Any,
    *,
    num_classes: int | None = None,
    normalize: bool = True,
    lam: float = FINETUNE.lam,
    alpha: float = FINETUNE.alpha,
    temperature: float = FINETUNE.temperature,
    marginal_weight: float = FINETUNE.marginal_weight,
    entropy_order: float = FINETUNE.entropy_order,
    class_prior: Any = None,
    iterations: int = FINETUNE.iterations,
    lr: float = FINETUNE.lr,
    betas: tuple[float, float] = FINETUNE.betas,
    eps: float = FINETUNE.eps,
    batch_size: int | None = None,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """Labels the query images of few-shot tasks by Adam on the loss of TIM, over the encoder and W together.

    Every task starts from the encoder as it is given, and the encoder is given back as it was: parameters and
    buffers bit for bit, training and requires_grad flags, gradients; also after an exception or Ctrl-C.

    Args:
        encoder: any module from images [B, ...] to features [B, d]. Parameters that require no gradient stay
            fixed. It runs in training mode, in which batch-norm takes the statistics of the mini-batch; for
            the result, only batch-norm does, and dropout is off.
        images: one task [N, ...] or a batch [T, N, ...], of any type the encoder takes. Mini-batches move to
            the encoder's device, so the images may stay in the memory of the CPU.
        labels: integers [N] or [T, N]: the class (>= 0) of a support image, -1 for a query, -100 for padding,
            which the encoder never sees.
        num_classes: K; by default the largest label + 1.
        normalize: scale features to unit length.
        lam, alpha, temperature, marginal_weight, entropy_order, class_prior: of the loss, as in `gd`.
            `lam=1, alpha=1, marginal_weight=0` is the entropy minimisation of Dhillon et al. (2020).
        iterations, lr, betas, eps: of Adam, which starts from the prototypes; 0 iterations give those.
        batch_size: the most images that the encoder gets at once, which bounds the memory; a step then runs
            the encoder twice. By default the whole task. Images are drawn into mini-batches of nearly equal
            size in a fixed random order, so that each looks like the task to batch-norm.
        outputs: which of "probs", "predictions", "weights" to return.

    Returns:
        Result, with the history; its first and last entries are without dropout. A task's result does not
        depend on the other tasks of the batch: dropout draws the same random numbers for each.

    Example:
        >>> import torch, tim_ext
        >>> images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> encoder = torch.nn.Linear(2, 8)
        >>> tim_ext.finetune(encoder, images, [0, 1, -1, -1, -1]).predictions
        tensor([0, 1, 0, 1, 0])
    """
    params = FINETUNE.given({"tol": FINETUNE.tol, **locals()})
    outputs = check_outputs(outputs)
    if batch_size is not None:
        batch_size = check_count("batch_size", batch_size, at_least=1)
    device = _check_encoder(encoder)
    batch = make_image_batch(images, labels, num_classes, class_prior)
    _check_labels(batch)
    tasks = list(batch.tasks())

    probs, predictions, weights, ran, terms, proportions = [], [], [], [], [], []
    start = _random_state(device)
    with torch.inference_mode(False), torch.enable_grad(), _given_back(encoder) as restore:
        for t, ((rows, task_labels, count), prior) in enumerate(zip(tasks, batch.priors(), strict=True)):
            used = _shuffled((task_labels != PADDING).nonzero()[:, 0])  # [N]
            pieces = _split(rows[used], batch_size)
            used = used.to(device)
            task = _Task(encoder, device, batch.features, pieces, used, in_task(t, len(tasks)))
            _set_random_state(device, start)
            shuffled = task_labels.to(device)[used]
            p, w, done, task_terms, _ = task.solve(shuffled, count, prior, normalize, params)
            restore()
            proportions.append(reference.phat(p, shuffled == QUERY))
            size = len(task_labels)
            probs.append(p.new_zeros(size, count).index_put_((used,), p).flatten())
            predictions.append(used.new_full((size,), PADDING).index_put_((used,), p.argmax(dim=1)))
            weights.append(w)
            ran.append(done)
            terms.append(task_terms)
    return make_result(
        batch,
        params,
        outputs,
        probs=torch.cat(probs),
        predictions=torch.cat(predictions),
        weights=torch.cat(weights),
        iterations=torch.tensor(ran, device=device),
        history=torch.stack(terms),
        proportions=torch.cat(proportions),
        marginal_weights=torch.full((len(ran),), params.marginal_weight).to(weights[0]),
    )


class _Task(NamedTuple):
    """The encoder on the images of one task, in mini-batches."""

    encoder: nn.Module
    device: torch.device
    images: Tensor  # [M, ...]
    pieces: Sequence[Tensor]  # rows of each mini-batch
    positions: Tensor  # [N] of the images in the task, in the order of the pieces; as all that follows
    here: str

    def solve(
        self, labels: Tensor, count: int, prior: Tensor | None, normalize: bool, params: GdParams
    ) -> reference.Solution:
        support, query = labels >= 0, labels == QUERY
        planned = params.iterations if query.any() else 0
        full_precision = torch.autocast(self.device.type, enabled=False)  # autocast is for the encoder

        def prepared(z: Tensor, iteration: int) -> Tensor:
            self._check_finite(z, f" after {iteration} iterations with lr={params.lr}" if iteration else "")
            z = z if z.dtype == torch.float64 else z.float()
            return reference.unit_length(z) if normalize else z

        def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
            """log p [N, K] and the loss terms [3] at W and the features z."""
            with full_precision:
                log_p = reference.log_distance_softmax(z, w, params.temperature)
                return log_p, reference.loss_terms(log_p, y, support, query, prior, params.entropy_order)

        def step_loss(iteration: int, z: Tensor) -> Tensor:
            _, now = evaluate(prepared(z, iteration))
            if iteration > 0:
                terms[iteration] = now.detach()
            return reference.loss(now, params)

        _predict_mode(self.encoder)
        z = prepared(self.features(), 0)
        y = reference.one_hot_rows(labels, count).to(z)
        prior = None if prior is None else prior.to(z)
        with full_precision:
            w = reference.prototypes(z, y).requires_grad_()
        terms = z.new_full((params.iterations + 1, 3), torch.nan)
        log_p, now = evaluate(z)
        terms[0] = now.detach()
        if planned == 0:
            return log_p.detach().exp(), w.detach(), 0, terms, params.marginal_weight

        trainable = [parameter for parameter in self.encoder.parameters() if parameter.requires_grad]
        adam = torch.optim.Adam([*trainable, w], lr=params.lr, betas=params.betas, eps=params.eps)
        self.encoder.train()
        for t in range(planned):
            adam.zero_grad()  # to None: a gradient of the caller's is not written to
            self.backward(partial(step_loss, t))
            adam.step()

        _predict_mode(self.encoder)
        log_p, now = evaluate(prepared(self.features(), planned))
        terms[planned] = now.detach()
        return log_p.detach().exp(), w.detach(), planned, terms, params.marginal_weight

    def forward(self, piece: Tensor) -> Tensor:
        """[B, d]"""
        z = self.encoder(self.images[piece].to(self.device))
        if not isinstance(z, Tensor) or z.dim() != 2 or len(z) != len(piece) or not z.is_floating_point():
            got = f"{z.dtype} {list(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"encoder: expected features [{len(piece)}, d] of a floating type, got {got}")
        if torch.is_grad_enabled() and not z.requires_grad:
            raise ValueError("encoder: expected features with a gradient, got features detached from it")
        return z

    @torch.no_grad()
    def features(self) -> Tensor:
        """[N, d]"""
        return torch.cat([self.forward(piece) for piece in self.pieces])

    def backward(self, loss: Callable[[Tensor], Tensor]) -> None:
        """The gradient of loss(features) into .grad of everything it depends on."""
        if len(self.pieces) == 1:
            torch.autograd.backward(loss(self.forward(self.pieces[0])))
            return
        parts, states = [], []
        for piece in self.pieces:
            states.append(_random_state(self.device))
            with torch.no_grad():
                parts.append(self.forward(piece))
        z = torch.cat(parts).requires_grad_()
        torch.autograd.backward(loss(z))
        assert z.grad is not None
        gradients = torch.split(z.grad, [len(piece) for piece in self.pieces])
        for piece, state, gradient in zip(self.pieces, states, gradients, strict=True):
            _set_random_state(self.device, state)
            torch.autograd.backward(self.forward(piece), gradient)

    def _check_finite(self, z: Tensor, when: str) -> None:
        wrong = ~z.detach().isfinite().all(dim=1)
        if wrong.any():
            sample = f"sample {int(self.positions[wrong].min())}{self.here}"
            raise ValueError(f"encoder: expected finite features, got NaN or Inf at {sample}{when}")


def _check_labels(batch: Batch) -> None:
    for t, (rows, labels, count) in enumerate(batch.tasks()):
        code, position, value = find_label_problem(len(batch.features), rows, labels, count)
        if code:
            refuse(batch, t, code, position, value)


def _shuffled(positions: Tensor) -> Tensor:
    """In a random order that depends on their number alone."""
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(0), device="cpu")
    return positions[order.to(positions.device)]


def _split(rows: Tensor, batch_size: int | None) -> Sequence[Tensor]:
    """The fewest mini-batches of at most batch_size, of sizes that differ by 1 at most."""
    return torch.tensor_split(rows, 1 if batch_size is None else math.ceil(len(rows) / batch_size))


def _predict_mode(encoder: nn.Module) -> None:
    """Evaluation mode, but for the batch-norm that is in training mode when the encoder is."""
    encoder.train()
    norms = [module for module in encoder.modules() if module.training and _is_batch_norm(module)]
    encoder.eval()
    for norm in norms:
        norm.training = True


def _is_batch_norm(module: nn.Module) -> bool:
    # TorchScript keeps only the name of the class
    return isinstance(module, _BatchNorm) or "BatchNorm" in getattr(module, "original_name", "")


# The encoder as it was ----------------------------------------------------------------------------


def _check_encoder(encoder: Any) -> torch.device:
    """Its device: that of its first parameter to train."""
    if not isinstance(encoder, nn.Module):
        raise TypeError(f"encoder: expected a torch.nn.Module, got {type(encoder).__name__}")
    if any(map(is_lazy, encoder.parameters())):
        raise ValueError("encoder: expected parameters with data, got a lazy module that never ran")
    for parameter in encoder.parameters():
        if parameter.requires_grad:
            return parameter.device
    raise ValueError(
        "encoder: expected a parameter that requires a gradient, got none; tim_ext.gd trains W alone"
    )


@contextmanager
def _given_back(encoder: nn.Module) -> Iterator[Callable[[], None]]:
    """Whatever happens to the module in this block is undone at its end, and by calling what it yields."""
    modules = list(encoder.modules())
    training = [module.training for module in modules]
    owners: list[Any] = [owner for module in modules for owner in (module._parameters, module._buffers)]
    owned = [(owner, dict(owner)) for owner in owners if isinstance(owner, dict)]  # no dict in TorchScript
    parameters = [(p, p.requires_grad, p.grad) for p in encoder.parameters()]
    tensors = [tensor for tensor in (*encoder.parameters(), *encoder.buffers()) if not _is_expanded(tensor)]
    values = [tensor.detach().clone() for tensor in tensors]

    @torch.no_grad()
    def restore() -> None:
        for module, flag in zip(modules, training, strict=True):
            module.training = flag
        for owner, before in owned:  # tensors that were replaced, not changed in place
            owner.clear()
            owner.update(before)
        for parameter, requires_grad, gradient in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)

    try:
        yield restore
    finally:
        _without_interruption(restore)


def _is_expanded(tensor: Tensor) -> bool:
    """Elements share memory: nothing can write to it, not even its own value."""
    strided = tensor.layout == torch.strided
    return strided and any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))


def _without_interruption(action: Callable[[], None]) -> None:
    """Runs an action that may be run again to its end; a Ctrl-C in between is raised after it."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            action()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    cpu, cuda = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)
