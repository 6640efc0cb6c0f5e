"""The YAML of a run as frozen pydantic models: what a user may write, checked before anything runs.

    params.yaml + "section.key=value" overrides  ->  load_params  ->  Params (frozen)

A wrong key or value becomes one UserError that names the YAML path, the value, what is allowed and the nearest key.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from headrace.data_params import DataParams as DataParams
from headrace.errors import UserError
from headrace.model_params import ModelParams as ModelParams
from headrace.params_errors import explain
from headrace.sections import ByteSize, PositiveInt, Section
from headrace.sections import parse_bytes as parse_bytes
from headrace.task_params import LABELLED
from headrace.task_params import TaskParams as TaskParams
from headrace.text_params import SEQUENCE_DEFAULTS
from headrace.text_params import TextParams as TextParams
from headrace.training_params import PhaseParams as PhaseParams
from headrace.training_params import TrainingParams as TrainingParams


class RunParams(Section):
    folder: Path
    """Where everything of this run is written: tokenizer, tokens, checkpoints, model, logs and report.html."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Decides initial weights, example order, masks and dropout; the same seed gives the same numbers."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = None
    """Do the run once with each of these, in `seed-N` folders, and tell mean and deviation; tasks on `data`."""


class EvaluationParams(Section):
    every: PositiveInt | None = None
    """Optimizer steps between evaluations during training; default: at the end of each phase only."""
    examples: PositiveInt | None = None
    """How many held-out examples; default all of them."""
    sequence_length: Annotated[int, Field(ge=8)] | None = None
    """Default: that of the phase being trained, the last phase's for `headrace evaluate`."""
    mask_seed: int = 12345
    """Fixes examples and masks of the evaluation, so that figures of different checkpoints compare."""
    metric: str | None = None
    """The figure that tells the best checkpoint, which is kept as `best`; default by task, such as eval/accuracy; tasks on
    `data`."""
    patience: PositiveInt | None = None
    """Stop when so many evaluations in a row were no better than the best; tasks on `data`."""
    fill: list[str] = []
    """Sentences with one [MASK] each for which the report shows what the model fills in; masked_lm."""
    prompts: list[str] = []
    """Beginnings of texts for which the report shows how the model goes on, drawn at temperature 0.7 from the likeliest
    tokens that together hold 90 %; causal_lm."""

    @field_validator("fill")
    @classmethod
    def _one_blank_each(cls, value: list[str]) -> list[str]:
        for text in value:
            if text.count("[MASK]") != 1:
                raise ValueError(f"{text!r} should hold [MASK] exactly once")
        return value


class DeviceParams(Section):
    kind: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the forward and backward pass; auto = bf16 on a GPU that has it, else fp32. How weights
    are kept is training.optimizer.weights."""
    threads: PositiveInt | None = None
    """CPU threads; default: torch's own choice."""
    memory: ByteSize | None = None
    """Most memory training may take, in bytes or as text (8GiB, 500MiB, 8GB); what does not fit is streamed from the
    store, with the same numbers. On a CPU it is the process's memory, all but about 0.5 GiB for the interpreter and
    libraries. Default: nine tenths of what is free."""
    ram: ByteSize | None = None
    """With a GPU: most host memory for what is not on the device; default: nine tenths of what is free. On a CPU the two are
    one, and this is refused but for placement ram."""
    store: Path | None = None
    """Folder for weights and optimizer state that are streamed; a fast local disk, best the one the run folder is on,
    because then checkpoints are links to it. Default: `store` in the run folder."""
    placement: Literal["auto", "device", "ram", "disk"] = "auto"
    """Where weights and optimizer state live. auto: on the device, or as much of them as `memory` allows, beside a GPU then in
    host memory, as much as `ram` allows, and the rest on disk; device, ram, disk: all of them there. ram on a CPU copies
    as to a GPU, to a second set of slabs in the same memory: of use for tests alone."""
    activations: Literal["auto", "keep", "spill", "recompute"] = "auto"
    """What is kept of a segment's forward pass for its backward pass: everything; everything, on disk; or the input alone.
    auto: the first of these that fits."""
    prefetch: PositiveInt = 1
    """How many segments ahead of the computation are fetched."""


