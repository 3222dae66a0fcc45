"""Coefficients of vexp<float> in csrc/cpu/core/vec.h: exp(r) = 1 + r + r^2 g(r) on |r| <= ln(2)/2.

g has degree 4. Iteratively reweighted least squares drives the largest relative error of exp down to
(nearly) its minimax value; the script prints the coefficients and that error.
"""

import numpy as np

r = np.cos((np.arange(4000) + 0.5) / 4000 * np.pi) * 0.34658  # slightly more than ln(2)/2
g = np.where(np.abs(r) < 1e-3, 0.5 + r / 6 + r**2 / 24, (np.expm1(r) - r) / r**2)
to_relative = r**2 / np.exp(r)
powers = np.vander(r, 5, increasing=True)
weight = np.ones_like(r)
for _ in range(300):
    w = to_relative * np.sqrt(weight)
    coefficients, *_ = np.linalg.lstsq(powers * w[:, None], g * w, rcond=None)
    error = np.abs((powers @ coefficients - g) * to_relative)
    weight *= np.sqrt(error / error.max() + 1e-3)
    weight /= weight.max()
print("C2..C6:", ", ".join(f"{c:.9g}" for c in coefficients))
print(f"largest relative error: {error.max():.2g}")
