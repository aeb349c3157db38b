"""Text files are found by name, plain or gzipped, and svmlight rows become sparse rows or an error with the line."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from mfedpba_mpi.data.readers.text import Line, files_below, find, find_all, labelled, lines, numbers, rows
from mfedpba_mpi.errors import UserError

HERE = Path("some.txt")


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def texts(*contents: str) -> list[Line]:
    return [Line(number, content.encode()) for number, content in enumerate(contents, 1)]


def test_the_nearest_file_is_found_and_plain_before_gz(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "one")
    near = write(tmp_path / "z" / "one")
    write(tmp_path / "z" / "one.gz")
    packed = write(tmp_path / "a" / "b" / "two.gz")
    write(tmp_path / "one.txt")
    assert find(tmp_path, ["one", "two", "three"]) == {"one": near, "two": packed}
    assert find_all(tmp_path, ["two", "one"]) == [packed, near]


def test_files_are_looked_for_four_directories_deep(tmp_path: Path) -> None:
    deep = write(tmp_path / "1/2/3/4/x")
    write(tmp_path / "1/2/3/4/5/x")
    assert files_below(tmp_path, "x") == [deep]


def test_there_is_nothing_below_a_file_or_below_nothing(tmp_path: Path) -> None:
    assert files_below(write(tmp_path / "x"), ".*") == []
    assert files_below(tmp_path / "missing", ".*") == []


def test_missing_files_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "one")
    with pytest.raises(UserError, match="lacks two, three; give the directory"):
        find_all(tmp_path, ["one", "two", "three"])


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_lines_keep_their_numbers_when_blank_ones_are_left_out(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, "\n one \r\n   \ntwo")
    assert list(lines(file)) == [(2, b"one"), (4, b"two")]


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"1 2 3" * 99)[:-9], b"\x1f\x8b" + b"x" * 50],
    ids=["no gzip", "cut short", "noise"],
)
def test_a_damaged_gz_file_is_a_user_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.gz cannot be read .*again"):
        list(lines(tmp_path / "x.gz"))


def test_a_line_without_end_is_a_user_error(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x.gz", "wb", compresslevel=1) as file:
        for _ in range(70):
            file.write(bytes(2**20))
    with pytest.raises(UserError, match=r"x\.gz line 1 is longer than 67108864 characters"):
        list(lines(tmp_path / "x.gz"))


def test_numbers_are_numbers_only() -> None:
    np.testing.assert_array_equal(numbers(b" 1 -2.5\t3e2 "), [1, -2.5, 300])
    assert len(numbers(b"  ")) == 0
    assert numbers(b"1 two 3") is None
    assert numbers(b"1,,3", " , ") is None


def test_a_label_is_the_first_word() -> None:
    assert labelled(HERE, Line(7, b"CCAT  1:2 3:4")) == (b"CCAT", (7, b"1:2 3:4"))
    assert labelled(HERE, Line(7, b"CCAT")) == (b"CCAT", (7, b""))
    with pytest.raises(UserError, match=r"some\.txt line 7 starts with '1:2' where a label should be"):
        labelled(HERE, Line(7, b"1:2 3:4"))


def test_indices_count_from_one_and_rows_may_be_empty() -> None:
    found = rows(HERE, texts("1:0.5 3:-2", "", "  4:1e-3   2:7"), 5)
    assert found.dtype == np.float32
    expected = np.zeros((3, 5), np.float32)
    expected[0, 0], expected[0, 2], expected[2, 3], expected[2, 1] = 0.5, -2, 1e-3, 7
    np.testing.assert_array_equal(found.toarray(), expected)


def test_the_width_grows_with_the_largest_index() -> None:
    assert rows(HERE, texts("1:1", "9:1"), 5).shape == (2, 9)
    assert rows(HERE, texts("", ""), 5).shape == (2, 5)


@pytest.mark.parametrize(
    "bad",
    ["1:", ":2", "1:x", "1", "1:2 3", "1:2:3 4", "0:1", "-1:1", "1.5:1", "9999999999:1", "1: 2:3", "a:1", "1:2\0"],
)
def test_a_row_that_is_none_is_an_error_with_its_line(bad: str) -> None:
    with pytest.raises(UserError, match=r"some\.txt line 2 is no row of index:value"):
        rows(HERE, texts("1:1 2:2", bad, "3:3"), 5)


def test_only_the_beginning_of_a_bad_line_is_shown_in_one_line() -> None:
    with pytest.raises(UserError, match=re.escape(r"('x\x01" + "y" * 38 + "...')")) as caught:
        rows(HERE, [Line(1, b"x\x01" + b"y" * 1000)], 5)
    assert len(str(caught.value)) < 200
