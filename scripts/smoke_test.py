"""Solves one small task with the installed tim_ext and compares it with the reference."""

import torch

import tim_ext

generator = torch.Generator().manual_seed(0)
centres = torch.randn(5, 64, generator=generator, dtype=torch.float64)
classes = torch.arange(5).repeat(20)  # 5 classes, 20 samples each
features = centres[classes] + 0.7 * torch.randn(100, 64, generator=generator, dtype=torch.float64)
labels = classes.clone()
labels[25:] = -1  # 5 support samples per class, 75 queries

truth = tim_ext.reference.adm(features, labels)
for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
    for form in ("dual", "primal"):
        result = tim_ext.adm(features.to(dtype), labels, form=form)
        error = float((result.probs.double() - truth.probs).abs().max())
        assert error <= tolerance, f"{dtype} {form}: probabilities differ by {error:.1e}"
        assert torch.equal(result.predictions, truth.predictions), f"{dtype} {form}: predictions differ"
print(
    f"smoke test passed: tim_ext {tim_ext.__version__} in torch {torch.__version__}, "
    f"{torch.ops.tim_ext.cpu_capability()}, {tim_ext.__file__}"
)
