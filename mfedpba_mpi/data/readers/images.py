"""Directories of images, one directory per class, described by HOG, GIST and LBP (see `descriptors`).

::

    101_ObjectCategories/accordion/image_0001.jpg
    101_ObjectCategories/accordion/image_0002.jpg
    101_ObjectCategories/airplanes/image_0001.jpg

Classes are the directories with images, sorted by name, capitals first; samples are sorted by class and file name. The
parent of ``101_ObjectCategories`` is accepted too. Hidden files, files without an image suffix and directories without
images are ignored.

All cores compute the descriptors in parts of a few images. A finished part is cached under a hash of the names, sizes
and modification times of its images, so only changed images are computed again.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mfedpba_mpi.cli.console import Throttle
from mfedpba_mpi.comm.launcher import available_cores
from mfedpba_mpi.data.readers.descriptors import WIDTHS, describe
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.errors import RunError, UserError
from mfedpba_mpi.files import replacing

FORMAT = "images: a directory with one directory of .jpg, .jpeg or .png files for each class (101_ObjectCategories)"
REVISION = 1  # of the descriptors; another number invalidates all cached parts

_SUFFIXES = (".jpg", ".jpeg", ".png")
_PART = 16  # images per part
_DIGEST = hashlib.sha256().digest_size
_PROGRESS_SECONDS = 15.0  # between two progress lines without a terminal
_stop: Event  # set in the workers when the import ends early


def recognises(path: Path) -> bool:
    """Whether `path` is a directory with directories of images."""
    try:
        return path.is_dir() and any(_images(folder) for folder in _class_folders(path))
    except OSError:
        return False


def read(path: Path, scratch: Path) -> Source:
    """Compute HOG, GIST and LBP of every image; its directory is its class. Finished parts are cached in `scratch`."""
    classes = {folder.name: images for folder in _class_folders(path) if (images := _images(folder))}
    parts = {
        scratch / _key(part): part
        for images in classes.values()
        for part in (images[i : i + _PART] for i in range(0, len(images), _PART))
    }
    if not parts:
        raise UserError(
            f"{path} has no directories with {', '.join(_SUFFIXES)} files; give the directory of the class directories"
        )
    values = {file: rows for file in parts if (rows := _load_part(file)) is not None}
    missing = {file: part for file, part in parts.items() if file not in values}
    if missing:
        values |= _describe_parts(missing, sum(map(len, values.values())))
    rows = np.concatenate([values[file] for file in parts])
    return Source(
        views=[np.ascontiguousarray(view) for view in np.split(rows, np.cumsum([*WIDTHS.values()])[:-1], axis=1)],
        labels=np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()]),
        files=[image for images in classes.values() for image in images],
        view_names=[*WIDTHS],
        class_names=[*classes],
        classes=len(classes),
        details={
            "hog": "UoCTTI, 31 values x 8 x 8 cells on 128 x 128",
            "gist": "4 scales x 8 orientations x 4 x 4 blocks on the middle square, 256 x 256, grey, prefiltered",
            "lbp": "58 uniform patterns x 4 x 4 cells on 128 x 128, grey, L1 and square root",
        },
    )


def _class_folders(path: Path) -> list[Path]:
    """Return the class directories; some may have no images."""
    inner = path / "101_ObjectCategories"
    folders = (inner if inner.is_dir() else path).iterdir()
    return sorted(folder for folder in folders if folder.name[0] != "." and folder.is_dir())


def _images(folder: Path) -> list[Path]:
    files = (file for file in folder.iterdir() if file.name[0] != "." and file.suffix.lower() in _SUFFIXES)
    return sorted(file for file in files if file.is_file())


def _key(part: list[Path]) -> str:
    """Return the cache key of a part."""
    files = [(image.parent.name, image.name, (stat := image.stat()).st_size, stat.st_mtime_ns) for image in part]
    return hashlib.sha256(repr((REVISION, files)).encode()).hexdigest()[:32]


def _load_part(file: Path) -> np.ndarray | None:
    """Load a cached part; return None if it is missing or damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    values, digest = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(values).digest() != digest:
        return None
    return np.frombuffer(values, np.float16).reshape(-1, sum(WIDTHS.values()))


def _describe_parts(missing: dict[Path, list[Path]], done: int) -> dict[Path, np.ndarray]:
    """Compute and cache parts on all cores; `done` is the number of images already cached."""
    workers = min(len(missing), len(available_cores()))
    context = multiprocessing.get_context("spawn")  # fork would copy locks held by threads of numerical libraries
    stop = context.Event()
    values = {}
    with (
        _progress(done, done + sum(map(len, missing.values()))) as advance,
        ProcessPoolExecutor(workers, context, _start_worker, (stop,)) as pool,
    ):
        try:
            futures = _submit(pool, missing)
            for future in as_completed(futures):
                file, rows = futures[future], future.result()
                _save_part(file, rows)
                values[file] = rows
                advance(len(rows))
        except BrokenProcessPool as error:
            first = next(part for file, part in missing.items() if file not in values)[0]
            raise RunError(
                "a worker process was killed while reading images; start the import again to continue, and if it fails "
                f"again, check the images from {first} on"
            ) from error
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return values


def _submit(pool: ProcessPoolExecutor, missing: dict[Path, list[Path]]) -> dict[Future[np.ndarray], Path]:
    """Start the workers with SIGINT blocked: a terminal sends Ctrl-C to all processes, but only this one handles it."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return {pool.submit(_describe_part, part): file for file, part in missing.items()}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_worker(stop: Event) -> None:
    global _stop
    _stop = stop
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent ends; otherwise the workers of a killed process would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _describe_part(part: list[Path]) -> np.ndarray:
    """Describe the images of a part, (images, 3424) float16, which is precise enough for values in about 0..1."""
    rows = []
    for image in part:
        if _stop.is_set():
            raise InterruptedError
        rows.append(describe(image).astype(np.float16))
    return np.stack(rows)


def _save_part(file: Path, rows: np.ndarray) -> None:
    """Write a part: its values, then their SHA-256."""
    values = rows.tobytes()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            part.write_bytes(values + hashlib.sha256(values).digest())
    except OSError as error:
        raise UserError(f"cannot write {file}: {error}; check free space and permissions") from error


@contextmanager
def _progress(done: int, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress as a bar, or as lines without a terminal; yield a function to call with the images finished."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        columns = (TextColumn("images"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("ETA"))
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task("", total=total, completed=done)
            yield lambda images: bar.advance(task, images)
        return
    throttle = Throttle(_PROGRESS_SECONDS)

    def advance(images: int) -> None:
        nonlocal done
        done += images
        if throttle.due() or done == total:
            console.print(f"images {done}/{total}", soft_wrap=True)
            throttle.reset()

    yield advance
