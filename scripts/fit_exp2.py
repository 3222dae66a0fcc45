"""Coefficients of vexp2<float> in csrc/cpu/kernels/vectors-inl.h: 2^f = 1 + f g(f) on |f| <= 1/2.

g has degree 5. Iteratively reweighted least squares drives the largest relative error of 2^f down to
(nearly) its minimax value; the script prints the coefficients and that error.
"""

import numpy as np

f = np.cos((np.arange(4000) + 0.5) / 4000 * np.pi) * 0.5001
g = np.expm1(f * np.log(2)) / f
to_relative = np.abs(f) / np.exp2(f)
powers = np.vander(f, 6, increasing=True)
weight = np.ones_like(f)
for _ in range(300):
    w = to_relative * np.sqrt(weight)
    coefficients, *_ = np.linalg.lstsq(powers * w[:, None], g * w, rcond=None)
    error = np.abs((powers @ coefficients - g) * to_relative)
    weight *= np.sqrt(error / error.max() + 1e-3)
    weight /= weight.max()
print("C1..C6:", ", ".join(f"{c:.9g}" for c in coefficients))
print(f"largest relative error: {error.max():.2g}")
