"""Texts, files and sizes of all figures."""

import struct

import matplotlib
from matplotlib.colors import is_color_like

from mfedpba_mpi import Run
from mfedpba_mpi.report import run_figures, style


def test_text_is_shown_literally_and_cut_with_an_ellipsis():
    assert style.label("$x$ & <b>") == r"\$x\$ & <b>"
    assert style.label("a" * 24, 24) == "a" * 24
    assert style.label("a" * 25, 24) == "a" * 23 + "…"


def test_colours_and_markers_repeat_after_the_last():
    colours = [style.colour(i) for i in range(len(style.PALETTE))]
    assert len(set(colours)) == len(colours)
    assert all(map(is_color_like, colours))
    assert style.colour(len(colours) + 1) == colours[1]
    assert style.marker(len(style.MARKERS)) == style.marker(0)


def test_a_caption_is_the_docstring_without_parameters():
    def draw():
        """One line per run.

        A band is a deviation.

        Parameters
        ----------
        runs : any.
        """

    assert style.caption_of(draw) == "One line per run. A band is a deviation."
    assert style.caption_of(lambda: None) == ""


def test_the_style_does_not_outlast_its_context():
    before = dict(matplotlib.rcParams)
    with style.styled():
        assert matplotlib.rcParams["font.size"] == 8
    assert dict(matplotlib.rcParams) == before


def test_equal_figures_give_equal_files(tmp_path):
    for name in ("one", "two"):
        figure, axes = style.new_figure()
        axes.plot([0, 1], [1, 2])
        style.add_note(figure, "100 $ of 3")
        style.save(figure, tmp_path / f"{name}.x")
        (tmp_path / f"{name}.svg").write_text(style.svg(figure))
    for suffix in ("svg", "x.png", "x.pdf"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_characters_that_no_font_has_are_drawn_without_a_warning():
    figure, axes = style.new_figure()
    axes.set_title("\U0001f9ee")
    assert style.svg(figure)


def test_a_remark_is_below_the_figure_if_there_is_one(run, changed):
    figure, _ = style.new_figure()
    style.add_remark(figure, [changed(run, attributes={"data_origin": "real"})])
    assert figure.get_supxlabel() == ""
    style.add_remark(figure, [run])
    assert figure.get_supxlabel() == "synthetic data"


def test_notebooks_display_a_figure_as_an_image(run: Run) -> None:
    image = run_figures.accuracy(run)._repr_png_()
    assert image.startswith(b"\x89PNG\r\n")
    width, _ = struct.unpack(">II", image[16:24])
    assert width == int(150 * style.COLUMN)
