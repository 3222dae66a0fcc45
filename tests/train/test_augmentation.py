"""Random numbers by counters, and what is done to images, against torch, Pillow and brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.paths import ROOT
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from python_train import counters
from python_train.augmentation import UNIFORMS, Augmentation, jitter_colors, random_crop
from python_train.datasets import Dataset
from python_train.errors import UserError
from python_train.loading import Batch, Images
from tim_ext.images.preprocessing import NORMALIZATION, Preprocessing, center_crop, gray, normalize, to_tensor

assert ROOT

# Random numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0, 0, 0], (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    """The known answers of the Random123 library."""
    words = counters.philox(tuple(np.array([word], dtype=np.uint64) for word in counter), key)
    assert " ".join(f"{int(word[0]):08x}" for word in words) == expected


def test_uniforms_are_uniform_and_independent():
    numbers = counters.uniforms(0, 1, 2, np.arange(20_000), 6)
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert np.abs(numbers.mean(axis=0) - 0.5).max() < 0.01  # 5 sigma
    assert np.abs(numbers.var(axis=0) - 1 / 12).max() < 0.003
    assert np.abs(np.corrcoef(numbers.T) - np.eye(6)).max() < 0.035
    ordered = np.sort(numbers[:, 0])  # Kolmogorov-Smirnov
    assert np.abs(ordered - (np.arange(20_000) + 0.5) / 20_000).max() < 0.014


def test_numbers_depend_on_every_counter_and_on_nothing_else():
    index = np.array([5, 17, 3])
    numbers = counters.uniforms(7, 1, 2, index, 9)
    assert numbers.shape == (3, 9)
    assert np.array_equal(counters.uniforms(7, 1, 2, index[1:2], 9), numbers[1:2])
    assert np.array_equal(counters.uniforms(7, 1, 2, index, 4), numbers[:, :4])
    for other in ((8, 1, 2), (7 + 2**32, 1, 2), (7, 0, 2), (7, 1, 3)):
        assert not np.isin(counters.uniforms(*other, index, 9), numbers).any()
    assert counters.number(7, 1, 2, 5) != counters.number(7, 1, 2, 6)


def test_permutations():
    orders = [counters.permutation(0, counters.ORDER, epoch, 1000) for epoch in range(50)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(1000))
    positions = np.argsort(orders, axis=1)  # [epochs, images]
    assert abs(np.corrcoef(positions[0], positions[1])[0, 1]) < 0.15
    assert np.abs(positions.mean(axis=0) - 499.5).max() < 220  # 5 sigma of 1000 / sqrt(12 * 50)
    assert len(counters.permutation(0, 0, 0, 0)) == 0


# Resizing -----------------------------------------------------------------------------------------


def resize_then_crop(images, size: int, resize: int, antialias: bool):
    height, width = images.shape[-2:]
    shape = [resize * side // min(height, width) for side in (height, width)]
    resized = interpolate(images, shape, mode="bilinear", antialias=antialias, align_corners=False)
    top, left = (round((side - size) / 2) for side in shape)
    return resized[..., top : top + size, left : left + size]


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    size=st.integers(1, 40),
    margin=st.integers(0, 9),
    antialias=st.booleans(),
)
def test_center_crop_is_resize_then_crop(height, width, size, margin, antialias):
    images = torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(height * width))
    how = Preprocessing(size, size + margin, antialias)
    expected = resize_then_crop(images, size, size + margin, antialias)
    torch.testing.assert_close(center_crop(images, how), expected, rtol=0, atol=5e-5)


def test_center_crop_is_torchvisions():
    functional = pytest.importorskip("torchvision.transforms.functional")
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (150, 231, 3), dtype=np.uint8)
    resized = functional.resize(pillow.fromarray(pixels), 92)
    expected = functional.to_tensor(functional.center_crop(resized, 84))
    got = center_crop(to_tensor(pixels[None], 3), Preprocessing(84, 92))[0]
    assert (got - expected).abs().max() < 1.1 / 255  # Pillow rounds to whole numbers twice


def test_anti_aliasing_is_what_the_option_says():
    """Stripes of one pixel: their mean with anti-aliasing, one of the stripes without."""
    stripes = (torch.arange(252) % 6 == 4).float().expand(1, 3, 252, 252)
    smooth, sharp = (center_crop(stripes, Preprocessing(42, 42, antialias)) for antialias in (True, False))
    assert (smooth[..., 2:-2] - 1 / 6).abs().max() < 0.06
    assert sharp.max() == 0


def test_the_aspect_ratio_is_kept():
    """A disc in a wide picture stays as wide as high."""
    y, x = torch.meshgrid(torch.arange(100.0), torch.arange(300.0), indexing="ij")
    disc = ((y - 49.5) ** 2 + (x - 149.5) ** 2 < 30**2).float()[None, None].expand(1, 3, -1, -1)
    small = center_crop(disc, Preprocessing(50, 50))[0, 0]
    assert abs(small.sum(dim=0).max() - 30) < 0.5  # the diameter, 60 pixels before
    assert abs(small.sum(dim=1).max() - 30) < 0.5


def test_an_image_of_the_right_size_is_left_alone():
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(center_crop(images, Preprocessing(32, 32)), images)
    nothing = Augmentation(crop_scale=1.0, aspect=1.0, jitter=0.0, flip=False)
    assert torch.equal(random_crop(images, Preprocessing(32, 32), nothing, torch.rand(2, UNIFORMS)), images)


def test_resize_below_the_size_is_refused():
    with pytest.raises(UserError, match="--resize: expected at least the image size 84, got 83"):
        Preprocessing(84, 83)


# Random changes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("antialias", [True, False])
def test_random_crop_is_crop_then_resize(antialias):
    """Each image against slicing, torch's resize and a flip."""
    images = torch.rand(40, 3, 30, 50)
    random = torch.from_numpy(counters.uniforms(0, 1, 0, np.arange(40), UNIFORMS))
    change, how = Augmentation(crop_scale=0.1), Preprocessing(20, 20, antialias)
    changed = random_crop(images, how, change, random)
    flips = 0
    for b in range(40):
        share, aspect, y, x, flip = random[b, :5].tolist()
        area = (0.1 + 0.9 * share) * 30 * 50
        ratio = (4 / 3) ** (2 * aspect - 1)
        height = min(round((area / ratio) ** 0.5), 30)
        width = min(round((area * ratio) ** 0.5), 50)
        top, left = int(y * (30 - height + 1)), int(x * (50 - width + 1))
        box = images[b : b + 1, :, top : top + height, left : left + width]
        expected = interpolate(box, (20, 20), mode="bilinear", antialias=antialias, align_corners=False)[0]
        if flip < 0.5:
            flips += 1
            expected = expected.flip(-1)
        torch.testing.assert_close(changed[b], expected, rtol=0, atol=5e-5)
    assert 5 < flips < 35


