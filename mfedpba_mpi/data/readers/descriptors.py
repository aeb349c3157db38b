"""Image descriptors, the three views of Caltech-101: HOG (1984 values), GIST (512), LBP (928).

* HOG: Felzenszwalb's variant (UoCTTI), 31 values in each of 8 x 8 cells of a 128 x 128 image.
* GIST: Oliva and Torralba, 4 scales x 8 orientations in each of 4 x 4 blocks of a grey 256 x 256 square.
* LBP: 58 uniform patterns in each of 4 x 4 cells of a grey 128 x 128 image.

HOG and LBP are in [0, 1], GIST almost always. Only `describe` needs Pillow, to open and resize a file.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import fft

from mfedpba_mpi.data.catalog import printable
from mfedpba_mpi.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

WIDTHS = {"HOG": 1984, "GIST": 512, "LBP": 928}
NEEDS_PILLOW = "reading images needs pillow: pip install mfedpba-mpi[images]"

_ANGLES = np.arange(9) * np.pi / 9
_X, _Y = np.cos(_ANGLES).round(4), np.sin(_ANGLES).round(4)  # rounded, so that ties go to the first direction
_BORDER = 32  # padding of GIST, in pixels


def describe(path: Path) -> np.ndarray:
    """Compute HOG, GIST and LBP of an image file, concatenated, (3424,) float32."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UserError(NEEDS_PILLOW) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # beyond 90 million pixels
            with Image.open(path) as image:
                picture = _rgb(image)
    except Exception as error:  # decoders raise almost anything on damaged files
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else printable(str(error))
        raise UserError(f"cannot read the image {path} ({reason}); get it again or remove it") from None
    small = picture.resize((128, 128), Image.Resampling.BILINEAR)
    return np.concatenate([hog(np.asarray(small)), gist(_grey_square(picture)), lbp(np.asarray(small.convert("L")))])


def _rgb(image: Image) -> Image:
    from PIL.Image import fromarray

    if image.mode.startswith("I"):  # 16 bits; Pillow would clip at 255
        image = fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "transparency" in image.info:  # a palette with transparent entries must be converted via RGBA
        image = image.convert("RGBA")
    return image.convert("RGB")


def _grey_square(picture: Image) -> np.ndarray:
    """Average the channels, resize the shorter side to 256, and crop the centre of the longer one."""
    from PIL.Image import Resampling, fromarray

    def middle(length: int) -> tuple[float, float]:
        resized = round(length * 256 / min(picture.size))
        start = (resized - 256) // 2
        return start * length / resized, (start + 256) * length / resized

    (left, right), (top, bottom) = map(middle, picture.size)
    grey = fromarray(np.asarray(picture).mean(axis=2, dtype=np.float32))
    return np.asarray(grey.resize((256, 256), Resampling.BILINEAR, box=(left, top, right, bottom)))


def hog(image: np.ndarray) -> np.ndarray:
    """Compute histograms of oriented gradients of an image (128, 128, 3) in 0..255: (8 x 8 x 31,) float32.

    The gradient of a pixel is that of the channel where it is longest. Its length is added to one of 18 directions in
    the nearest cells. A cell is normalised by each of the four 2 x 2 blocks that contain it, and clipped at 0.2. Its
    values are 18 directions and 9 orientations (half the sum over the four blocks), and for each block the sum over
    the directions divided by sqrt(18).
    """
    pixels = image.astype(float)
    dx, dy = np.empty_like(pixels), np.empty_like(pixels)
    dx[:, 1:-1], dy[1:-1] = pixels[:, 2:] - pixels[:, :-2], pixels[2:] - pixels[:-2]
    dx[:, [0, -1]], dy[[0, -1]] = dx[:, [1, -2]], dy[[1, -2]]
    longest = (dx**2 + dy**2).argmax(axis=2)[..., None]
    dx, dy = np.take_along_axis(dx, longest, 2), np.take_along_axis(dy, longest, 2)
    along = dx * _X + dy * _Y
    nearest = np.abs(along).argmax(axis=2)
    backwards = np.take_along_axis(along, nearest[..., None], 2)[..., 0] < 0
    directed = _histograms(nearest + 9 * backwards, np.hypot(dx, dy)[..., 0], 18, 8)

    undirected = directed[..., :9] + directed[..., 9:]
    energy = np.pad((undirected**2).sum(axis=2), 1, mode="edge")
    blocks = energy[:-1, :-1] + energy[:-1, 1:] + energy[1:, :-1] + energy[1:, 1:]
    scale = 1 / np.sqrt(blocks + 1e-4 * 255**2)
    four = np.stack([scale[:-1, :-1], scale[:-1, 1:], scale[1:, :-1], scale[1:, 1:]], axis=-1)[:, :, None]
    directed, undirected = np.minimum(directed[..., None] * four, 0.2), np.minimum(undirected[..., None] * four, 0.2)
    parts = [directed.sum(axis=3) / 2, undirected.sum(axis=3) / 2, directed.sum(axis=2) / np.sqrt(18)]
    return np.concatenate(parts, axis=2, dtype=np.float32).ravel()


