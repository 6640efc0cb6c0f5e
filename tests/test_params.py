"""What a user may write: every mistake gives one line that names the path, the value and what is allowed."""

import copy
from pathlib import Path

import pytest
import yaml

from headrace.errors import UserError
from headrace.params import dump_params, load_params, validate_params
from headrace.schedule_params import LinearSchedule

MINIMAL = {
    "run": {"folder": "runs/x"},
    "text": {"input": "text.txt"},
    "training": {"phases": [{"sequence_length": 128, "batch_size": 4, "steps": 10}], "learning_rate": 1e-4},
}
REMOVE = object()


def changed(path, value):
    """MINIMAL with the value at a dotted path, or without it."""
    tree = copy.deepcopy(MINIMAL)
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    node = tree
    for part in above:
        node = node[part] if isinstance(node, list) else node.setdefault(part, {})
    if value is REMOVE:
        del node[last]
    else:
        node[last] = value
    return tree


def message(tree) -> str:
    with pytest.raises(UserError) as caught:
        validate_params(tree)
    return str(caught.value)


SCHEDULE_KINDS = "should have kind: constant, linear, polynomial, cosine, exponential or piecewise"
WRONG = [
    # unknown keys: the nearest, and all that are valid
    ("run.sed", 3, "run.sed: unknown key; did you mean seed? (valid keys: folder, seed, seeds)"),
    ("trainig", {}, "trainig: unknown key; did you mean training? (valid keys: data, device, evaluation, model, run, task, "
     "text, training)"),
    ("training.phases.0.batchsize", 3, "training.phases.0.batchsize: unknown key; did you mean batch_size? (valid keys: "
     "batch_size, buckets, epochs, learning_rate, max_predictions, packing, sequence_length, steps)"),
    ("text.vocabulary.xyz", 3, "text.vocabulary.xyz: unknown key (valid keys: binning, "
     "character_coverage, extend, k, kind, load, overlapping, sample_characters, size)"),
    # missing ones
    ("run.folder", REMOVE, "run.folder: is required and not given"),
    ("text", REMOVE, "text.input: is required and not given"),
    ("training.phases.0.steps", REMOVE, "training.phases.0: steps is required and not given (tasks on `data` may have epochs "
     "instead)"),
    ("training.learning_rate", REMOVE, "training.phases.0.learning_rate: is required where training.learning_rate is "
     "not given"),
    # wrong types
    ("training.phases.0.steps", "many", "training.phases.0.steps = 'many': should be a whole number"),
    ("training.phases.0.steps", 4.5, "training.phases.0.steps = 4.5: should be a whole number"),
    ("training.phases.0.steps", True, "training.phases.0.steps = True: should not be true or false"),
    ("training.phases.0.steps", None, "training.phases.0.steps = None: should be a whole number"),
    ("training.phases", 3, "training.phases = 3: should be a list"),
    ("training.phases.0", 5, "training.phases.0 = 5: should be a section with keys of its own (batch_size, buckets, "
     "epochs, learning_rate, max_predictions, packing, sequence_length, steps)"),
    ("run", None, "run = None: should be a section with keys of its own (folder, seed, seeds)"),
    ("run.folder", 3, "run.folder = 3: should be a path"),
    ("text.input", 3, "text.input = 3: should be a list"),
    ("text.input", [3], "text.input.0 = 3: should be text"),
    ("text.lowercase", "maybe", "text.lowercase = 'maybe': should be true or false"),
    ("text.held_out", "1%", "text.held_out = '1%': should be a number"),
    ("training.optimizer.betas", 0.9, "training.optimizer.betas = 0.9: should be a list"),
    # the optimizer's kind and its keys
    ("training.optimizer.kind", "adam", "training.optimizer.kind = 'adam': should be 'adamw', 'adamw_8bit', 'adafactor' or "
     "'sgd'"),
    ("training.optimizer", {"kind": "sgd", "betas": [0.9, 0.99]}, "training.optimizer.betas = [0.9, 0.99] has no meaning for "
     "training.optimizer.kind = 'sgd'; leave it out (it belongs to adamw and adamw_8bit)"),
    ("training.optimizer", {"momentum": 0.9}, "training.optimizer.momentum = 0.9 has no meaning for training.optimizer.kind = "
     "'adamw'; leave it out (it belongs to sgd)"),
    ("training.optimizer", {"kind": "adamw_8bit", "clip_threshold": 1.0}, "training.optimizer.clip_threshold = 1.0 has no "
     "meaning for training.optimizer.kind = 'adamw_8bit'; leave it out (it belongs to adafactor)"),
    ("training.optimizer", {"kind": "adafactor", "max_gradient_norm": 1.0}, "training.optimizer.max_gradient_norm = 1.0 does "
     "not fit training.optimizer.kind = 'adafactor', which clips each parameter's update by itself (clip_threshold) and waits "
     "for no gradient norm; leave it out, or set it to null"),
    ("training.optimizer", {"kind": "adamw_8bit", "weights": "bf16"}, "training.optimizer.weights = 'bf16' does not fit "
     "training.optimizer.kind = 'adamw_8bit'; use fp32"),
    ("training.optimizer", {"kind": "sgd", "momentum": 1.0}, "training.optimizer.momentum = 1.0: should be less than 1"),
    ("training.optimizer", {"kind": "sgd", "weights": [2]}, "training.optimizer.weights = [2]: should be 'fp32', 'split_bf16' or "
     "'bf16'"),
    # not allowed
    ("training.phases.0.batch_size", 0, "training.phases.0.batch_size = 0: should be more than 0"),
    ("training.phases.0.sequence_length", 4, "training.phases.0.sequence_length = 4: should be 8 or more"),
    ("training.phases", [], "training.phases = []: should have at least 1 entry"),
    ("text.input", [], "text.input = []: name at least one file, folder or glob"),
    ("text.held_out", 1.0, "text.held_out = 1.0: should be less than 1"),
    ("model.layer_norm_eps", float("inf"), "model.layer_norm_eps = inf: should be a finite number"),
    ("model.hidden_dropout", float("nan"), "model.hidden_dropout = nan: should be a finite number"),
    ("training.optimizer.betas", [0.9, 1.0], "training.optimizer.betas.1 = 1.0: should be less than 1"),
    ("device.kind", "gpu", "device.kind = 'gpu': should be 'auto', 'cpu' or 'cuda'"),
    ("run.seed", 2**63, f"run.seed = {2**63}: should be less than 9.22337e+18"),
    ("training.phases.0.buckets", [64, 32], "training.phases.0.buckets = [64, 32]: should rise and end at or below "
     "sequence_length = 128"),
    ("training.phases.0.buckets", [64, 256], "training.phases.0.buckets = [64, 256]: should rise and end at or below "
     "sequence_length = 128"),
    ("training.phases.0.buckets", [], "training.phases.0.buckets = []: should rise and end at or below "
     "sequence_length = 128"),
    ("evaluation.fill", ["no blank"], "evaluation.fill = ['no blank']: 'no blank' should hold [MASK] exactly once"),
    # one key against another
    ("training.phases.0.sequence_length", 1024, "training.phases.0.sequence_length = 1024 is over "
     "model.max_position_embeddings = 512; lower the one or raise the other"),
    ("evaluation.sequence_length", 600, "evaluation.sequence_length = 600 is over model.max_position_embeddings = 512; "
     "lower the one or raise the other"),
    ("training.phases.0.sequence_length", 513, "training.phases.0.sequence_length = 513 is over "
     "model.max_position_embeddings = 512; lower the one or raise the other"),
    # model and task
    ("model.preset", "gpt2", "task.kind = 'masked_lm' does not fit model.preset = 'gpt2'; choose a preset that begins with "
     "bert, or another task"),
    ("task.kind", "causal_lm", "task.kind = 'causal_lm' does not fit model.preset = 'bert-mini'; choose a preset that begins "
     "with gpt, or another task"),
    ("task", {"kind": "causal_lm", "examples": "sentences"}, "task.examples = 'sentences' does not fit task.kind = "
     "'causal_lm'; use windows or rows"),
    ("task", {"examples": "windows"}, "task.examples = 'windows' does not fit task.kind = 'masked_lm'; use sentence_pairs, "
     "documents or sentences"),
    ("task", {"kind": "causal_lm", "mask_rate": 0.2}, "task.mask_rate = 0.2 has no meaning for task.kind = 'causal_lm'; leave "
     "it out"),
    ("task", {"isolate_documents": True}, "task.isolate_documents = True has no meaning for task.kind = 'masked_lm'; leave "
     "it out"),
    ("evaluation.prompts", ["a"], "evaluation.prompts has no meaning for task.kind = 'masked_lm'; leave it out"),
    ("model", {"config": {"hidden_size": 3}}, "model.config.model_type is required and not given: gpt2, llama, ..."),
    ("model", {"config": {"model_type": "llama"}, "hidden_size": 3}, "model.hidden_size and model.config exclude each other; "
     "write it inside model.config"),
    ("model", {"config": {"model_type": "llama"}, "preset": "gpt2"}, "model.preset and model.config exclude each other; "
     "write it inside model.config"),
    # schedules
    ("training.learning_rate", "fast", "training.learning_rate = 'fast': should be a number"),
    ("training.learning_rate", -1, "training.learning_rate = -1: should be 0 or more"),
    ("training.learning_rate", True, "training.learning_rate = True: should not be true or false"),
    ("training.learning_rate", {"start": 0}, f"training.learning_rate = {{'start': 0}}: {SCHEDULE_KINDS}"),
    ("training.learning_rate", {"kind": "liner"}, f"training.learning_rate = {{'kind': 'liner'}}: {SCHEDULE_KINDS}"),
    ("training.learning_rate", [3], f"training.learning_rate.0 = 3: {SCHEDULE_KINDS}"),
    ("training.learning_rate", [], "training.learning_rate = []: is an empty list; give at least one schedule"),
    ("training.learning_rate", {"kind": "constant", "value": 1, "stpes": 3}, "training.learning_rate.stpes: unknown key; "
     "did you mean steps? (valid keys: kind, steps, value)"),
    ("training.phases.0.learning_rate", [{"kind": "linear", "start": 0, "end": "x", "steps": 3}],
     "training.phases.0.learning_rate.0.end = 'x': should be a number"),
    ("training.phases.0.learning_rate", {"kind": "linear", "start": 0, "end": 1, "steps": 0},
     "training.phases.0.learning_rate.steps = 0: should be more than 0"),
    ("training.phases.0.learning_rate", {"kind": "piecewise", "boundaries": [5, 3], "values": [1, 2, 3]},
     "training.phases.0.learning_rate: boundaries = [5, 3] must rise"),
    ("training.learning_rate", [{"kind": "constant", "value": 1}, {"kind": "constant", "value": 2}],
     "training.learning_rate = [{'kind': 'constant', 'value': 1}, {'kind': 'constant', 'value': 2}]: entry 0 (constant) "
     "needs steps (how long it lasts); only the last entry may go without"),
]  # fmt: skip


