"""The embedded dataset: shapes, classes, images, cache."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from helpers.glyph_sets import FEW, classes, needs_fonts, pictures, use_few_images
from hypothesis import given, settings
from hypothesis import strategies as st

from tim_ext.images import glyphs, outlines

pytest.importorskip("matplotlib")


pytestmark = needs_fonts


@pytest.fixture
def few_images(monkeypatch):
    use_few_images(monkeypatch)


# Outlines -----------------------------------------------------------------------------------------


def star(random, corners, centre):
    """The edges of a polygon around a centre: corners at ascending angles."""
    angles = np.sort(random.uniform(0, 2 * np.pi, corners))
    radius = random.uniform(1, 6, corners)
    points = centre + np.stack([radius * np.cos(angles), radius * np.sin(angles)], 1)
    return np.concatenate([points, np.roll(points, -1, 0)], 1)


def inside(edges, points):
    """Even-odd rule: how many edges a ray to the right crosses."""
    x0, y0, x1, y1 = edges.T[:, :, None]
    px, py = points.T
    with np.errstate(divide="ignore", invalid="ignore"):
        crosses = ((y0 > py) != (y1 > py)) & (px < x0 + (py - y0) / (y1 - y0) * (x1 - x0))
    return crosses.sum(0) % 2 == 1


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), corners=st.integers(3, 12), reverse=st.booleans())
def test_coverage_is_the_area_of_the_pixel_that_lies_inside(seed, corners, reverse):
    random = np.random.default_rng(seed)
    edges = star(random, corners, random.uniform(6.5, 7.5, 2))
    drawn = edges[:, [2, 3, 0, 1]] if reverse else edges
    (image,) = outlines.coverage(drawn, np.zeros(len(edges), int), 1, 14)
    x0, y0, x1, y1 = edges.T
    assert image.sum() == pytest.approx(abs((x0 * y1 - x1 * y0).sum()) / 2, abs=1e-9)
    fine = (np.arange(14 * 24) + 0.5) / 24
    points = np.stack(np.meshgrid(fine, fine), -1).reshape(-1, 2)
    sampled = inside(edges, points).reshape(14, 24, 14, 24).mean((1, 3))
    assert np.abs(image - sampled).max() < 0.08


def test_pictures_do_not_mix():
    random = np.random.default_rng(0)
    parts = [star(random, 7, np.array([7.0, 7.0])) for _ in range(3)]
    alone = [outlines.coverage(part, np.zeros(7, int), 1, 14)[0] for part in parts]
    together = outlines.coverage(np.concatenate(parts), np.repeat(np.arange(3), 7), 3, 14)
    np.testing.assert_array_equal(together, alone)


def test_letters_are_drawn_in_the_middle_with_their_holes():
    found = outlines.read_outlines(lambda character: character in "OIL")
    assert len(found) == 3 * len(outlines.FACES)
    images = outlines.draw(found, 40, 32)
    for letter, image in zip(map(chr, found.char), images, strict=True):
        rows, columns = (np.flatnonzero((image > 127).any(axis)) for axis in (1, 0))
        assert max(np.ptp(rows), np.ptp(columns)) + 1 == pytest.approx(32, abs=1)
        assert rows[0] + rows[-1] == pytest.approx(39, abs=1)
        assert columns[0] + columns[-1] == pytest.approx(39, abs=1)
        assert letter != "O" or image[19:21, 19:21].max() == 0  # its hole
    stretched = outlines.draw(found, 40, 32, stretch=True)
    assert all(
        np.ptp(np.flatnonzero((image > 127).any(0))) + 1 == pytest.approx(32, abs=1) for image in stretched
    )


def test_curves_are_round():
    """The full stop of DejaVu Serif is a circle: area pi/4 of its box."""
    found = outlines.read_outlines(lambda character: character == ".")
    serif = found.face == outlines.FACES.index("DejaVuSerif")
    assert serif.sum() == 1
    edges = found.edges[np.isin(found.owner, np.flatnonzero(serif))]
    x0, y0, x1, y1 = edges.T
    area = abs((x0 * y1 - x1 * y0).sum()) / 2
    assert area / (np.ptp(x0) * np.ptp(y0)) == pytest.approx(np.pi / 4, rel=0.03)


# Classes ------------------------------------------------------------------------------------------


def class_of(character):
    return next((name for name in classes().names if character in name), None)


@pytest.mark.parametrize("alike", ["AΑА", "BΒВв", "Cc", "0OoОο", "Ss", "Xx", "Ww", "Zz", "MМм", "HНн"])
def test_characters_that_look_alike_are_one_class(alike):
    assert class_of(alike[0]) is not None
    assert {class_of(character) for character in alike} == {class_of(alike[0])}


@pytest.mark.parametrize(
    "different", ["EF", "OC", "OQ", "PR", "AΛ", "69", "bd", "UV", "TГ", "Aa", "ШЩ", "אב", "ضص"]
)
def test_characters_that_do_not_are_not(different):
    first, second = map(class_of, different)
    assert first is not None
    assert second is not None
    assert first != second


def test_many_scripts():
    names = "".join(classes().names)
    for letter in "RΩЖאشԲႫᐃທ𐌀€∞7":
        assert letter in names


def test_no_character_is_in_two_classes_and_no_class_in_two_splits():
    found = classes()
    characters = "".join(found.names)
    assert len(set(characters)) == len(characters)
    assert len(np.unique(np.concatenate(found.members))) == sum(map(len, found.members))
    parts = found.splits
    assert list(parts) == ["base", "validation", "novel"]
    together = np.concatenate(list(parts.values()))
    np.testing.assert_array_equal(np.sort(together), np.arange(len(found.names)))
    assert len(found.names) > 1000
    for split, part in parts.items():
        assert len(part) == pytest.approx(glyphs.SHARES[split] * len(found.names), abs=2)
    for digit in "0123456789":
        if class_of(digit):
            assert found.names.index(class_of(digit)) in parts["novel"]


def test_outlines_of_a_class_are_its_characters():
    found = classes()
    for name, rows in zip(found.names, found.members, strict=True):
        assert "".join(sorted(set(map(chr, found.outlines.char[rows])))) == name
        assert len(rows) >= glyphs.FEWEST_OUTLINES


def test_alike_against_distances_between_all_pixels():
    """The definition itself, by brute force, on the letters of one face."""
    face = outlines.FACES.index("DejaVuSans-Bold")
    found = outlines.read_outlines(lambda character: character in "CcOoEFIlΑΛ")
    rows = np.flatnonzero(found.face == face)
    ink = outlines.draw(found, glyphs.FRAME, glyphs.BOX, stretch=True)[rows] > 127
    low, high = outlines.boxes(found)
    aspect = ((high - low)[:, 0] / (high - low)[:, 1])[rows]
    got = glyphs._alike(torch.from_numpy(ink), torch.from_numpy(np.log(aspect))).numpy()

    def missed(part, other):
        """Pixels of a shape that are far from the other shape."""
        mine, others = np.argwhere(part), np.argwhere(other)
        nearest = ((mine[:, None] - others).astype(np.int16) ** 2).sum(-1).min(1)
        return (nearest > glyphs.NEAR**2).sum()

    for i in range(len(rows)):
        for j in range(len(rows)):
            near = max(aspect[i], aspect[j]) < glyphs.ASPECT * min(aspect[i], aspect[j])
            expected = near and all(
                missed(part[a], part[b]) <= glyphs.MISSED * ink[a].sum()
                for part in (ink, ~ink)
                for a, b in ((i, j), (j, i))
            )
            assert got[i, j] == expected, (chr(found.char[rows[i]]), chr(found.char[rows[j]]))
    assert 0 < (got.sum() - len(rows)) < len(rows) ** 2 / 2  # some are alike, most are not


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 12))
def test_groups_are_alike_inside_and_different_from_each_other(seed, count):
    random = np.random.default_rng(seed)
    alike = np.round(random.uniform(0, 1, (count, count)), 1).astype(np.float32)
    alike = np.triu(alike, 1) + np.triu(alike, 1).T + np.eye(count, dtype=np.float32)
    groups = glyphs._groups(alike)
    members = [c for group in groups for c in group]
    assert len(set(members)) == len(members)
    for a in groups:
        for b in groups:
            pairs = alike[np.ix_(a, b)]
            assert a is b or (pairs < glyphs.ALIKE).all()
    for c in set(range(count)) - set(members):  # left out for a reason: it looks like one that is kept
        assert (alike[c, members] >= glyphs.ALIKE).any()
    for c in range(count):
        others = np.delete(alike[c], c)
        if (others < glyphs.ALIKE).all():
            assert [c] in groups


def test_a_chain_is_not_a_class():
    """2 looks like 1 but not like 0: it is neither merged with the pair nor kept beside it."""
    alike = np.eye(4, dtype=np.float32)
    alike[0, 1] = alike[1, 0] = 1.0
    alike[1, 2] = alike[2, 1] = 0.8
    assert sorted(map(sorted, glyphs._groups(alike))) == [[0, 1], [3]]


# Images -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_images")
def test_images_of_a_split(tmp_path):
    novel = glyphs.load("novel", root=tmp_path)
    count = len(classes().splits["novel"])
    assert novel.images.shape == (count * FEW["novel"], 32, 32)
    assert novel.images.dtype == np.uint8
    np.testing.assert_array_equal(novel.labels, np.repeat(np.arange(count), FEW["novel"]))
    assert novel.class_names == [classes().names[c] for c in classes().splits["novel"]]
    assert len(novel) == len(novel.labels)
    brightest = novel.images.max((1, 2))
    assert (brightest > 60).all()  # none is blank
    border = np.concatenate([novel.images[:, 0], novel.images[:, -1]], 1)
    assert np.median(border) < 20  # paper is dark
    assert len(np.unique(novel.images.reshape(len(novel), -1), axis=0)) == len(novel)


def test_the_seed_decides(monkeypatch, set_threads):
    monkeypatch.setattr(glyphs, "PER_CLASS", {"base": 1, "validation": 4})
    draw = partial(glyphs._draw_split, classes(), pictures())
    first = draw("validation", 0)
    set_threads(2)
    again, other = draw("validation", 0), draw("validation", 1)
    assert first.sha256() == again.sha256()
    assert first.sha256() != other.sha256()
    assert first.class_names == other.class_names
    assert not np.isin(first.images[:10].sum((1, 2)), draw("base", 0).images.sum((1, 2))).all()


def test_the_hash_sees_every_part():
    images, labels = np.zeros((2, 32, 32), np.uint8), np.array([0, 1])
    sets = [
        glyphs.GlyphSet(images, labels, ["a", "b"]),
        glyphs.GlyphSet(images + np.uint8(1), labels, ["a", "b"]),
        glyphs.GlyphSet(images, labels[::-1].copy(), ["a", "b"]),
        glyphs.GlyphSet(images, labels, ["a", "c"]),
    ]
    assert len({item.sha256() for item in sets}) == 4


def test_without_distortion_the_picture_remains(monkeypatch):
    for name in ("ROTATION", "SHEAR", "SCALE", "SHIFT", "WARP"):
        monkeypatch.setattr(glyphs, name, 0.0)
    for name, value in (("BLUR", 0.01), ("INK", 1.0), ("NOISE", 0.0)):
        monkeypatch.setattr(glyphs, name, (value, value))
    y, x = torch.meshgrid(torch.arange(48), torch.arange(48), indexing="ij")
    picture = (2 * y + x).to(torch.uint8)[None]
    (image,) = glyphs._distort(picture, np.random.default_rng(0)).int()
    centre = (torch.arange(32) + 0.5) * 48 / 32 - 0.5
    expected = 2 * centre[:, None] + centre
    assert (image[1:-1, 1:-1] - expected[1:-1, 1:-1]).abs().max() <= 0.51


def test_rotation_shear_scale_and_shift_move_what_they_should(monkeypatch):
    """The centre of a blob at (x, y), in pixels from the middle, is found by the inverse map."""
    for name in ("ROTATION", "SHEAR", "SCALE", "WARP"):
        monkeypatch.setattr(glyphs, name, 0.0)
    monkeypatch.setattr(glyphs, "NOISE", (0.0, 0.0))
    monkeypatch.setattr(glyphs, "SHIFT", 3.0)
    picture = torch.zeros(64, 48, 48, dtype=torch.uint8)
    picture[:, 22:26, 22:26] = 255
    images = glyphs._distort(picture, np.random.default_rng(0)).double()
    place = torch.arange(32) - 15.5
    mass = images.sum((1, 2))
    centre = torch.stack([(images.sum(1) * place).sum(1), (images.sum(2) * place).sum(1)], 1) / mass[:, None]
    assert centre.abs().max() <= 3.05
    assert 1.4 < centre.std() < 2.1  # uniform in -3 .. 3: 1.73


def test_blur_is_gaussian():
    image = torch.zeros(1, 32, 32)
    image[0, 10, 20] = 1
    (got,) = glyphs._blur(image, torch.tensor([0.8]))
    offset = np.arange(-3, 4)
    taps = np.exp(-(offset**2) / (2 * 0.8**2))
    taps /= taps.sum()
    expected = np.zeros((32, 32))
    expected[7:14, 17:24] = np.outer(taps, taps)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)


def test_spline_basis():
    """Partition of unity, and reproduction of straight lines: the spline through y_k = k is a line."""
    basis = glyphs._spline_basis().double()
    torch.testing.assert_close(basis.sum(1), torch.ones(32, dtype=torch.float64), atol=1e-6, rtol=0)
    line = basis @ torch.arange(glyphs.KNOTS, dtype=torch.float64)
    torch.testing.assert_close(line.diff(), line.diff()[:1].expand(31), atol=1e-6, rtol=0)


def test_digits():
    datasets = pytest.importorskip("sklearn.datasets")
    digits = glyphs.load("digits")
    assert digits.images.shape == (1797, 32, 32)
    assert digits.class_names == list("0123456789")
    assert (np.diff(digits.labels) >= 0).all()
    data = datasets.load_digits()
    small = data.images[np.argsort(data.target, kind="stable")] * 255 / 16
    blocks = digits.images[:, 4:28, 4:28].reshape(-1, 8, 3, 8, 3).mean((2, 4))
    assert np.abs(blocks - small).mean() < 12  # the mean of an enlarged pixel is near the pixel
    assert np.corrcoef(blocks.ravel(), small.ravel())[0, 1] > 0.99


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"split": "test"},
            ValueError,
            "split: expected one of 'base', 'validation', 'novel', 'digits', got 'test'",
        ),
        ({"split": "base", "seed": -1}, ValueError, "seed: expected an integer >= 0, got -1"),
        ({"split": "base", "seed": 0.5}, TypeError, "seed: expected an integer, got float 0.5"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error) as raised:
        glyphs.load(**arguments)
    assert str(raised.value) == message


# Cache --------------------------------------------------------------------------------------------


def refuse(seed):
    raise AssertionError("built again")


@pytest.mark.usefixtures("few_images")
def test_what_is_stored_is_read_and_not_built_again(tmp_path, monkeypatch):
    built = glyphs.load("validation", root=tmp_path / "new" / "folder")
    monkeypatch.setattr(glyphs, "_build", refuse)
    for split in ("base", "validation", "novel"):
        stored = glyphs.load(split, root=tmp_path / "new" / "folder")
        assert stored.labels.dtype == np.int64
        if split == "validation":
            assert stored.sha256() == built.sha256()
            assert stored.class_names == built.class_names
    with pytest.raises(AssertionError, match="built again"):
        glyphs.load("base", seed=1, root=tmp_path / "new" / "folder")


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("damage", ["truncated", "empty", "one byte", "text", "not ours"])
def test_a_damaged_file_is_built_again(tmp_path, damage):
    whole = glyphs.load("validation", root=tmp_path)
    (file,) = tmp_path.glob("glyphs-validation-*.npz")
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "one byte":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "text":
        file.write_text("hello")
    else:
        np.savez(file, images=np.zeros(3))
    with pytest.warns(UserWarning, match="damaged, and built again"):
        assert glyphs.load("validation", root=tmp_path).sha256() == whole.sha256()
    assert glyphs.load("validation", root=tmp_path).sha256() == whole.sha256()


@pytest.mark.usefixtures("few_images")
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(stream, **arrays):
        stream.write(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(np, "savez", interrupted)
        with pytest.raises(KeyboardInterrupt):
            glyphs.load("novel", root=tmp_path)
    assert list(tmp_path.iterdir()) == []
    glyphs.load("novel", root=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert glyphs.cache_folder() == tmp_path / "tim_ext"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert glyphs.cache_folder() == tmp_path / ".cache" / "tim_ext"


def test_the_key_sees_fonts_and_seed(monkeypatch):
    keys = {glyphs._key(0), glyphs._key(1)}
    monkeypatch.setattr(outlines, "fonts_sha256", lambda: "other fonts")
    assert len({glyphs._key(0), *keys}) == 3
