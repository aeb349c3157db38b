"""A folder of images, one folder for each class, described by HOG, GIST and LBP (see `descriptors`).

::

    101_ObjectCategories/accordion/image_0001.jpg
    101_ObjectCategories/accordion/image_0002.jpg
    101_ObjectCategories/airplanes/image_0001.jpg

Classes are the folders that hold images, sorted by name, capitals first; samples are sorted by class and file name.
The folder ``101_ObjectCategories`` may also be given by the one it lies in. Hidden files, files that are no images by
their name and folders without images do not count.

All cores work on parts of a few images. A finished part is kept, under a name made of the names, sizes and times of
its images, so what has changed is described anew and what has not is described once.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mfedpba_mpi.comm.launcher import available_cores
from mfedpba_mpi.data.readers.descriptors import WIDTHS, describe
from mfedpba_mpi.data.readers.source import Source
from mfedpba_mpi.errors import RunError, UserError

FORMAT = "images: a directory with one directory of .jpg, .jpeg or .png files for each class (101_ObjectCategories)"
REVISION = 1  # of the descriptors; another number makes all parts anew

_SUFFIXES = (".jpg", ".jpeg", ".png")
_PART = 16  # images
_DIGEST = hashlib.sha256().digest_size
_QUIET_SECONDS = 15.0  # between two lines where there is no terminal
_stop: Event  # of a worker


def recognises(path: Path) -> bool:
    """A directory of directories with images."""
    try:
        return path.is_dir() and any(_images(folder) for folder in _folders(path))
    except OSError:
        return False


def read(path: Path, scratch: Path) -> Source:
    """HOG, GIST and LBP of every image, its directory its class; finished parts stay in `scratch`."""
    classes = {folder.name: images for folder in _folders(path) if (images := _images(folder))}
    parts = {
        scratch / _key(part): part
        for images in classes.values()
        for part in (images[i : i + _PART] for i in range(0, len(images), _PART))
    }
    if not parts:
        raise UserError(
            f"{path} has no folders with {', '.join(_SUFFIXES)} files: give the folder of the class folders"
        )
    values = {file: rows for file in parts if (rows := _kept(file)) is not None}
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


def _folders(path: Path) -> list[Path]:
    """The folders of a class each, and others without images."""
    inner = path / "101_ObjectCategories"
    folders = (inner if inner.is_dir() else path).iterdir()
    return sorted(folder for folder in folders if folder.name[0] != "." and folder.is_dir())


def _images(folder: Path) -> list[Path]:
    files = (file for file in folder.iterdir() if file.name[0] != "." and file.suffix.lower() in _SUFFIXES)
    return sorted(file for file in files if file.is_file())


def _key(part: list[Path]) -> str:
    files = [(image.parent.name, image.name, (stat := image.stat()).st_size, stat.st_mtime_ns) for image in part]
    return hashlib.sha256(repr((REVISION, files)).encode()).hexdigest()[:32]


def _kept(file: Path) -> np.ndarray | None:
    """A part of an earlier call, None where there is none or it is damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    values, digest = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(values).digest() != digest:
        return None
    return np.frombuffer(values, np.float16).reshape(-1, sum(WIDTHS.values()))


def _describe_parts(missing: dict[Path, list[Path]], done: int) -> dict[Path, np.ndarray]:
    """Describe and keep parts, on all cores; `done` images were there before."""
    workers = min(len(missing), len(available_cores()))
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads of numerical libraries hold
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
                _keep(file, rows)
                values[file] = rows
                advance(len(rows))
        except BrokenProcessPool as error:
            first = next(part for file, part in missing.items() if file not in values)[0]
            raise RunError(
                "a process that describes images was killed; start again to go on with the rest, and if it comes to "
                f"nothing look at the images from {first} on"
            ) from error
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return values


def _submit(pool: ProcessPoolExecutor, missing: dict[Path, list[Path]]) -> dict[Future[np.ndarray], Path]:
    """Start the workers. They inherit that Ctrl-C, which a terminal sends to all, is for this process alone."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return {pool.submit(_describe_part, part): file for file, part in missing.items()}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_worker(stop: Event) -> None:
    global _stop
    _stop = stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Workers of a killed process would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _describe_part(part: list[Path]) -> np.ndarray:
    """The images of a part, (images, 3424); float16 is enough for values about 0..1."""
    rows = []
    for image in part:
        if _stop.is_set():
            raise InterruptedError
        rows.append(describe(image).astype(np.float16))
    return np.stack(rows)


def _keep(file: Path, rows: np.ndarray) -> None:
    """Write a part: its values, and their SHA-256."""
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes((values := rows.tobytes()) + hashlib.sha256(values).digest())
        os.replace(aside, file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error}; is there room, and may you write there?") from error


@contextmanager
def _progress(done: int, total: int) -> Iterator[Callable[[int], None]]:
    """A function to be called with every number of images that are finished; shows a bar, or a line now and then."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        columns = (TextColumn("images"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("ETA"))
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task("", total=total, completed=done)
            yield lambda images: bar.advance(task, images)
        return
    spoke = time.monotonic()

    def advance(images: int) -> None:
        nonlocal done, spoke
        done += images
        if time.monotonic() - spoke > _QUIET_SECONDS or done == total:
            console.print(f"images {done}/{total}", soft_wrap=True)
            spoke = time.monotonic()

    yield advance
