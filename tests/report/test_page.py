"""The page: the contents of the file, and its behaviour in a real browser."""

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from mfedpba_mpi.records.tables import NumberText
from mfedpba_mpi.report import style
from mfedpba_mpi.report.page import Page
from tests.records.test_tables import HOSTILE, MEAN
from tests.report.browser import Browser, Tab, unavailable

LONG = "a-client-whose-name-has-no-end-" * 6
VOID = {"meta", "link", "img"}


def drawing(width: float = style.COLUMN) -> Figure:
    with style.styled():
        figure, axes = style.new_figure(width)
        axes.plot([0, 1], [1, width], label=style.label("<b>&$"))
        axes.legend()
    return figure


def example() -> Page:
    """A page with every kind of part, and with hostile names."""
    page = Page(f"Title {HOSTILE}", f"subtitle {HOSTILE}", remark=f"synthetic data {HOSTILE}")
    page.text("Before the first heading.")
    page.section("Summary")
    page.text(f"Text {HOSTILE}")
    page.facts({"clients": 6, f"name {HOSTILE}": f"value {HOSTILE}", "path": "/deep" * 60, "ended": None})
    page.figure("narrow", f"Narrow {HOSTILE}", drawing(), f"caption {HOSTILE}")
    page.figure("wide", "Wide", drawing(style.PAGE))
    page.section(f"Tables {HOSTILE}")
    rows = [
        ["A", MEAN, 10],
        ["B", NumberText("8.5 ± 0.4 (1 failed)", 8.5, 0.4), 9],
        ["C", "failed", None],
        ["D", "100.00", -1.5],
        ["E", "–", 2e-3],
    ]
    page.table("methods", f"Methods {HOSTILE}", ["method", "accuracy", "n"], rows, {(3, 1): 1, (0, 1): 2}, "caption")
    page.table("names", "Names", ["name", f"column {HOSTILE}"], [[HOSTILE, LONG], [LONG, HOSTILE]])
    page.section(LONG)
    values = np.linspace(0, 1, 102 * 20).reshape(102, 20).round(3)
    headers = ["class", *(f"client {i}" for i in range(20))]
    page.table("classes", "Classes", headers, [[f"class {i}", *row] for i, row in enumerate(values)])
    return page


