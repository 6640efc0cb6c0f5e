"""Documentation that stays true: links resolve, the reference is the code's, the configs and the README's YAML load."""

import re
from pathlib import Path

import pytest
import yaml

from headrace.cli.reference import reference
from headrace.params import load_params, validate_params

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def test_every_page_is_listed_in_the_index():
    index = (ROOT / "docs/README.md").read_text("utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in index] == ["README.md"]


def test_the_params_page_is_the_codes():
    assert (ROOT / "docs/params.md").read_text("utf-8") == reference(), "run: headrace params > docs/params.md"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_load(path):
    assert all(phase.steps or phase.epochs for phase in load_params(path).training.phases)


def test_the_readmes_yaml_loads():
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert validate_params(yaml.safe_load(block)).total_steps == 10_000


def test_the_readmes_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert set(re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text("utf-8"), re.M)) <= targets
