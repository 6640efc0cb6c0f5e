"""The tree is the architecture: a module imports only from packages to its left."""

import ast
from pathlib import Path

ORDER = [
    "errors",
    "progress",
    "run_folder",
    "sections",
    "schedule_params",
    "optimizer_params",
    "text_params",
    "data_params",
    "model_params",
    "task_params",
    "lora_params",
    "training_params",
    "params_errors",
    "params",
    "text",
    "labelled",
    "models",
    "tasks",
    "optim",
    "store",
    "streaming",
    "planning",
    "evaluation",
    "training",
    "report",
    "modelzoo",
    "cli",
]
PACKAGE = Path(__file__).resolve().parents[1] / "headrace"


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("headrace."))


def test_imports_point_one_way():
    upward = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own in ORDER:
            upward += [
                f"{path}: {own} imports {other}" for other in imports(path) if ORDER.index(other) > ORDER.index(own)
            ]
    assert not upward


def test_records_need_the_text_package_only():
    """Whoever reads the Model Zoo's records elsewhere needs neither models nor training."""
    found = {name for path in (PACKAGE / "modelzoo" / "records").glob("*.py") for name in imports(path)}
    assert found <= {"errors", "text", "modelzoo"}


def test_only_the_command_line_knows_the_model_zoo():
    outside = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("modelzoo", "cli")]
    assert not [path for path in outside if "modelzoo" in imports(path)]


def test_records_are_created_without_models_or_training():
    """Nor do the records know who creates them."""
    creating = [PACKAGE / "modelzoo/create_tfrecords.py", *(PACKAGE / "modelzoo/create").glob("*.py")]
    assert {name for path in creating for name in imports(path)} <= {"errors", "progress", "text", "modelzoo"}
    reading = (PACKAGE / "modelzoo" / "records").glob("*.py")
    assert not [path for path in reading if "modelzoo.create" in path.read_text("utf-8")]