@pytest.mark.parametrize("path, value, expected", WRONG, ids=[f"{path}={value!r}"[:60] for path, value, _ in WRONG])
def test_a_mistake_is_one_line_that_says_what_is_allowed(path, value, expected):
    assert message(changed(path, value)) == expected


@pytest.mark.parametrize(
    "path, value",
    [
        ("training.phases.0.packing", True),
        ("training.phases.0.buckets", [64]),
        ("training.phases.0.max_predictions", 3),
        ("evaluation.fill", ["a [MASK]"]),
        ("task.whole_words", True),
        ("task.short_example_rate", 0.2),
    ],
)
def test_keys_that_causal_lm_cannot_honour_are_refused(path, value):
    tree = changed(path, value)
    tree.setdefault("task", {})["kind"] = "causal_lm"
    tree["model"] = {"preset": "gpt2"}
    assert message(tree) == f"{path} = {value!r} has no meaning for task.kind = 'causal_lm'; leave it out"


def test_defaults_depend_on_the_preset_and_survive_a_round_trip():
    tree = changed("task", {"kind": "causal_lm"})
    for model, positions, dropout in (
        ({"preset": "gpt2"}, 1024, 0.1),
        ({"preset": "gpt3-xl"}, 2048, 0.0),
        ({"preset": "gpt-neox-20b", "max_position_embeddings": 512}, 512, 0.0),
        ({"config": {"model_type": "llama", "rope_theta": 1e4}}, None, None),
    ):
        params = validate_params({**tree, "model": model})
        assert (params.model.max_position_embeddings, params.model.hidden_dropout) == (positions, dropout)
        assert params.task.examples == "windows"
        assert params.training.optimizer.no_decay == ["bias", "norm", "Norm", "ln_"]
        assert validate_params(yaml.safe_load(dump_params(params))) == params


