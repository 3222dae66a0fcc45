"""Where commands may write: never over an input, by whatever name; to a target through its links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tim_ext.errors import UserError
from tim_ext.files.atomic import open_draft, write_atomically
from tim_ext.files.outputs import check_outside, output_file, output_folder


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "pool.npz"
    write_atomically(path, b"features")
    return path


def names_of(pool: Path) -> dict[str, Path]:
    """The pool by other names."""
    folder = pool.parent
    names = {
        "itself": pool,
        "dots": folder / ".." / "data" / "pool.npz",
        "link": folder / "link.npz",
        "link to a link": folder / "second.npz",
        "hard link": folder / "hard.npz",
        "through a linked folder": folder.parent / "other" / "pool.npz",
        "relative": Path(os.path.relpath(pool)),
    }
    names["link"].symlink_to("pool.npz")
    names["link to a link"].symlink_to(names["link"])
    names["hard link"].hardlink_to(pool)
    (folder.parent / "other").symlink_to(folder)
    return names


def test_no_output_is_an_input(pool: Path) -> None:
    names = names_of(pool)
    for kind, out in names.items():
        for given in names.values():
            with pytest.raises(UserError) as refused:
                output_file("--out", out, {"--support": None, "POOL": given})
            text = f"--out: expected a file that is not read, got {out}, the same file as POOL"
            assert str(refused.value) == text, kind
    assert pool.read_bytes() == b"features"


def test_several_inputs_of_an_option(pool: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--out: .*, a file of FEATURES$"):
        output_file("--out", pool, {"FEATURES": [tmp_path / "missing", pool]})


def test_an_output_beside_its_input(pool: Path) -> None:
    out = pool.with_name("out.npz")
    assert output_file("--out", out, {"POOL": pool}) == out
    write_atomically(out, b"old")  # is replaced
    assert output_file("--out", out, {"POOL": pool}) == out
    assert sorted(os.listdir(pool.parent)) == ["out.npz", "pool.npz"]
    assert out.read_bytes() == b"old"


def test_missing_folders_are_made(tmp_path: Path) -> None:
    output_file("--out", tmp_path / "a" / "b" / "out.csv", {})
    output_folder("--plots", tmp_path / "c" / "d", ["*.png"], {})
    assert (tmp_path / "a" / "b").is_dir()
    assert (tmp_path / "c" / "d").is_dir()
    assert os.listdir(tmp_path / "c" / "d") == []


def test_writing_goes_through_links(tmp_path: Path) -> None:
    """The link stays, its target is replaced at once; a link to nothing makes what it names."""
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "1.csv", tmp_path / "latest.csv"
    link.symlink_to(Path("store", "1.csv"))
    assert output_file("--out", link, {}) == target
    for content in (b"first", b"second"):
        with open_draft(link) as file:
            file.write(content)
            assert os.listdir(tmp_path / "store") != []  # the draft is where the target is
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["latest.csv", "store"]
    folder = tmp_path / "results"
    folder.symlink_to("made")
    output_folder("--out", folder, ["a"], {})
    assert (tmp_path / "made").is_dir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "--out: expected a file, got the directory {}"),
        (
            lambda path: path.symlink_to(path),
            f"--out: expected a file, got {{}} ({os.strerror(errno.ELOOP)})",
        ),
        (os.mkfifo, "--out: expected a file, got {} (Not a regular file)"),
        (lambda path: path.symlink_to("/dev/null"), "--out: expected a file, got {} (Not a regular file)"),
    ],
)
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make, message: str) -> None:
    path = tmp_path / "out"
    make(path)
    with pytest.raises(UserError) as refused:
        output_file("--out", path, {})
    assert str(refused.value) == message.format(path)
    with pytest.raises(OSError, match=r".") as failed:
        write_atomically(path, b"")
    assert failed.value.filename == str(path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^--out: expected a folder to write to, got .*file \(.+\)$"):
        output_file("--out", tmp_path / "file" / "out.csv", {})
    with pytest.raises(UserError, match=r"^--out: expected a folder, got .*file, which is none$"):
        output_folder("--out", tmp_path / "file", ["a"], {})
    with pytest.raises(UserError, match=r"^--out: expected a folder to write to, got /proc/new \(.+\)$"):
        output_folder("--out", Path("/proc/new"), ["a"], {})


def test_a_folder_with_an_input_in_it(pool: Path) -> None:
    folder = pool.parent
    assert output_folder("--out", folder, ["out.csv"], {"POOL": pool}) == folder
    (folder / "out.csv").symlink_to(pool)
    with pytest.raises(UserError, match=r"^--out: .* got .*out.csv, the same file as POOL$"):
        output_folder("--out", folder, ["out.csv"], {"POOL": pool})
    (folder / "plot.png").hardlink_to(pool)
    with pytest.raises(UserError, match=r"^--plots: .* got .*plot.png, the same file as POOL$"):
        output_folder("--plots", folder, ["*.png"], {"POOL": pool})


def test_a_folder_that_is_read(pool: Path, tmp_path: Path) -> None:
    images = pool.parent
    (tmp_path / "link").symlink_to(images)
    for out in (images, tmp_path / "link", images / "." / ".." / "data"):
        with pytest.raises(
            UserError, match=r"^--out: expected a folder that is not read, got .*, which is --query$"
        ):
            output_folder("--out", out, ["a"], {"--query": [images, pool]})
    check_outside("--out", tmp_path / "out", "--support", images)
    with pytest.raises(
        UserError, match=r"^--out: expected a folder outside --support, got .*/link/new in .*data$"
    ):
        check_outside("--out", tmp_path / "link" / "new", "--support", images)
