"""Text files are found by name, plain or gzipped; svmlight rows are parsed, and errors name the line."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from mfedpba_mpi.data.readers.text import (
    Line,
    files_below,
    find_files,
    parse_numbers,
    parse_rows,
    read_lines,
    require_files,
    split_label,
)
from mfedpba_mpi.errors import UserError

HERE = Path("some.txt")


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def texts(*contents: str) -> list[Line]:
    return [Line(number, content.encode()) for number, content in enumerate(contents, 1)]


def test_the_nearest_file_is_found_and_plain_has_priority_over_gz(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "one")
    near = write(tmp_path / "z" / "one")
    write(tmp_path / "z" / "one.gz")
    packed = write(tmp_path / "a" / "b" / "two.gz")
    write(tmp_path / "one.txt")
    assert find_files(tmp_path, ["one", "two", "three"]) == {"one": near, "two": packed}
    assert require_files(tmp_path, ["two", "one"]) == [packed, near]


def test_the_search_is_four_levels_deep(tmp_path: Path) -> None:
    deep = write(tmp_path / "1/2/3/4/x")
    write(tmp_path / "1/2/3/4/5/x")
    assert files_below(tmp_path, "x") == [deep]


def test_no_files_are_found_below_a_file_or_a_missing_directory(tmp_path: Path) -> None:
    assert files_below(write(tmp_path / "x"), ".*") == []
    assert files_below(tmp_path / "missing", ".*") == []


def test_missing_files_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "one")
    with pytest.raises(UserError, match="lacks two, three; give the directory"):
        require_files(tmp_path, ["one", "two", "three"])


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_blank_lines_are_skipped_but_counted(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, "\n one \r\n   \ntwo")
    assert list(read_lines(file)) == [(2, b"one"), (4, b"two")]


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"1 2 3" * 99)[:-9], b"\x1f\x8b" + b"x" * 50],
    ids=["no gzip", "cut short", "noise"],
)
def test_a_damaged_gz_file_is_a_user_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*x\.gz .*again"):
        list(read_lines(tmp_path / "x.gz"))


def test_an_endless_line_is_a_user_error(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x.gz", "wb", compresslevel=1) as file:
        for _ in range(70):
            file.write(bytes(2**20))
    with pytest.raises(UserError, match=r"x\.gz line 1 is longer than 67108864 bytes"):
        list(read_lines(tmp_path / "x.gz"))


def test_only_lists_of_numbers_are_parsed() -> None:
    np.testing.assert_array_equal(parse_numbers(b" 1 -2.5\t3e2 "), [1, -2.5, 300])
    assert len(parse_numbers(b"  ")) == 0
    assert parse_numbers(b"1 two 3") is None
    assert parse_numbers(b"1,,3", " , ") is None


def test_a_label_is_the_first_word() -> None:
    assert split_label(HERE, Line(7, b"CCAT  1:2 3:4")) == (b"CCAT", (7, b"1:2 3:4"))
    assert split_label(HERE, Line(7, b"CCAT")) == (b"CCAT", (7, b""))
    with pytest.raises(UserError, match=r"some\.txt line 7 starts with '1:2' instead of a label"):
        split_label(HERE, Line(7, b"1:2 3:4"))


def test_indices_count_from_one_and_rows_may_be_empty() -> None:
    found = parse_rows(HERE, texts("1:0.5 3:-2", "", "  4:1e-3   2:7"), 5)
    assert found.dtype == np.float32
    expected = np.zeros((3, 5), np.float32)
    expected[0, 0], expected[0, 2], expected[2, 3], expected[2, 1] = 0.5, -2, 1e-3, 7
    np.testing.assert_array_equal(found.toarray(), expected)


def test_the_width_grows_with_the_largest_index() -> None:
    assert parse_rows(HERE, texts("1:1", "9:1"), 5).shape == (2, 9)
    assert parse_rows(HERE, texts("", ""), 5).shape == (2, 5)


@pytest.mark.parametrize(
    "bad",
    ["1:", ":2", "1:x", "1", "1:2 3", "1:2:3 4", "0:1", "-1:1", "1.5:1", "9999999999:1", "1: 2:3", "a:1", "1:2\0"],
)
def test_an_invalid_row_is_reported_with_its_line(bad: str) -> None:
    with pytest.raises(UserError, match=r"some\.txt line 2 is not a row of index:value"):
        parse_rows(HERE, texts("1:1 2:2", bad, "3:3"), 5)


def test_an_error_shows_only_the_beginning_of_a_bad_line() -> None:
    with pytest.raises(UserError, match=re.escape(r"('x\x01" + "y" * 38 + "...')")) as caught:
        parse_rows(HERE, [Line(1, b"x\x01" + b"y" * 1000)], 5)
    assert len(str(caught.value)) < 200