def test_the_optimizers_defaults_depend_on_its_kind_and_survive_a_round_trip():
    for given, weights, decay, norm, eager in (
        ({}, "fp32", 0.01, 1.0, False),
        ({"max_gradient_norm": None}, "fp32", 0.01, None, True),
        ({"weights": "split_bf16"}, "split_bf16", 0.01, 1.0, False),
        ({"kind": "adamw_8bit", "eps": 1e-8}, "fp32", 0.01, 1.0, False),
        ({"kind": "adafactor"}, "bf16", 0.0, None, True),
        ({"kind": "adafactor", "weights": "fp32", "max_gradient_norm": None}, "fp32", 0.0, None, True),
        ({"kind": "sgd", "momentum": 0.9, "weight_decay": 0.1}, "fp32", 0.1, 1.0, False),
    ):
        params = validate_params(changed("training.optimizer", given))
        found = params.training.optimizer
        assert (found.weights, found.weight_decay) == (weights, decay)
        assert (found.max_gradient_norm, found.eager) == (norm, eager)
        assert validate_params(yaml.safe_load(dump_params(params))) == params
        written = yaml.safe_load(dump_params(params))["training"]["optimizer"]
        assert ("betas" in written, "momentum" in written) == (found.kind.startswith("adamw"), found.kind == "sgd")