class Params(Section):
    run: RunParams
    text: TextParams = TextParams()
    data: DataParams | None = None
    model: ModelParams = ModelParams()
    task: TaskParams = TaskParams()
    training: TrainingParams
    evaluation: EvaluationParams = EvaluationParams()
    device: DeviceParams = DeviceParams()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_task(cls, given: Any) -> Any:
        """BERT calls its norms LayerNorm; the GPTs have other names for them. With data, causal_lm reads rows."""
        if not isinstance(given, dict) or not isinstance(task := given.get("task"), dict):
            return given
        if task.get("kind") != "causal_lm":
            return given
        if given.get("data") is not None:
            given = {**given, "task": {"examples": "rows", **task}}
        training = given.get("training")
        if not isinstance(training, dict) or not isinstance(optimizer := training.get("optimizer", {}), dict):
            return given  # not even sections: told below
        if "no_decay" in optimizer:
            return given
        optimizer = {**optimizer, "no_decay": ["bias", "norm", "Norm", "ln_"]}
        return {**given, "training": {**training, "optimizer": optimizer}}

    @model_validator(mode="after")
    def _text_or_data(self) -> "Params":
        kind = self.task.kind
        if self.data is None:
            if kind in LABELLED:
                raise ValueError(f"data is required for task.kind = {kind!r} and not given: it names the labelled rows")
            if not self.text.input:
                given = "input" in self.text.model_fields_set
                raise ValueError(
                    "text.input = []: name at least one file, folder or glob"
                    if given
                    else "text.input: is required and not given"
                )
            for i, phase in enumerate(self.training.phases):
                if not phase.steps:
                    raise ValueError(
                        f"training.phases.{i}.steps: is required and not given (epochs are for tasks on data)"
                    )
                if phase.learning_rate is None and self.training.learning_rate is None:
                    raise ValueError(
                        f"training.phases.{i}.learning_rate: is required where training.learning_rate is not given"
                    )
            beside = {
                "evaluation.metric": self.evaluation.metric,
                "evaluation.patience": self.evaluation.patience,
                "run.seeds": self.run.seeds,
                "training.peak_learning_rate": self.training.peak_learning_rate,
            }
        else:
            if kind == "masked_lm":
                raise ValueError(
                    "data has no meaning for task.kind = 'masked_lm', which learns from text; choose another task"
                )
            if self.data.labels and len(self.data.labels) < 2 and kind != "token_classification":
                raise ValueError(f"data.labels = {self.data.labels!r}: should name at least two labels")
            beside = {"text.input": self.text.input}
        for path, value in beside.items():
            if value:
                what = "without data" if self.data is None else f"for task.kind = {kind!r} on data"
                raise ValueError(f"{path} = {value!r} has no meaning {what}; leave it out")
        return self

    @model_validator(mode="after")
    def _vocabulary_of_the_model(self) -> "Params":
        vocabulary = self.text.vocabulary
        if self.model.init_from is not None and vocabulary.load is None:
            fields = type(vocabulary).model_fields
            made = [
                name
                for name in ("kind", "size", "sample_characters", "character_coverage")
                if getattr(vocabulary, name) != fields[name].default
            ]
            if made:
                raise ValueError(
                    f"text.vocabulary.{made[0]} = {getattr(vocabulary, made[0])!r}: model.init_from = "
                    f"{str(self.model.init_from)!r} has a vocabulary of its own, and its weights mean nothing with another; "
                    f"leave text.vocabulary out"
                )
        if vocabulary.extend and vocabulary.load is None and self.model.init_from is None:
            raise ValueError(
                f"text.vocabulary.extend = {vocabulary.extend} extends a vocabulary that exists, and neither text.vocabulary.load "
                f"nor model.init_from is given; name a tokenizer, or raise text.vocabulary.size instead"
            )
        if self.data is not None and self.model.init_from is None and vocabulary.load is None:
            raise ValueError(
                "text.vocabulary.load: is required for tasks on data where model.init_from is not given (labelled rows are "
                "too little to make a vocabulary of)"
            )
        return self

    @model_validator(mode="after")
    def _lora_has_weights_to_go_on(self) -> "Params":
        if self.training.lora is not None and self.model.init_from is None:
            raise ValueError(
                "training.lora trains beside weights that stay as they are, and this run has none to start from; give a "
                "model folder in model.init_from, or leave training.lora out"
            )
        return self

    @model_validator(mode="after")
    def _lengths_fit_the_model(self) -> "Params":
        positions = self.model.max_position_embeddings
        if positions is None:  # that of model.config is known where the config is made
            return self
        lengths = {
            f"training.phases.{i}.sequence_length": p.sequence_length for i, p in enumerate(self.training.phases)
        }
        if self.evaluation.sequence_length is not None:
            lengths["evaluation.sequence_length"] = self.evaluation.sequence_length
        for path, length in lengths.items():
            if length > positions:
                raise ValueError(
                    f"{path} = {length} is over model.max_position_embeddings = {positions}; "
                    f"lower the one or raise the other"
                )
        return self

    @model_validator(mode="after")
    def _sequences_are_no_prose(self) -> "Params":
        if self.text.language not in SEQUENCE_DEFAULTS:
            return self
        if self.task.examples == "sentence_pairs":
            raise ValueError(
                f"task.examples = 'sentence_pairs' has no meaning for text.language = {self.text.language!r}, which has no "
                "sentences; use documents, or task.kind = causal_lm"
            )
        if self.task.whole_words:
            raise ValueError(
                f"task.whole_words = True has no meaning for text.language = {self.text.language!r}; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _model_and_keys_fit_the_task(self) -> "Params":
        fitting = {"masked_lm": "bert", "causal_lm": "gpt"}.get(self.task.kind, "")
        if self.model.preset is not None and not self.model.preset.startswith(fitting):
            raise ValueError(
                f"task.kind = {self.task.kind!r} does not fit model.preset = {self.model.preset!r}; choose a preset that "
                f"begins with {fitting}, or another task"
            )
        if self.task.kind != "causal_lm" and self.evaluation.prompts:
            raise ValueError(f"evaluation.prompts has no meaning for task.kind = {self.task.kind!r}; leave it out")
        if self.task.kind == "masked_lm":
            return self
        given: dict[str, Any] = {
            f"training.phases.{i}.{name}": getattr(phase, name)
            for i, phase in enumerate(self.training.phases)
            for name in ("max_predictions", "packing", "buckets")
        }
        given["evaluation.fill"] = self.evaluation.fill or None
        for path, value in given.items():
            if value is not None:
                raise ValueError(f"{path} = {value!r} has no meaning for task.kind = {self.task.kind!r}; leave it out")
        return self

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.training.phases)