def test_colours_change_as_in_pillow():
    enhance = pytest.importorskip("PIL.ImageEnhance")
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)
    random = torch.rand(6, UNIFORMS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    got = jitter_colors(to_tensor(pixels, 3), 0.4, random)
    for b in range(6):
        image = pillow.fromarray(pixels[b])
        changes = enhance.Brightness, enhance.Contrast, enhance.Color
        for change, number in zip(changes, random[b, 5:].tolist(), strict=True):
            image = change(image).enhance(1 + 0.4 * (2 * number - 1))
        expected = to_tensor(np.array(image)[None], 3)[0]
        assert (got[b] - expected).abs().max() < 4 / 255  # it rounds after each


def test_gray_images_keep_one_channel():
    images = torch.rand(3, 1, 8, 8)
    random = torch.full((3, UNIFORMS), 0.75, dtype=torch.float64)
    bright = (images * 1.2).clamp(0, 1)
    mean = bright.mean(dim=(1, 2, 3), keepdim=True)
    expected = (mean + 1.2 * (bright - mean)).clamp(0, 1)
    torch.testing.assert_close(jitter_colors(images, 0.4, random), expected)


def test_channels():
    color = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    assert to_tensor(color, 3).shape == (2, 3, 4, 5)
    torch.testing.assert_close(to_tensor(color, 1), gray(to_tensor(color, 3)))
    flat = to_tensor(color[..., 0], 3)
    assert torch.equal(flat[:, 0], flat[:, 2])
    weights = np.array([0.299, 0.587, 0.114])
    expected = torch.from_numpy(color[0] @ weights / 255).float()
    torch.testing.assert_close(to_tensor(color, 1)[0, 0], expected)


def test_normalisation():
    mean, std = NORMALIZATION[3]
    images = torch.tensor(mean)[None, :, None, None].expand(2, 3, 4, 4)
    assert normalize(images, Preprocessing()).abs().max() == 0
    assert normalize(images + torch.tensor(std)[:, None, None], Preprocessing())[0, 1, 2, 3] == pytest.approx(
        1
    )


# Batches ------------------------------------------------------------------------------------------


def make_images(change: Augmentation | None) -> Images:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10, 12, 12, 3), dtype=np.uint8)
    return Images(
        Dataset("npz", "train", images, np.arange(10), list("abcdefghij")), Preprocessing(8, 8), change
    )


def test_a_change_depends_on_the_image_and_the_turn_alone():
    images = make_images(Augmentation())
    rows = np.array([4, 9, 1])
    batch, labels = images[Batch(rows, 3, rows)]
    assert labels.tolist() == [4, 9, 1]
    alone, _ = images[Batch(rows[1:2], 3, rows[1:2])]
    torch.testing.assert_close(alone, batch[1:2], rtol=0, atol=1e-6)
    other, _ = images[Batch(rows, 4, rows)]
    assert (other - batch).abs().amax(dim=(1, 2, 3)).min() > 0.1


def test_without_changes_images_are_cropped_and_normalised():
    images = make_images(None)
    batch, _ = images[Batch(np.array([2, 0]))]
    pixels = to_tensor(images.dataset.images[[2, 0]], 3)
    torch.testing.assert_close(batch, normalize(center_crop(pixels, images.how), images.how))


def test_files_and_arrays_give_the_same(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    arrays = make_images(Augmentation())
    paths = []
    for i, pixels in enumerate(arrays.dataset.images):
        paths.append(tmp_path / f"{i}.png")
        pillow.fromarray(pixels).save(paths[-1])
    dataset = Dataset("imagefolder", "train", paths, np.arange(10), list("abcdefghij"))
    rows = np.array([3, 3, 8])
    got = Images(dataset, arrays.how, arrays.change)[Batch(rows, 5, np.arange(3))]
    torch.testing.assert_close(got[0], arrays[Batch(rows, 5, np.arange(3))][0], rtol=0, atol=1e-5)
