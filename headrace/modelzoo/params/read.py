"""A params file of the Model Zoo as plain data: anchors resolved, overrides applied, one tree for each phase."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from headrace.errors import UserError
from headrace.modelzoo.params.keys import nearest

_INIT_SECTIONS = ("model", "optimizer", "schedulers", "precision", "loop", "checkpoint", "logging", "seed", "model_dir")


def read_phases(path: Path, overrides: Sequence[str] = ()) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """The phases of a file: (where in the YAML, the tree with its sections or its `trainer`); and notes on the reading.

    Overrides are `section.key=value` with the file's own keys; numbers are places in lists. In trainer files `model.x`,
    `optimizer.x`, ... stand for `trainer.init.model.x`, ..., in every phase.
    Raises UserError: unreadable file, invalid YAML (with file:line), not a params file, an override that fits nothing.
    """
    tree, notes = read_yaml(path)
    phases = _split(tree, path)
    for override in overrides:
        _apply(tree, phases, override)
    return phases, notes


def read_yaml(path: Path) -> tuple[Any, list[str]]:
    """Plain data, and notes on keys that are given twice: the last one counts, as in the tool, whose own files have such.

    Raises UserError for an unreadable file and for YAML that is not valid, with file:line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return _parse(text, str(path))


def _parse(text: str, source: str) -> tuple[Any, list[str]]:
    loader = _Loader(text)
    try:
        tree = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source}{line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()
    return tree, [
        f"{source}:{line}: {key} is given twice; the last one counts, as in the tool" for key, line in loader.twice
    ]


class _Loader(yaml.SafeLoader):
    """SafeLoader that remembers keys given twice, of which YAML keeps the last without a word; `<<` merges."""

    def __init__(self, text: str):
        super().__init__(text)
        self.twice: list[tuple[str, int]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value != "<<":
                entry = (key_node.value, key_node.start_mark.line + 1)
                if key_node.value in seen and entry not in self.twice:
                    self.twice.append(entry)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _split(tree: Any, path: Path) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(tree, list):
        for i, entry in enumerate(tree):
            if not isinstance(entry, dict) or set(entry) != {"trainer"}:
                raise UserError(f"{path}: entry {i} of the list should be `- trainer:` and nothing beside it")
        if not tree:
            raise UserError(f"{path}: is an empty list; give at least one `- trainer:`")
        return [(f"[{i}].trainer", entry) for i, entry in enumerate(tree)]
    if not isinstance(tree, dict):
        raise UserError(f"{path}: should hold sections (train_input, model, optimizer, runconfig, or trainer)")
    if isinstance(tree.get("trainer"), list):
        return _split(tree["trainer"], path)
    return [("trainer" if "trainer" in tree else "", tree)]


def _apply(tree: Any, phases: Sequence[tuple[str, dict[str, Any]]], override: str) -> None:
    written, equals, value = override.partition("=")
    keys = [key for key in re.split(r"[.\[\]]", written) if key]
    if not equals or not keys:
        raise UserError(f"override {override!r} should look like section.key=value, e.g. model.num_hidden_layers=2")
    made, _ = _parse(value, f"override {override!r}")
    if "trainer" in phases[0][1] and keys[0] != "trainer" and not keys[0].isdigit():
        above = {"train_input": ["fit", "train_dataloader"], "eval_input": ["fit", "val_dataloader"]}.get(keys[0])
        if keys[0] in _INIT_SECTIONS:
            keys = ["trainer", "init", *keys]
        elif keys[0] in ("fit", "validate", "validate_all", "init"):
            keys = ["trainer", *keys]
        elif above:
            keys = ["trainer", *above, *keys[1:]]
        else:
            known = ("trainer", "fit", "validate", "train_input", "eval_input", *_INIT_SECTIONS)
            raise UserError(
                f"override {override!r}: unknown section{nearest(keys[0], known)} (valid: {', '.join(known)})"
            )
        for _, phase in phases:
            _set(phase, keys, made, override)
        return
    _set(tree, keys, made, override)


def _set(tree: Any, keys: list[str], value: Any, override: str) -> None:
    node = tree
    for depth, key in enumerate(keys):
        place: Any = key
        if isinstance(node, list):
            if not key.isdigit() or int(key) >= len(node):
                where = ".".join(keys[:depth]) or "the file"
                raise UserError(f"override {override!r}: {where} has entries 0 to {len(node) - 1}, not {key!r}")
            place = int(key)
        elif not isinstance(node, dict):
            raise UserError(f"override {override!r}: {'.'.join(keys[:depth])} holds a value, not a section")
        if depth == len(keys) - 1:
            node[place] = value
        else:
            if isinstance(node, dict) and not isinstance(node.get(place), dict | list):
                node[place] = {}
            node = node[place]


def task_folder(yaml_path: Path) -> Path:
    """The folder of the tool's run.py, in which its users stand: the one above `configs`."""
    for folder in yaml_path.absolute().parents:
        if folder.name == "configs":
            return folder.parent
    return yaml_path.absolute().parent


def find(written: str, yaml_path: Path) -> Path | None:
    """What a path in the file names: from here, from the task's folder, or from beside the file; None: nothing there."""
    given = Path(expand(written))
    for base in (Path(), task_folder(yaml_path), yaml_path.absolute().parent):
        if (base / given).exists():
            return base / given
    return None


def expand(written: str) -> str:
    """$MODELZOO_ROOT and other variables of the environment; those that are not set stay as they are."""
    return os.path.expandvars(os.path.expanduser(written))  # noqa: PTH111