def load_params(path: Path, overrides: Sequence[str] = ()) -> Params:
    """Read a YAML file, apply `section.key=value` overrides (values are YAML) and check everything.

    Raises UserError: unreadable file, invalid YAML (with file:line), unknown key, value not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    tree = _parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise UserError(
            f"{path}: should hold sections (run, text, model, task, training, evaluation, device; data in place of text)"
        )
    for override in overrides:
        apply_override(tree, override)
    return validate_params(tree)


def validate_params(tree: dict[str, Any]) -> Params:
    """Params from plain data; raises UserError with one line for each thing that is wrong."""
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        raise UserError("\n".join(dict.fromkeys(explain(problem, Params) for problem in error.errors()))) from None


def dump_params(params: Params) -> str:
    """The resolved params as YAML that `load_params` reads back to the same Params."""
    return yaml.safe_dump(params.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where plain YAML keeps the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key should be a word", key_node.start_mark)
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source}{line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from None


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Change plain data by `section.key=value`, the value being YAML; raises UserError where it fits nothing."""
    path, equals, value = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise UserError(f"override {override!r} should look like section.key=value, e.g. training.phases.0.steps=100")
    node: Any = tree
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(node, list):
            if not key.isdigit() or int(key) >= len(node):
                raise UserError(
                    f"override {override!r}: {'.'.join(keys[:depth])} has entries 0 to {len(node) - 1}, not {key!r}"
                )
            index: Any = int(key)
        elif isinstance(node, dict):
            index = key
            if not last and not isinstance(node.get(key), dict | list):
                node[key] = {}
        else:
            raise UserError(f"override {override!r}: {'.'.join(keys[:depth])} holds a value, not a section")
        if last:
            node[index] = _parse_yaml(value, f"override {override!r}")
        else:
            node = node[index]
