"""What the documentation says: its Python runs, its commands have these options, its links lead somewhere."""

import re
import shlex
import shutil
from pathlib import Path

import click
import matplotlib.pyplot as plt
import pytest

from mfedpba_mpi.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (
        *ROOT.glob("*.md"),
        *(path for room in ("docs", "data", "jobs", "examples") for path in (ROOT / room).rglob("*.md")),
    )
)


def blocks(page, language):
    """The pieces of code of a page."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


@pytest.mark.filterwarnings("ignore::mfedpba_mpi.errors.SyntheticDataWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=str)
def test_the_python_of_a_page_runs(page, made, tmp_path, monkeypatch):
    """One block after the other, where runs of these names are; runs of its own are cut to one round."""
    text = "\n".join(blocks(page, "python")).replace("rounds=20", "rounds=1")
    for name in re.findall(r'(?<!out=")runs/[\w/-]+', text):
        shutil.copytree(made().path.parent, tmp_path / name, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec(text, {})
    plt.close("all")


def command_lines(page):
    """The words after `mfedpba-mpi` of each command of a page."""
    for line in "".join(blocks(page, "")).replace("\\\n", " ").splitlines():
        before, _, after = line.partition("mfedpba-mpi ")
        words = shlex.split(re.split("[|>&]", after)[0], comments=True)
        if words and not re.search("[\"'`:]", before):  # else a program prints it
            yield words


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_commands_of_a_page_have_these_options(page):
    for words in command_lines(page):
        command = cli
        while isinstance(command, click.Group):
            name = words.pop(0) if words[0] in command.commands else "run"
            command = command.commands[name]
        command.make_parser(click.Context(command)).parse_args(words)  # raises what a user would be told


def test_what_envs_run_tells_open_mpi_is_said_to_those_who_install_without_it():
    script, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("envs/run", "docs/usage.md"))
    told = re.findall(r"^    default (\w+) (\S+)", script, flags=re.MULTILINE)
    assert len(told) == 8
    assert [f"{name}={value}" for name, value in told if f"{name}={value}" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_links_of_a_page_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in link:
            assert (ROOT / page).parent.joinpath(link).exists(), link
