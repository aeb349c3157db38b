"""HOG, GIST and LBP agree with hand-computed values on simple images and with published features on photographs."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from mfedpba_mpi.data.readers.descriptors import describe, gist, hog, lbp
from mfedpba_mpi.errors import UserError

RNG = np.random.default_rng(0)
NOISE = RNG.integers(256, size=(128, 128), dtype=np.uint8)
LARGE_NOISE = RNG.integers(256, size=(256, 256)).astype(float)
STEP_AT_64 = np.where(np.arange(128) < 64, 0, 255)


def coloured(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, axis=2)


# HOG


def edge_values(direction: int) -> np.ndarray:
    """The 31 values of a cell with one strong direction: all four normalised values are clipped at 0.2."""
    values = np.zeros(31)
    values[direction] = values[18 + direction % 9] = (0.2 + 0.2 + 0.2 + 0.2) / 2
    values[27:] = 0.2 / np.sqrt(18)
    return values


@pytest.mark.parametrize(("line", "direction"), [(STEP_AT_64, 0), (255 - STEP_AT_64, 9)])
def test_a_vertical_edge_appears_in_the_two_adjacent_columns_of_cells(line: np.ndarray, direction: int) -> None:
    cells = hog(coloured(np.tile(line, (128, 1)))).reshape(8, 8, 31)
    np.testing.assert_allclose(cells[:, 3:5], np.broadcast_to(edge_values(direction), (8, 2, 31)), atol=1e-6)
    assert not cells[:, [0, 1, 2, 5, 6, 7]].any()


def test_a_tie_between_two_directions_goes_to_the_first() -> None:
    cells = hog(coloured(np.tile(STEP_AT_64[:, None], (1, 128)))).reshape(8, 8, 31)  # 90 degrees, between 80 and 100
    np.testing.assert_allclose(cells[3:5], np.broadcast_to(edge_values(4), (2, 8, 31)), atol=1e-6)
    assert not cells[[0, 1, 2, 5, 6, 7]].any()


def test_the_strongest_channel_gives_the_gradient() -> None:
    picture = np.zeros((128, 128, 3))
    picture[..., 0], picture[..., 1] = 20 * np.sin(np.arange(128) / 5)[:, None], STEP_AT_64
    np.testing.assert_allclose(hog(picture).reshape(8, 8, 31)[2, 3, 0], 0.4, atol=1e-6)


def test_directions_and_blocks_have_the_same_total() -> None:
    cells = hog(coloured(NOISE)).reshape(64, 31)
    np.testing.assert_allclose(2 * cells[:, :18].sum(axis=1), np.sqrt(18) * cells[:, 27:].sum(axis=1), rtol=1e-5)


def test_rotating_the_image_by_180_degrees_rotates_cells_directions_and_blocks() -> None:
    cells, turned = (hog(coloured(picture)).reshape(8, 8, 31) for picture in (NOISE, NOISE[::-1, ::-1]))
    expected = cells[::-1, ::-1]
    np.testing.assert_allclose(turned[..., :18], np.roll(expected[..., :18], 9, axis=2), atol=1e-6)
    np.testing.assert_allclose(turned[..., 18:27], expected[..., 18:27], atol=1e-6)
    np.testing.assert_allclose(turned[..., 27:], expected[..., :26:-1], atol=1e-6)


def test_a_cell_is_normalised_by_the_four_blocks_around_it() -> None:
    """Gradients of all directions around the centre of cell (2, 2): only the blocks that contain it are not zero."""
    y, x = np.mgrid[:128, :128] - 39.5
    picture = np.maximum(0, 5 - np.hypot(x, y))
    cells = hog(50 * coloured(picture)).reshape(8, 8, 31)
    corners = hog(50 * coloured(np.roll(picture, (8, 8), (0, 1)))).reshape(8, 8, 31)
    share = cells[2, 2, 27:]
    np.testing.assert_allclose(share, share[0], rtol=1e-3)  # one cell, four equal blocks
    assert corners[2:4, 2:4, 27:].argmin(axis=2).ravel().tolist() == [
        3,
        2,
        1,
        0,
    ]  # the block with all four cells is largest


# LBP


def runs(code: int) -> int:
    bits = f"{code:08b}"
    return sum(bits[i] != bits[i - 1] for i in range(8))


ONE_RUN = [code for code in range(256) if runs(code) == 2]


def test_a_constant_image_has_one_pattern() -> None:
    cells = lbp(np.full((128, 128), 77, np.uint8)).reshape(16, 58)
    np.testing.assert_array_equal(cells, np.eye(58)[[56] * 16])


def test_brightness_increasing_to_the_right_sets_the_three_right_bits() -> None:
    cells = lbp(np.tile(np.arange(128, dtype=np.uint8), (128, 1))).reshape(16, 58)
    np.testing.assert_array_equal(cells, np.eye(58)[[ONE_RUN.index(0b10000011)] * 16])


def test_patterns_are_distributed_bilinearly_over_cells() -> None:
    around = [(0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)]  # clockwise from the right
    picture, expected = NOISE.astype(int), np.zeros((4, 4, 58))
    share = np.array([[max(0, 1 - abs((x + 0.5) / 32 - 0.5 - cell)) for cell in range(4)] for x in range(128)])
    for y in range(1, 127):
        for x in range(1, 127):
            code = sum(2**i for i, (dy, dx) in enumerate(around) if picture[y + dy, x + dx] > picture[y, x])
            pattern = ONE_RUN.index(code) if code in ONE_RUN else 56 if code in (0, 255) else 57
            expected[..., pattern] += np.outer(share[y], share[x])
    expected = np.sqrt(expected / expected.sum(axis=2, keepdims=True))
    np.testing.assert_allclose(lbp(NOISE), expected.ravel(), atol=1e-6)


def test_patterns_do_not_depend_on_brightness_and_contrast() -> None:
    np.testing.assert_array_equal(lbp(NOISE.astype(np.int64) * 3 + 20), lbp(NOISE))


# GIST


@pytest.mark.parametrize(("scale", "orientation"), [(0, 0), (0, 4), (1, 3), (2, 2), (2, 7), (3, 5)])
def test_a_grating_is_strongest_at_its_scale_and_orientation(scale: int, orientation: int) -> None:
    y, x = np.mgrid[:256, :256]
    angle, cycles = orientation * np.pi / 8, 0.3 / 1.85**scale  # cycles per pixel; y points down
    amplitudes = gist(np.cos(2 * np.pi * cycles * (np.cos(angle) * x - np.sin(angle) * y))).reshape(4, 8, 16)
    assert divmod(int(amplitudes.mean(axis=2).argmax()), 8) == (scale, orientation)


def test_gist_blocks_are_ordered_column_by_column() -> None:
    picture = np.zeros((256, 256))
    picture[2 * 64 : 3 * 64, 1 * 64 : 2 * 64] = LARGE_NOISE[:64, :64]
    assert (gist(picture).reshape(32, 16).argmax(axis=1) == 1 * 4 + 2).all()


def test_gist_does_not_depend_on_brightness_and_contrast() -> None:
    np.testing.assert_allclose(gist(LARGE_NOISE / 4 + 50), gist(LARGE_NOISE), rtol=1e-3)


def test_gist_of_a_constant_image_is_zero() -> None:
    assert not gist(np.full((256, 256), 9.0)).any()


def test_gist_matches_its_definition() -> None:
    """Computed with full complex transforms in double precision."""
    log = np.pad(np.log1p((LARGE_NOISE - LARGE_NOISE.min()) * 255 / np.ptp(LARGE_NOISE)), 5, mode="symmetric")
    cycles = np.fft.fftfreq(266) * 266
    low = np.exp(-(cycles[:, None] ** 2 + cycles**2) / (4 / np.sqrt(np.log(2))) ** 2)
    fine = log - np.fft.ifft2(np.fft.fft2(log) * low).real
    even = fine / (0.2 + np.sqrt(np.abs(np.fft.ifft2(np.fft.fft2(fine**2) * low))))
    spectrum = np.fft.fft2(np.pad(even[5:-5, 5:-5], 32, mode="symmetric"))
    frequency = np.fft.fftfreq(320) + 1j * np.fft.fftfreq(320)[:, None]
    expected = []
    for scale in range(4):
        for orientation in range(8):
            turned = np.angle(frequency * np.exp(1j * orientation * np.pi / 8))
            gabor = np.exp(-10 * 0.35 * (np.abs(frequency) * 1.85**scale / 0.3 - 1) ** 2 - 2 * np.pi * turned**2)
            amplitude = np.abs(np.fft.ifft2(spectrum * gabor))[32:-32, 32:-32]
            expected += [amplitude[y : y + 64, x : x + 64].mean() for x in range(0, 256, 64) for y in range(0, 256, 64)]
    np.testing.assert_allclose(gist(LARGE_NOISE), expected, rtol=1e-4)


# Files


@pytest.fixture
def photo() -> Image.Image:
    """A smooth colour image, 100 x 70."""
    return Image.fromarray(RNG.integers(256, size=(7, 10, 3), dtype=np.uint8)).resize((100, 70))


def saved(image: Image.Image, path: Path, **options: object) -> np.ndarray:
    image.save(path, **options)
    return describe(path)


def test_a_file_gives_three_views_with_values_in_0_to_1(photo: Image.Image, tmp_path: Path) -> None:
    values = saved(photo, tmp_path / "a.png")
    assert values.shape == (1984 + 512 + 928,)
    assert values.dtype == np.float32
    assert values.min() >= 0
    assert values.max() <= 1


@pytest.mark.parametrize("mode", ["L", "1", "LA", "P", "RGBA"])
def test_any_image_mode_is_converted_to_rgb(mode: str, photo: Image.Image, tmp_path: Path) -> None:
    picture = photo.convert(mode)
    values = saved(picture, tmp_path / "a.png")
    np.testing.assert_array_equal(values, saved(picture.convert("RGB"), tmp_path / "b.png"))


def test_cmyk_images_are_converted(photo: Image.Image, tmp_path: Path) -> None:
    values = saved(photo.convert("CMYK"), tmp_path / "a.jpg", quality=100)
    assert np.corrcoef(values, saved(photo, tmp_path / "b.png"))[0, 1] > 0.9


def test_transparent_palette_entries_are_ignored(photo: Image.Image, tmp_path: Path) -> None:
    picture = photo.convert("P")
    values = saved(picture, tmp_path / "a.png", transparency=bytes(range(256)))
    np.testing.assert_array_equal(values, saved(picture, tmp_path / "b.png"))


def test_16_bit_grey_images_are_not_clipped(photo: Image.Image, tmp_path: Path) -> None:
    grey = photo.convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    np.testing.assert_array_equal(saved(deep, tmp_path / "a.png"), saved(grey, tmp_path / "b.png"))


def test_gist_uses_the_central_square(photo: Image.Image, tmp_path: Path) -> None:
    square = photo.crop((15, 0, 85, 70))
    wide = Image.new("RGB", (1070, 70))
    wide.paste(square.resize((1070, 70)))
    wide.paste(square, (500, 0))
    gists = [saved(image, tmp_path / "a.png")[1984 : 1984 + 512].reshape(4, 8, 4, 4) for image in (square, wide)]
    np.testing.assert_allclose(*(values[:, :, 1:3] for values in gists), rtol=0.05)


def test_an_image_of_one_line_is_accepted(tmp_path: Path) -> None:
    assert np.isfinite(saved(Image.new("RGB", (3000, 1)), tmp_path / "a.png")).all()


@pytest.mark.parametrize("content", ["empty", "text", "truncated"])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_a_broken_file_is_reported(content: str, suffix: str, photo: Image.Image, tmp_path: Path) -> None:
    path = tmp_path / f"broken{suffix}"
    photo.save(path)
    path.write_bytes({"empty": b"", "text": b"no image", "truncated": path.read_bytes()[:-1000]}[content])
    with pytest.raises(UserError, match=rf"cannot read the image .*broken{suffix} \(.+\); get it again") as error:
        describe(path)
    assert "\n" not in str(error.value)


def test_the_error_without_pillow_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"needs pillow: pip install mfedpba-mpi\[images\]"):
        describe(tmp_path / "a.png")


def test_descriptors_of_photographs_agree_with_published_features(shared_data: Path) -> None:
    folder = shared_data / "raw" / "caltech101_images"
    photos = sorted(folder.glob("*/image_0003.jpg"))
    with h5py.File(shared_data / "caltech101.h5") as file:
        names = [name.decode() for name in file["files"][()]]
        rows = [names.index(photo.relative_to(folder).as_posix()) for photo in photos]
        expected = np.hstack([file[view][rows] for view in ("X0", "X1", "X2")]).astype(np.float32)
    values = np.stack([describe(photo) for photo in photos])
    assert len(photos) == 10
    for part, allowed in ((slice(0, 1984), 3e-4), (slice(1984, 2496), 3e-5), (slice(2496, 3424), 1e-4)):
        assert np.abs(values[:, part] - expected[:, part]).mean() < allowed
        assert min(np.corrcoef(values[i, part], expected[i, part])[0, 1] for i in range(10)) > 0.999
