"""Steps of TIM-ADM that a task chooses itself: relaxation="auto". csrc/common/equations.h has the same."""

from __future__ import annotations

from .params import DECIDED_AFTER

FIRST_STEPS, GUARDED_STEPS = 6, 10  # iterations
LEAST_STEP, LARGEST_STEP = 0.2, 5.0


class StepControl:
    """f of W(t+1) = W(t) + f R(t),  R(t) = F(W(t)) - W(t), F an iteration of the paper.

    f is 1.5 (0.5 with more than 1,000 samples) in the first iterations, then the shorter step of Barzilai and
    Borwein from the last two residuals,

        f(t) = f(t-1) <R(t-1), Y> / <Y, Y>,   Y = R(t-1) - R(t),   within 0.2 .. 5.

    The last ten iterations are guarded: a point whose <R, R> is above that of the point it came from is
    refused, and half of that step is taken instead. The very last iteration only looks: it refuses the point,
    or leaves it as it is. So <R, R> of what is returned is known, and not above that of the points before.
    """

    def __init__(self, planned: int, samples: int, decides_marginal: bool) -> None:
        self.planned, self.decides_marginal = planned, decides_marginal
        self.first = 1.5 if samples <= 1000 else 0.5  # large pools burst otherwise
        self.next = 0  # t
        self.factor = self.residual = 0.0  # f and <R, R> of the point before

    def move(self, own: float, mixed: float) -> tuple[float, bool]:
        """From <R(t), R(t)> and <R(t-1), R(t)>: how far to move, and whether along R(t-1), back from W(t)."""
        t, self.next = self.next, self.next + 1
        last = t + 1 == self.planned
        changed = self.decides_marginal and t == DECIDED_AFTER  # F is another one: nothing to compare with
        if t > 0 and t + GUARDED_STEPS >= self.planned and not changed and own > self.residual:
            before, self.factor = self.factor, 0.0 if last else self.factor / 2
            return self.factor - before, True
        if last:
            self.factor = 0.0
        elif t < FIRST_STEPS:
            self.factor = self.first
        else:
            self.factor = min(self.factor, 1.0) if changed else self._secant(own, mixed)
        self.residual = own
        return self.factor, False

    def _secant(self, own: float, mixed: float) -> float:
        along, square = self.residual - mixed, self.residual - 2 * mixed + own
        step = self.factor * along / square if along > 0 else LARGEST_STEP
        return min(max(step, LEAST_STEP), LARGEST_STEP)