def test_every_mistake_is_told_at_once_one_a_line():
    tree = changed("training.phases.0.steps", 0)
    tree["run"]["sed"] = 1
    tree["text"]["input"] = 3
    assert message(tree).splitlines() == [
        "run.sed: unknown key; did you mean seed? (valid keys: folder, seed, seeds)",
        "text.input = 3: should be a list",
        "training.phases.0.steps = 0: should be more than 0",
    ]


def test_a_long_value_is_shortened():
    assert len(message(changed("device.kind", "x" * 5000))) < 200


# --- YAML


@pytest.fixture
def yaml_file(tmp_path):
    """yaml_file(text added to a valid file): its path."""

    def write(added="") -> Path:
        path = tmp_path / "p.yaml"
        path.write_text(
            "run: {folder: runs/x}\n"
            "text: {input: text.txt}\n"
            "training:\n"
            "  phases: [{sequence_length: 128, batch_size: 4, steps: 10}, {sequence_length: 512, batch_size: 2, steps: 5}]\n"
            "  learning_rate: 1e-4\n" + added,
            "utf-8",
        )
        return path

    return write


def load_message(path, *overrides) -> str:
    with pytest.raises(UserError) as caught:
        load_params(path, overrides)
    return str(caught.value)


def test_a_number_written_1e_4_is_a_number(yaml_file):
    """YAML 1.1 takes 1e-4, without a dot, for text."""
    params = load_params(yaml_file("model: {layer_norm_eps: 1e-6}\n"))
    assert params.training.learning_rate == 1e-4
    assert params.model.layer_norm_eps == 1e-6
    assert params.total_steps == 15
    assert params.text.input == ["text.txt"]


@pytest.mark.parametrize(
    "added, expected",
    [
        ("run: {folder: y}\n", ":6: not valid YAML: key 'run' is given twice"),
        ("model: {hidden_size: 3, hidden_size: 4}\n", ":6: not valid YAML: key 'hidden_size' is given twice"),
        ("model: {[a]: 3}\n", ":6: not valid YAML: a key should be a word"),
        ("  a: b: c\n", ":6: not valid YAML: mapping values are not allowed here"),
        ("\tx: 1\n", ":6: not valid YAML: found character '\\t' that cannot start any token"),
        ("x: !!python/object:os.system ls\n", ":6: not valid YAML: could not determine a constructor for the tag"),
        ("x: \0\n", ": not valid YAML: unacceptable character #x0000: special characters are not allowed"),
    ],
)
def test_wrong_yaml_is_named_by_file_and_line(yaml_file, added, expected):
    path = yaml_file(added)
    found = load_message(path)
    assert found.startswith(f"{path}{expected}") and "\n" not in found


def test_files_that_hold_no_params(tmp_path):
    assert (
        load_message(tmp_path / "none.yaml") == f"{tmp_path / 'none.yaml'}: cannot be read (No such file or directory)"
    )
    (tmp_path / "a.yaml").write_bytes("漢字".encode("shift_jis"))
    assert load_message(tmp_path / "a.yaml").endswith("is not UTF-8 text (byte 0); save it as UTF-8")
    for text in ("", "- 1\n", "words\n"):
        (tmp_path / "a.yaml").write_text(text)
        assert "should hold sections (run, text, model" in load_message(tmp_path / "a.yaml")