def lbp(image: np.ndarray) -> np.ndarray:
    """Compute local binary patterns of a grey image (128, 128): (4 x 4 x 58,) float32, each cell of unit L2 norm.

    A bit is set if a neighbour is brighter; neighbours are ordered clockwise from the right. The first 56 of the 58
    bins are the patterns with one run of ones, in numeric order; then all bits equal; then all other patterns. A cell
    is the square root of its L1-normalised histogram.
    """
    pixels, middle = image.astype(np.int16), slice(1, -1)
    centre, code = pixels[middle, middle], np.zeros((126, 126), np.uint8)
    for bit, (y, x) in enumerate([(1, 2), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0), (0, 1), (0, 2)]):
        code |= (pixels[y : y + 126, x : x + 126] > centre).astype(np.uint8) << bit
    inside = np.pad(np.ones((126, 126)), 1)
    histograms = _histograms(np.pad(_patterns()[code], 1), inside, 58, 4)
    return np.sqrt(histograms / histograms.sum(axis=2, keepdims=True)).astype(np.float32).ravel()


@cache
def _patterns() -> np.ndarray:
    """Return the bin, 0..57, of each of the 256 codes."""
    codes = np.arange(256)
    changes = np.unpackbits((codes ^ (codes >> 1 | (codes & 1) << 7)).astype(np.uint8)[:, None], axis=1).sum(axis=1)
    bins = np.where(changes == 0, 56, 57)
    bins[changes == 2] = range(56)
    return bins


def _histograms(bins: np.ndarray, weights: np.ndarray, count: int, cells: int) -> np.ndarray:
    """Sum the weights by bin, (cells, cells, count); a pixel is distributed bilinearly over the nearest cells."""
    position = (np.arange(len(bins)) + 0.5) * cells / len(bins) + 0.5  # in cells, with a border of one cell
    first = position.astype(int)
    shares = [(first, 1 - (position - first)), (first + 1, position - first)]
    total = np.zeros((cells + 2) ** 2 * count)
    for row, height in shares:
        for column, width in shares:
            slots = (row[:, None] * (cells + 2) + column) * count + bins
            total += np.bincount(slots.ravel(), (weights * np.outer(height, width)).ravel(), len(total))
    return total.reshape(cells + 2, cells + 2, count)[1:-1, 1:-1]


def gist(image: np.ndarray) -> np.ndarray:
    """Compute GIST of a grey square (256, 256): (4 scales x 8 orientations x 4 x 4 blocks,) float32.

    The values are mean amplitudes of Gabor filters; scales go from fine to coarse, blocks column by column. First,
    brightness is stretched to 0..255 and local contrast is normalised.
    """
    grey = image.astype(np.float32) - image.min()
    if grey.any():
        grey *= 255 / grey.max()
    padded = np.pad(_normalize_contrast(grey), _BORDER, mode="symmetric")
    spectrum, side, inner = fft.fft2(padded), len(padded), slice(_BORDER, -_BORDER)
    result = []
    for columns, gains in _gabors(side):
        lines = np.zeros((256, side), np.complex64)  # a filter is zero in most columns; the border is dropped
        lines[:, columns] = fft.ifft(spectrum[:, columns] * gains, axis=0)[inner]
        amplitude = np.abs(fft.ifft(lines, axis=1, overwrite_x=True)[:, inner])
        result.append(amplitude.reshape(4, 64, 4, 64).mean(axis=(1, 3)).T)
    return np.stack(result).ravel()


def _normalize_contrast(grey: np.ndarray) -> np.ndarray:
    """Apply Oliva and Torralba's prefilter: subtract frequencies below 4 cycles, divide by the local deviation."""
    padded = np.pad(np.log(grey + 1), 5, mode="symmetric")
    gains, shape = _low_pass(len(padded)), padded.shape
    fine = padded - fft.irfft2(fft.rfft2(padded) * gains, shape)
    deviation = np.sqrt(np.abs(fft.irfft2(fft.rfft2(fine**2) * gains, shape)))
    return (fine / (0.2 + deviation))[5:-5, 5:-5]


@cache
def _low_pass(side: int) -> np.ndarray:
    down, across = fft.fftfreq(side, 1 / side)[:, None], fft.rfftfreq(side, 1 / side)
    return np.exp(-(down**2 + across**2) * np.log(2) / 4**2).astype(np.float32)


@cache
def _gabors(side: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each filter in the frequency domain, the columns that are not zero (in float32) and their values."""
    down, across = fft.fftfreq(side)[:, None], fft.fftfreq(side)
    radius, angle = np.hypot(down, across), np.arctan2(down, across)
    result = []
    for scale in range(4):
        for orientation in range(8):
            turned = (angle + orientation * np.pi / 8 + np.pi) % (2 * np.pi) - np.pi
            gains = np.exp(-3.5 * (radius / (0.3 / 1.85**scale) - 1) ** 2 - 2 * np.pi * turned**2)
            columns = np.flatnonzero(gains.max(axis=0) > 1e-7)
            result.append((columns, gains[:, columns].astype(np.float32)))
    return result
