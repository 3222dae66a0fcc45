"""Image files: which are found, and that what is read of them is what a viewer shows."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from helpers.pictures import Image, damaged

from tim_ext.images import reading as images
from tim_ext.images.preprocessing import Preprocessing, center_crop, to_tensor
from tim_ext.images.reading import ImageError, class_folders, find_images, open_image, read_image


def picture(width=24, height=16):
    """A gray image whose every corner is different."""
    y, x = np.mgrid[:height, :width]
    return (255 * (2 * x / width + y / height) / 3).astype(np.uint8)


def colours(width=24, height=16):
    flat = picture(width, height)
    return np.stack([flat, 255 - flat, flat // 2], axis=-1)


# Which files --------------------------------------------------------------------------------------


def test_images_are_found_at_any_depth_in_order(tmp_path):
    names = ["b/2.PNG", "b/10.jpg", "a/x.jpeg", "a/sub/x.jpeg", "c.webp", "a/notes.txt", ".hidden.png"]
    for name in [*names, ".git/a.png", "b/._mac.jpg"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    found = [str(path.relative_to(tmp_path)) for path in find_images(tmp_path)]
    assert found == ["a/sub/x.jpeg", "a/x.jpeg", "b/10.jpg", "b/2.PNG", "c.webp"]
    assert [path.name for path in class_folders(tmp_path)] == ["a", "b", "folder.png"]
    assert [path.name for path in find_images(tmp_path, without=[tmp_path / "a"])] == [
        "10.jpg",
        "2.PNG",
        "c.webp",
    ]


def test_links_are_followed_once(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.png").touch()
    (tmp_path / "other.png").symlink_to(tmp_path / "real" / "a.png")
    (tmp_path / "real" / "loop").symlink_to(tmp_path)
    (tmp_path / "zagain").symlink_to(tmp_path / "real")
    assert find_images(tmp_path) == [tmp_path / "other.png", tmp_path / "real" / "a.png"]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="closed"):
        find_images(tmp_path)


# What is in them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "webp", "ppm"])
def test_formats(tmp_path, kind):
    options = {"lossless": True} if kind == "webp" else {}
    Image.fromarray(colours()).save(tmp_path / f"a.{kind}", **options)
    np.testing.assert_array_equal(read_image(tmp_path / f"a.{kind}", 3), colours())


def test_a_name_does_not_decide_the_format(tmp_path):
    Image.fromarray(colours()).save(tmp_path / "a.jpg", "PNG")
    np.testing.assert_array_equal(read_image(tmp_path / "a.jpg", 3), colours())


def test_palette_and_gray_and_two_colours(tmp_path):
    palette = Image.fromarray(colours()).convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
    palette.save(tmp_path / "p.png")
    np.testing.assert_array_equal(read_image(tmp_path / "p.png", 3), np.array(palette.convert("RGB")))
    Image.fromarray(picture()).save(tmp_path / "l.png")
    np.testing.assert_array_equal(read_image(tmp_path / "l.png", 1), picture())
    np.testing.assert_array_equal(read_image(tmp_path / "l.png", 3), np.stack([picture()] * 3, axis=-1))
    Image.fromarray(picture() > 100).save(tmp_path / "1.png")
    np.testing.assert_array_equal(read_image(tmp_path / "1.png", 1), 255 * (picture() > 100))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_over_white(tmp_path, mode):
    if mode == "P":
        image = Image.new("P", (4, 4), 3)
        image.putpalette([0, 0, 0] * 3 + [10, 20, 30])
        image.putpixel((0, 0), 1)
        image.save(tmp_path / "a.png", transparency=1)
    else:
        image = Image.new(mode, (4, 4), (10, 20, 30, 255) if mode == "RGBA" else (20, 255))
        image.putpixel((0, 0), (0, 0, 0, 0) if mode == "RGBA" else (0, 0))
        image.save(tmp_path / "a.png")
    pixels = read_image(tmp_path / "a.png", 3)
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[1, 1].tolist() == ([20, 20, 20] if mode == "LA" else [10, 20, 30])


def test_cmyk(tmp_path):
    Image.fromarray(colours()).convert("CMYK").save(tmp_path / "a.jpg", quality=100, subsampling=0)
    assert np.abs(read_image(tmp_path / "a.jpg", 3).astype(int) - colours()).max() <= 6


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_16_bits_keep_their_upper_8(tmp_path, kind):
    Image.fromarray(picture().astype(np.uint16) * 256 + 17).save(tmp_path / f"a.{kind}")
    np.testing.assert_array_equal(read_image(tmp_path / f"a.{kind}", 1), picture())


def test_floats_of_0_to_1(tmp_path):
    Image.fromarray(picture().astype(np.float32) / 255).save(tmp_path / "a.tiff")
    np.testing.assert_array_equal(read_image(tmp_path / "a.tiff", 1), picture())
    for wrong in (np.float32(1.5), np.float32(-0.1), np.float32("nan")):
        Image.fromarray(np.full((4, 4), wrong)).save(tmp_path / "b.tiff")
        with pytest.raises(ImageError, match=r"expected pixels of 0 \.\. 1, got"):
            read_image(tmp_path / "b.tiff", 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "tiff", "jpg"])
def test_images_are_upright(tmp_path, orientation, kind):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[images.ORIENTATION] = orientation
    image = Image.fromarray(picture())
    image.save(tmp_path / f"a.{kind}", exif=exif)
    image.getexif()[images.ORIENTATION] = orientation
    expected = np.array(ImageOps.exif_transpose(image))
    got = read_image(tmp_path / f"a.{kind}", 1)
    assert got.shape == expected.shape == ((16, 24) if orientation < 5 else (24, 16))
    assert np.abs(got.astype(int) - expected).max() <= (3 if kind == "jpg" else 0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_matter(tmp_path):
    Image.fromarray(picture()).save(tmp_path / "a.png", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff broken")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", 1), picture())


@pytest.mark.parametrize("kind", ["gif", "webp", "tiff"])
def test_of_several_frames_the_first(tmp_path, kind):
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (40, 200)]
    options = {"lossless": True} if kind == "webp" else {}
    frames[0].save(tmp_path / f"a.{kind}", save_all=True, append_images=frames[1:], **options)
    assert read_image(tmp_path / f"a.{kind}", 1).tolist() == [[40] * 8] * 8


# What cannot be read ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("shortest", [None, 32])
def test_what_is_no_image_is_refused_with_a_reason(tmp_path, shortest):
    for name, reason in damaged(tmp_path).items():
        with pytest.raises(ImageError) as refused:
            open_image(tmp_path / name, 3, shortest=shortest)
        assert reason in refused.value.reason
        assert str(refused.value) == f"{tmp_path / name}: {refused.value.reason}"
        assert "\n" not in refused.value.reason
        again = pickle.loads(pickle.dumps(refused.value))  # as a DataLoader does
        assert (again.path, again.reason) == (tmp_path / name, refused.value.reason)


# Large images -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize(("width", "height"), [(900, 700), (700, 900), (333, 1000), (2000, 1500)])
def test_reducing_first_moves_nothing_by_more_than_half_a_pixel(tmp_path, kind, width, height):
    """The last block of a row may be a part of one, and the longer side is rounded to whole pixels."""
    how = Preprocessing(size=32, resize=36)
    y, x = np.mgrid[:height, :width] / min(width, height)
    waves = 127 + 50 * np.sin(9 * x) + 50 * np.cos(7 * y + 5 * x)
    steepest = (50 * (9 + 7 + 5) + 1) / 255 / how.resize  # of a pixel of the result to the next
    Image.fromarray(waves.astype(np.uint8)).save(tmp_path / f"a.{kind}", quality=95)
    whole = read_image(tmp_path / f"a.{kind}", 1)
    reduced = np.array(open_image(tmp_path / f"a.{kind}", 1, shortest=how.resize))
    assert 2 * how.resize <= min(reduced.shape) < 4 * how.resize
    first, second = (center_crop(to_tensor(image[None], 1), how) for image in (whole, reduced))
    assert (first - second).abs().max() < 0.5 * steepest + 2 / 255  # and rounding


def test_small_images_are_not_reduced(tmp_path):
    Image.fromarray(colours()).save(tmp_path / "a.png")
    np.testing.assert_array_equal(np.array(open_image(tmp_path / "a.png", 3, shortest=8)), colours())


@pytest.mark.parametrize(("width", "height"), [(4001, 10), (10, 4000)])
def test_the_ends_of_long_images_are_cut_off(tmp_path, width, height):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    got = np.array(open_image(tmp_path / "a.png", 1, shortest=16))
    rows, columns = ((length - side) // 2 for length, side in zip(pixels.shape, got.shape, strict=True))
    assert 40 <= max(got.shape) <= 41
    np.testing.assert_array_equal(got, pixels[rows : rows + got.shape[0], columns : columns + got.shape[1]])