def test_overrides(yaml_file):
    params = load_params(
        yaml_file(),
        [
            "training.phases.1.steps=7",
            "model.hidden_size=64",
            "training.learning_rate={kind: linear, start: 0, end: 1e-3, steps: 4}",
            "text.input=[a.txt, b.txt]",
            "training.optimizer.max_gradient_norm=null",
            "text.vocabulary.kind=bpe",
        ],
    )
    assert [phase.steps for phase in params.training.phases] == [10, 7]
    assert params.model.hidden_size == 64 and params.text.input == ["a.txt", "b.txt"]
    assert params.training.learning_rate == LinearSchedule(start=0, end=1e-3, steps=4)
    assert params.training.optimizer.max_gradient_norm is None and params.text.vocabulary.kind == "bpe"
    assert load_params(yaml_file(), ["run.seed=2", "run.seed=3"]).run.seed == 3


@pytest.mark.parametrize(
    "override, expected",
    [
        ("steps", "override 'steps' should look like section.key=value, e.g. training.phases.0.steps=100"),
        ("=3", "override '=3' should look like"),
        ("run..seed=3", "override 'run..seed=3' should look like"),
        (
            "training.phases.2.steps=7",
            "override 'training.phases.2.steps=7': training.phases has entries 0 to 1, not '2'",
        ),
        ("training.phases.last.steps=7", "training.phases has entries 0 to 1, not 'last'"),
        ("run.seed=[1", "override 'run.seed=[1'"),
        ("run.sed=1", "run.sed: unknown key; did you mean seed?"),
        ("training.phases.0.batch_size=0", "training.phases.0.batch_size = 0: should be more than 0"),
        ("run.folder.x=3", "run.folder = {'x': 3}: should be a path"),
    ],
)
def test_a_bad_override_is_one_line(yaml_file, override, expected):
    found = load_message(yaml_file(), override)
    assert expected in found and "\n" not in found


def test_dumped_params_load_as_the_same(yaml_file, tmp_path):
    params = load_params(
        yaml_file(
            "model: {preset: bert-base, hidden_dropout: 0.1, layer_norm_eps: 1e-12}\n"
            + "task: {examples: documents, whole_words: true}\n"
            + "evaluation: {fill: ['私は[MASK]です。'], examples: 10}\n"
        ),
        [
            "training.phases.0.learning_rate=[{kind: linear, start: 0, end: 1e-4, steps: 3}, {kind: constant, value: 1e-5}]",
            "training.phases.1.learning_rate={kind: piecewise, boundaries: [3, 5], values: [3e-4, 2e-4, 1e-4]}",
            "training.phases.0.buckets=[32, 64, 128]",
            "training.optimizer.betas=[0.9, 0.98]",
        ],
    )
    dumped = tmp_path / "dumped.yaml"
    dumped.write_text(dump_params(params), "utf-8")
    assert load_params(dumped) == params
    assert "私は[MASK]です。" in dumped.read_text("utf-8")


def test_params_are_frozen(yaml_file):
    params = load_params(yaml_file())
    with pytest.raises(ValueError, match="frozen"):
        params.run.seed = 2


def test_the_configs_in_the_repository_are_valid():
    configs = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
    assert configs
    for path in configs:
        params = load_params(path)
        assert validate_params(params.model_dump(mode="json")) == params


def test_loss_scale_is_in_order_and_gradients_are_clipped_once():
    assert "training.loss_scale.initial = 65536 should be between" in message(
        changed("training.loss_scale", {"initial": 65536})
    )
    assert validate_params(changed("training.loss_scale", {"dynamic": False, "initial": 128.0}))
    told = message(changed("training.optimizer", {"max_gradient_value": 1.0}))
    assert told.startswith(
        "training.optimizer.max_gradient_value = 1 and training.optimizer.max_gradient_norm = 1 exclude"
    )
    assert validate_params(changed("training.optimizer", {"max_gradient_value": 1.0, "max_gradient_norm": None}))


def test_initial_distributions_may_stand_beside_a_config():
    model = {"config": {"model_type": "bert"}, "initial": {"embeddings": {"kind": "normal", "std": 0.1}}}
    assert validate_params(changed("model", model)).model.initial.embeddings.std == 0.1
    told = message(changed("model", {"initial": {"matrices": {"kind": "normal"}}}))
    assert "should have either std or scale" in told and told.startswith("model.initial.matrices")