class Reader(HTMLParser):
    """The elements and texts of a page. Every end tag must close the innermost open element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        self.open.extend([] if tag in VOID else [tag])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


# ---- the file


@pytest.fixture(scope="module")
def page() -> Page:
    """The example page."""
    return example()


@pytest.fixture(scope="module")
def reader(page: Page) -> Reader:
    """The example page, parsed."""
    return Reader(page.html())


def test_the_page_is_well_formed_and_has_one_script_whatever_the_names(reader: Reader) -> None:
    assert len(reader.all("script")) == 1
    assert len(reader.all("img")) == 2
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]


def test_hostile_text_is_text_everywhere(reader: Reader) -> None:
    for kind in (
        "Title",
        "subtitle",
        "synthetic data",
        "Text",
        "name",
        "value",
        "Narrow",
        "caption",
        "Tables",
        "column",
    ):
        assert f"{kind} {HOSTILE}" in reader.texts
    assert HOSTILE in reader.texts


def test_the_policy_forbids_everything_but_the_page_itself(reader: Reader) -> None:
    (policy,) = (meta["content"] for meta in reader.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")


def test_the_page_refers_to_no_other_address(page: Page, reader: Reader) -> None:
    sources = [a[name] for _, a in reader.elements for name in ("src", "href") if name in a]
    assert all(re.match(r"data:|#|figures/|tables/", source) for source in sources)
    assert not re.search(r"@import|url\(", page.html())


def test_every_link_inside_the_page_has_a_target(reader: Reader) -> None:
    targets = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    links = [a["href"][1:] for a in reader.all("a") if a["href"].startswith("#")]
    assert len(set(targets)) == len(targets)
    assert len(links) == 3 + 5
    assert set(links) < set(targets)


def test_every_file_the_page_links_to_is_written(page: Page, tmp_path: Path) -> None:
    page.write(tmp_path / "index.html")
    page.write_files(tmp_path)
    names = {a["href"] for a in Reader((tmp_path / "index.html").read_text("utf-8")).all("a") if a["href"][0] != "#"}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == names | {"index.html"}


def test_the_same_contents_make_the_same_page(page: Page) -> None:
    assert page.html() == example().html()


@pytest.mark.parametrize("code", [0x0, 0x1B, 0x85, 0x200F, 0x202E, 0x2066, 0xDC80])
def test_invisible_characters_are_shown_by_their_number(code: int, tmp_path: Path) -> None:
    page = Page(f"a{chr(code)}b")
    page.table("names", "Names", ["name"], [[f"a{chr(code)}b"]])
    page.write(tmp_path / "index.html")
    page.write_files(tmp_path)
    shown = f"a\\u{code:04x}b"
    assert Reader((tmp_path / "index.html").read_text("utf-8")).texts.count(shown) == 3  # title, heading, cell
    assert shown in (tmp_path / "tables/names.csv").read_text("utf-8")


@pytest.mark.parametrize("name", ["", "../up", "a b", "<b>", ".hidden"])
def test_a_name_that_is_not_a_file_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="does not name a file"):
        Page("").table(name, "", ["a"], [])


def test_names_must_be_unique() -> None:
    page = Page("")
    page.table("a", "", ["x"], [])
    with pytest.raises(ValueError, match="already on the page"):
        page.table("a", "", ["x"], [])


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium. Tests that need it are skipped if it is neither installed nor installable."""
    if reason := unavailable():
        pytest.skip(reason)
    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def file(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example on disk."""
    path = tmp_path_factory.mktemp("page") / "index.html"
    page.write(path)
    return path


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Callable[..., Tab]]:
    """A function that opens the example page; keyword arguments are those of `Browser.open`."""
    tabs = []

    def open_it(**options: int) -> Tab:
        tabs.append(browser.open(file, **options))
        return tabs[-1]

    yield open_it
    for tab in tabs:
        tab.close()


def column(tab: Tab, table: str, i: int) -> list[str]:
    """The texts of a column, in their current order."""
    return tab.run(f"[...document.querySelectorAll('#table-{table} tbody tr')].map(row => row.cells[{i}].textContent)")


def sorting(tab: Tab, table: str) -> list[str]:
    return tab.run(f"[...document.querySelectorAll('#table-{table} thead th')].map(head => head.ariaSort)")


def test_the_page_makes_no_requests_and_logs_no_errors(opened: Callable[..., Tab]) -> None:
    tab = opened()
    assert [url for url in tab.requests() if not url.startswith("data:")] == [tab.url]
    assert tab.messages() == []


def test_the_browser_records_requests_and_errors(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text("<!DOCTYPE html><img src=missing.png><script>throw Error()</script>")
    tab = browser.open(tmp_path / "bad.html")
    assert tab.requests() == [tab.url, (tmp_path / "missing.png").as_uri()]
    assert tab.messages()
    tab.close()


def test_the_policy_blocks_scripts_and_images_added_later(opened: Callable[..., Tab]) -> None:
    tab = opened()
    blocked = tab.run(
        """new Promise(resolve => {
            const blocked = [];
            document.addEventListener("securitypolicyviolation", event => {
                blocked.push(event.effectiveDirective);
                if (blocked.length === 2) resolve(blocked.sort());
            });
            const script = document.createElement("script");
            script.textContent = "window.broken = 1";
            const image = document.createElement("img");
            image.src = "http://127.0.0.1:9/x.png";
            document.body.append(script, image);
        })"""
    )
    assert blocked == ["img-src", "script-src-elem"]
    assert tab.run("window.broken") is None


def test_hostile_names_are_shown_as_text(opened: Callable[..., Tab]) -> None:
    tab = opened()
    assert tab.run("window.broken") is None
    assert tab.run("document.title") == f"Title {HOSTILE}"
    assert column(tab, "names", 0) == [HOSTILE, LONG]


@pytest.mark.parametrize("width", [1400, 1280, 768, 360])
def test_figures_are_visible_and_nothing_is_wider_than_the_window(width: int, opened: Callable[..., Tab]) -> None:
    tab = opened(width=width)
    images = tab.run(
        "[...document.images].map(image =>"
        " [image.complete && image.naturalWidth, image.clientWidth, image.clientHeight, image.checkVisibility()])"
    )
    assert len(images) == 2
    for natural, shown_width, shown_height, visible in images:
        assert natural > 0
        assert shown_width > 200
        assert shown_height > 100
        assert visible
    outside = tab.run(
        """[...document.querySelectorAll("body *")].filter(element => {
            const box = element.parentElement.closest(".box");  // a box scrolls its content
            const { left, right } = element.getBoundingClientRect();
            return !box && (left < 0 || right > innerWidth + 0.5);
        }).map(element => element.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    assert tab.run("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(
    ("i", "ascending", "descending"),
    [(0, "ABCDE", "EDCBA"), (1, "BADCE", "DABCE"), (2, "DEBAC", "ABEDC")],
    ids=["text", "means", "numbers"],
)
def test_clicks_sort_ascending_descending_and_not_at_all(
    i: int, ascending: str, descending: str, opened: Callable[..., Tab]
) -> None:
    tab = opened()
    seen = []
    for _ in range(3):
        tab.click(f"#table-methods thead th:nth-child({i + 1}) button")
        seen.append(("".join(column(tab, "methods", 0)), sorting(tab, "methods")[i]))
    assert seen == [(ascending, "ascending"), (descending, "descending"), ("ABCDE", "none")]


@pytest.mark.parametrize("key", ["Enter", " "])
def test_keys_sort(key: str, opened: Callable[..., Tab]) -> None:
    tab = opened()
    tab.run("document.querySelector('#table-methods .box').focus()")
    tab.press("Tab")
    tab.press("Tab")  # the second header
    seen = []
    for _ in range(3):
        tab.press(key)
        seen.append("".join(column(tab, "methods", 0)))
    assert seen == ["BADCE", "DABCE", "ABCDE"]


def test_only_one_column_is_sorted_by(opened: Callable[..., Tab]) -> None:
    tab = opened()
    for i in (1, 3):
        tab.click(f"#table-methods thead th:nth-child({i}) button")
    assert sorting(tab, "methods") == ["none", "none", "ascending"]


def test_numbers_in_names_sort_by_value(opened: Callable[..., Tab]) -> None:
    tab = opened()
    for _ in range(2):
        tab.click("#table-classes thead th:first-child button")
    assert column(tab, "classes", 0) == [f"class {i}" for i in reversed(range(102))]


def test_the_best_is_bold_and_the_second_underlined(opened: Callable[..., Tab]) -> None:
    tab = opened()
    assert tab.run("[...document.querySelectorAll('td b')].map(e => e.textContent)") == ["100.00"]
    assert tab.run("[...document.querySelectorAll('td u')].map(e => e.textContent)") == ["49.04 ± 0.21"]


def test_headers_and_row_names_stay_visible_when_scrolling(opened: Callable[..., Tab]) -> None:
    tab = opened(width=360)
    corner = "(r => [r.x, r.y])(document.querySelector('#table-classes thead th').getBoundingClientRect())"
    tab.run("document.querySelector('#table-classes').scrollIntoView()")
    before = tab.run(corner)
    moved = tab.run(
        "(box => { box.scrollTo(200, 500); return [box.scrollLeft, box.scrollTop] })"
        "(document.querySelector('#table-classes .box'))"
    )
    assert moved == [200, 500]
    assert tab.run(corner) == before


def test_the_dark_scheme_is_dark_except_for_figures(opened: Callable[..., Tab]) -> None:
    def shade(tab: Tab, selector: str) -> float:
        rgb = tab.run(f"getComputedStyle(document.querySelector({json.dumps(selector)})).backgroundColor")
        return float(np.mean([int(x) for x in re.findall(r"\d+", rgb)[:3]]))

    light, dark = opened(), opened(dark=True)
    assert shade(light, "body") == 255
    assert shade(dark, "body") < 40
    assert shade(dark, ".card") == 255


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_sufficient_contrast(dark: bool, opened: Callable[..., Tab]) -> None:
    names = ("ink", "faint", "link", "warn-ink")
    tab = opened(dark=dark)

    def luminance(name: str) -> float:
        value = tab.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')").strip()
        c = np.array([int(value[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        return float(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    for name in names:  # WCAG 2, level AA
        grounds = ("warn",) if name == "warn-ink" else ("paper", "shade")
        for ground in grounds:
            low, high = sorted([luminance(name), luminance(ground)])
            assert (high + 0.05) / (low + 0.05) >= 4.5


def test_print_shows_full_tables_on_white_without_the_table_of_contents(opened: Callable[..., Tab]) -> None:
    tab = opened(dark=True)
    tab.emulate("dark", media="print")
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.run("(b => b.clientHeight >= b.firstChild.offsetHeight)(document.querySelector('#table-classes .box'))")
