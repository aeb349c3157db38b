"""The three views of Caltech-101, one vector each for an image: HOG 1984, GIST 512, LBP 928.

* HOG: Felzenszwalb's (UoCTTI), 31 values in each of 8 x 8 cells of a picture of 128 x 128.
* GIST: Oliva's and Torralba's, 4 scales x 8 orientations in each of 4 x 4 blocks of a grey square of 256 x 256.
* LBP: 58 uniform patterns in each of 4 x 4 cells of a grey picture of 128 x 128.

HOG and LBP lie in [0, 1], GIST hardly ever leaves it. Only `describe` needs Pillow, to open and resize a file.
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
_X, _Y = np.cos(_ANGLES).round(4), np.sin(_ANGLES).round(4)  # rounded: of two directions equally near, the first
_BORDER = 32  # pixels around the square of GIST


def describe(path: Path) -> np.ndarray:
    """HOG, GIST and LBP of an image file, one after the other, (3424,) float32."""
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
    except Exception as error:  # what a decoder says of a broken file can be anything
        reason = "no image" if isinstance(error, UnidentifiedImageError) else printable(str(error))
        raise UserError(f"cannot read the image {path} ({reason}): get it again or remove it") from None
    small = picture.resize((128, 128), Image.Resampling.BILINEAR)
    return np.concatenate([hog(np.asarray(small)), gist(_grey_square(picture)), lbp(np.asarray(small.convert("L")))])


def _rgb(image: Image) -> Image:
    from PIL.Image import fromarray

    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip at 255
        image = fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "transparency" in image.info:  # a palette with transparent entries has to go over RGBA
        image = image.convert("RGBA")
    return image.convert("RGB")


def _grey_square(picture: Image) -> np.ndarray:
    """The mean of the channels, the shorter side made 256 long and the middle of the longer one kept."""
    from PIL.Image import Resampling, fromarray

    def middle(length: int) -> tuple[float, float]:
        resized = round(length * 256 / min(picture.size))
        start = (resized - 256) // 2
        return start * length / resized, (start + 256) * length / resized

    (left, right), (top, bottom) = map(middle, picture.size)
    grey = fromarray(np.asarray(picture).mean(axis=2, dtype=np.float32))
    return np.asarray(grey.resize((256, 256), Resampling.BILINEAR, box=(left, top, right, bottom)))


def hog(image: np.ndarray) -> np.ndarray:
    """Histograms of oriented gradients of a picture (128, 128, 3) of numbers in 0..255: (8 x 8 x 31,) float32.

    A pixel has the gradient of the channel where it is longest; it goes, by its length, into one of 18 directions and
    the nearest cells. A cell is normalised by each of the four blocks of 2 x 2 cells it belongs to and clipped at 0.2.
    Its values are 18 directions and 9 orientations, half the sum over the blocks, and the sum over directions by block.
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
    """Local binary patterns of a grey picture (128, 128): (4 x 4 x 58,) float32, each 58 of L2 length 1.

    A bit says that a neighbour is brighter; neighbours go clockwise from the one on the right. Of the 58 bins 56 are
    the patterns with one run of ones, in the order of their numbers, then come all-equal bits, then all others. A
    cell is the square root of its histogram divided by the sum of that.
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
    """The bin, 0..57, of each of the 256 codes."""
    codes = np.arange(256)
    changes = np.unpackbits((codes ^ (codes >> 1 | (codes & 1) << 7)).astype(np.uint8)[:, None], axis=1).sum(axis=1)
    bins = np.where(changes == 0, 56, 57)
    bins[changes == 2] = range(56)
    return bins


def _histograms(bins: np.ndarray, weights: np.ndarray, count: int, cells: int) -> np.ndarray:
    """(cells, cells, count) sums of weights by bin; a pixel is shared out, bilinearly, among the nearest cells."""
    position = (np.arange(len(bins)) + 0.5) * cells / len(bins) + 0.5  # in cells, with one more around the picture
    first = position.astype(int)
    shares = [(first, 1 - (position - first)), (first + 1, position - first)]
    total = np.zeros((cells + 2) ** 2 * count)
    for row, height in shares:
        for column, width in shares:
            slots = (row[:, None] * (cells + 2) + column) * count + bins
            total += np.bincount(slots.ravel(), (weights * np.outer(height, width)).ravel(), len(total))
    return total.reshape(cells + 2, cells + 2, count)[1:-1, 1:-1]


def gist(image: np.ndarray) -> np.ndarray:
    """The gist of a grey square (256, 256): (4 scales x 8 orientations x 4 x 4 blocks,) float32.

    Mean amplitudes of Gabor filters, blocks column by column; scales from fine to coarse. Brightness is stretched to
    0..255 first and local contrast evened out.
    """
    grey = image.astype(np.float32) - image.min()
    if grey.any():
        grey *= 255 / grey.max()
    padded = np.pad(_even_out(grey), _BORDER, mode="symmetric")
    spectrum, side, inner = fft.fft2(padded), len(padded), slice(_BORDER, -_BORDER)
    result = []
    for columns, gains in _gabors(side):
        lines = np.zeros((256, side), np.complex64)  # a filter is nil in most columns, and the border is not wanted
        lines[:, columns] = fft.ifft(spectrum[:, columns] * gains, axis=0)[inner]
        amplitude = np.abs(fft.ifft(lines, axis=1, overwrite_x=True)[:, inner])
        result.append(amplitude.reshape(4, 64, 4, 64).mean(axis=(1, 3)).T)
    return np.stack(result).ravel()


def _even_out(grey: np.ndarray) -> np.ndarray:
    """Oliva's and Torralba's prefilter: what is coarser than 4 cycles goes, and the rest by its local deviation."""
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
    """Of each filter, in the frequency domain, the columns that are not nil (in float32) and their values."""
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
