"""The YAML of a run as frozen pydantic models: what a user may write, checked before anything runs.

    params.yaml + "section.key=value" overrides  ->  load_params  ->  Params (frozen)

A wrong key or value becomes one UserError that names the YAML path, the value, what is allowed and the nearest key.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from headrace.errors import UserError
from headrace.optimizer_params import OptimizerParams
from headrace.schedule_params import Schedule
from headrace.sections import BelowOne, ByteSize, Fraction, NonNegativeInt, PositiveInt, Section
from headrace.sections import parse_bytes as parse_bytes


class RunParams(Section):
    folder: Path
    """Where everything of this run is written: tokenizer, tokens, checkpoints, model, logs and report.html."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Decides initial weights, example order, masks and dropout; the same seed gives the same numbers."""


class VocabularyParams(Section):
    kind: Literal["unigram", "bpe", "wordpiece_mecab", "wordpiece", "character", "byte"] = "unigram"
    """What to train: SentencePiece unigram or BPE; WordPiece over MeCab words or over whitespace; characters; bytes."""
    size: PositiveInt = 8000
    """Number of entries, the five special tokens included (ignored for `byte`)."""
    sample_characters: PositiveInt = 10_000_000
    """The vocabulary is trained on a seeded sample of at most this many characters."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 0.9995
    """Share of character occurrences that get an entry of their own; rarer characters become [UNK]."""
    load: Path | None = None
    """Use this vocabulary instead of training one: a Hugging Face tokenizer folder, a SentencePiece .model or a BERT
    vocab.txt."""


class TextParams(Section):
    input: list[str]
    """Files, folders or globs of raw text."""
    format: Literal[
        "auto",
        "sentence_per_line",
        "document_per_line",
        "document_per_block",
        "document_per_file",
        "jsonl",
        "parquet",
        "wikiextractor",
        "mediawiki",
    ] = "auto"
    """How documents lie in the files; `auto` detects it and prints what it found."""
    encoding: str = "auto"
    """Character encoding; `auto` detects UTF-8, UTF-16, Shift-JIS and EUC-JP."""
    invalid_bytes: Literal["strict", "replace", "skip"] = "strict"
    """Bytes that are not text in the encoding: stop, put U+FFFD, or drop the line (counted)."""
    text_field: str = "text"
    """The field of a JSONL record or column of a Parquet file that holds the text."""
    language: Literal["ja", "en"] = "ja"
    """Rules for sentence ends and words."""
    unicode: Literal["none", "nfc", "nfkc"] = "nfkc"
    """Unicode normalisation of all text. nfkc: ｶﾞ becomes ガ, ㈱ becomes (株), U+3000 becomes a space."""
    lowercase: bool = False
    """Lower-case all text."""
    strip_accents: bool = False
    """Remove accents from Latin letters; Japanese voicing marks always stay."""
    held_out: BelowOne = 0.01
    """Share of documents kept for evaluation, chosen by a hash of their text; they never train."""
    words: Literal["auto", "mecab", "whitespace"] = "auto"
    """What a word is for whole-word masking: MeCab words, runs between spaces, or by language (`auto`)."""
    workers: NonNegativeInt = 0
    """Processes that tokenize; 0 = one per CPU core."""
    vocabulary: VocabularyParams = VocabularyParams()

    @field_validator("input", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("input")
    @classmethod
    def _at_least_one(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("name at least one file, folder or glob")
        return value


# What a preset's name begins with -> the values of keys that are not given: BERT's, GPT-2's, and GPT-3's, which GPT-J and
# GPT-NeoX took over (none of the three papers uses dropout).
_GPT3_DEFAULTS = {
    "max_position_embeddings": 2048,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "layer_norm_eps": 1e-5,
    "initializer_range": 0.02,
}
MODEL_DEFAULTS: dict[str, dict[str, float]] = {
    "bert": {
        "max_position_embeddings": 512,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    },
    "gpt2": {**_GPT3_DEFAULTS, "max_position_embeddings": 1024, "hidden_dropout": 0.1, "attention_dropout": 0.1},
    "gpt": _GPT3_DEFAULTS,
}


class ModelParams(Section):
    preset: (
        Literal[
            "bert-tiny",
            "bert-mini",
            "bert-small",
            "bert-medium",
            "bert-base",
            "bert-large",
            "gpt2-tiny",
            "gpt2-mini",
            "gpt2",
            "gpt2-medium",
            "gpt2-large",
            "gpt2-xl",
            "gpt3-xl",
            "gpt3-2.7b",
            "gpt3-6.7b",
            "gpt3-13b",
            "gpt-j-6b",
            "gpt-neox-20b",
        ]
        | None
    ) = "bert-mini"
    """A named size; each key below overrides one of its values. bert-* go with the task masked_lm, gpt* with causal_lm."""
    config: dict[str, Any] | None = None
    """Instead of a preset and the keys below: any model of transformers, by the keys of its config.json, such as
    `{model_type: llama, hidden_size: 512, ...}`. The vocabulary's size and special tokens are filled in."""
    hidden_size: PositiveInt | None = None
    """Width of the model; a multiple of num_attention_heads."""
    num_hidden_layers: PositiveInt | None = None
    num_attention_heads: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    """Width of the feed-forward layers; 4 x hidden_size when hidden_size is given and this is not."""
    max_position_embeddings: PositiveInt | None = None
    """The longest sequence the model can read; default: 512 for bert-*, 1024 for gpt2*, else 2048."""
    hidden_dropout: BelowOne | None = None
    """After the embeddings and each half of a layer; default: 0.1 for bert-* and gpt2*, else 0."""
    attention_dropout: BelowOne | None = None
    """Of attention weights; default: as hidden_dropout's."""
    layer_norm_eps: Annotated[float, Field(gt=0.0)] | None = None
    """Default: 1e-12 for bert-*, else 1e-5."""
    initializer_range: Annotated[float, Field(gt=0.0)] | None = None
    """Standard deviation of the initial weights; default: 0.02."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        filled = {key: value for key, value in given.items() if value is not None}
        if "config" in filled:
            return {"preset": None, **filled}
        preset = str(filled.get("preset", cls.model_fields["preset"].default))
        family = next((name for name in MODEL_DEFAULTS if preset.startswith(name)), None)
        return {**MODEL_DEFAULTS[family], **filled} if family else given

    @model_validator(mode="after")
    def _config_or_preset(self) -> "ModelParams":
        if self.config is None:
            return self
        beside = [name for name in type(self).model_fields if name != "config" and getattr(self, name) is not None]
        if beside:
            raise ValueError(f"model.{beside[0]} and model.config exclude each other; write it inside model.config")
        if not isinstance(self.config.get("model_type"), str):
            raise ValueError("model.config.model_type is required and not given: gpt2, llama, ...")
        return self

    @property
    def name(self) -> str:
        """What was chosen, for people."""
        return self.preset if self.config is None else str(self.config["model_type"])  # pyright: ignore


class TaskParams(Section):
    kind: Literal["masked_lm", "causal_lm"] = "masked_lm"
    """masked_lm: BERT pretraining, with next-sentence prediction when examples are sentence pairs; causal_lm: GPT
    pretraining, every token from those before it."""
    examples: Literal["sentence_pairs", "documents", "sentences", "windows"] = "sentence_pairs"
    """For masked_lm, sentence_pairs (its default): BERT's A/B pairs with next-sentence prediction; documents: consecutive
    sentences of one document up to the sequence length; sentences: each sentence alone. For causal_lm, windows (its
    default): documents in random order, one after the other, cut every sequence_length tokens."""
    isolate_documents: bool = False
    """causal_lm: documents in one window do not see each other, and positions restart in each (GPT-3 lets them)."""
    mask_rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of an example's tokens that are predicted; masked_lm."""
    whole_words: bool = False
    """Choose whole words to predict, never parts of them (`text.words` says what a word is); masked_lm."""
    short_example_rate: Fraction = 0.1
    """Share of examples made shorter than the sequence length on purpose (BERT's short_seq_prob); sentence_pairs and
    documents."""

    @model_validator(mode="before")
    @classmethod
    def _examples_of_the_kind(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("examples") is not None:
            return given
        return {**given, "examples": "windows" if given.get("kind") == "causal_lm" else "sentence_pairs"}

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> "TaskParams":
        if (self.examples == "windows") != (self.kind == "causal_lm"):
            allowed = "windows" if self.kind == "causal_lm" else "sentence_pairs, documents or sentences"
            raise ValueError(f"task.examples = {self.examples!r} does not fit task.kind = {self.kind!r}; use {allowed}")
        others = {"masked_lm": ("isolate_documents",), "causal_lm": ("mask_rate", "whole_words", "short_example_rate")}
        for name in others[self.kind]:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(f"task.{name} = {value!r} has no meaning for task.kind = {self.kind!r}; leave it out")
        return self


class PhaseParams(Section):
    sequence_length: Annotated[int, Field(ge=8)]
    """Longest example in tokens, special tokens included."""
    batch_size: PositiveInt
    """Sequences (examples) per optimizer step; split into microbatches automatically, with the same result."""
    steps: PositiveInt
    """Optimizer steps of this phase."""
    max_predictions: PositiveInt | None = None
    """Most tokens predicted in one example; default mask_rate x sequence_length, rounded up."""
    learning_rate: Schedule | None = None
    """Schedule on the steps of this phase; without it `training.learning_rate` goes on, on the run's steps."""
    packing: bool | None = None
    """Lay several short examples in one row, isolated from each other; the numbers do not change, only the speed.
    Default: in each batch, whichever costs less."""
    buckets: list[PositiveInt] | None = None
    """Row lengths to pad to; default: to the longest row of the microbatch. The numbers do not change."""

    @field_validator("buckets")
    @classmethod
    def _buckets_fit(cls, value: list[int] | None, info: ValidationInfo) -> list[int] | None:
        length = info.data.get("sequence_length", 0)  # missing when that key is wrong itself, which is reported
        if value is not None and length and (not value or sorted(set(value)) != value or value[-1] > length):
            raise ValueError(f"should rise and end at or below sequence_length = {length}")
        return value


class TrainingParams(Section):
    phases: Annotated[list[PhaseParams], Field(min_length=1)]
    learning_rate: Schedule | None = None
    """Schedule on the steps of the whole run, for phases that have none of their own."""
    schedule_clock: Literal["in_sequence", "global_step"] = "in_sequence"
    """A list of schedules: each piece counts from its own start (in_sequence) or from the schedule's (global_step)."""
    optimizer: OptimizerParams = OptimizerParams()
    microbatch_tokens: PositiveInt | None = None
    """Most token slots (padding included) that go through the model at once; default: chosen from the device."""
    input_workers: NonNegativeInt = 1
    """Processes that make batches ahead of training; 0 = made by the training process itself."""
    checkpoint_every: PositiveInt = 1000
    """Optimizer steps between checkpoints; one is also written at the end of a phase and on SIGTERM or Ctrl-C."""
    keep: PositiveInt = 3
    """Newest checkpoints that stay."""
    log_every: PositiveInt = 10
    """Optimizer steps between records in metrics.jsonl and TensorBoard."""

    @model_validator(mode="after")
    def _every_phase_has_a_learning_rate(self) -> "TrainingParams":
        for i, phase in enumerate(self.phases):
            if phase.learning_rate is None and self.learning_rate is None:
                raise ValueError(
                    f"training.phases.{i}.learning_rate: is required where training.learning_rate is not given"
                )
        return self


class EvaluationParams(Section):
    every: PositiveInt | None = None
    """Optimizer steps between evaluations during training; default: at the end of each phase only."""
    examples: PositiveInt | None = None
    """How many held-out examples; default all of them."""
    sequence_length: Annotated[int, Field(ge=8)] | None = None
    """Default: that of the phase being trained, the last phase's for `headrace evaluate`."""
    mask_seed: int = 12345
    """Fixes examples and masks of the evaluation, so that figures of different checkpoints compare."""
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
    """With a GPU: most host memory for what is not on the device. On a CPU the two are one, and this is refused."""
    store: Path | None = None
    """Folder for weights and optimizer state that are streamed; a fast local disk, best the one the run folder is on,
    because then checkpoints are links to it. Default: `store` in the run folder."""
    placement: Literal["auto", "device", "ram", "disk"] = "auto"
    """Where weights and optimizer state live. auto: on the device, or as much of them as `memory` allows and the rest on
    disk; device, disk: all of them there; ram: host memory, on a CPU the same as device."""
    activations: Literal["auto", "keep", "spill", "recompute"] = "auto"
    """What is kept of a segment's forward pass for its backward pass: everything; everything, on disk; or the input alone.
    auto: the first of these that fits."""
    prefetch: PositiveInt = 1
    """How many segments ahead of the computation are fetched."""


class Params(Section):
    run: RunParams
    text: TextParams
    model: ModelParams = ModelParams()
    task: TaskParams = TaskParams()
    training: TrainingParams
    evaluation: EvaluationParams = EvaluationParams()
    device: DeviceParams = DeviceParams()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_task(cls, given: Any) -> Any:
        """BERT calls its norms LayerNorm; the GPTs have other names for them."""
        try:
            optimizer = given["training"].get("optimizer", {})
            if given["task"]["kind"] != "causal_lm" or "no_decay" in optimizer:
                return given
            training = {**given["training"], "optimizer": {**optimizer, "no_decay": ["bias", "norm", "Norm", "ln_"]}}
        except (KeyError, TypeError, AttributeError):
            return given  # not even sections: told below
        return {**given, "training": training}

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
    def _model_and_keys_fit_the_task(self) -> "Params":
        fitting = "bert" if self.task.kind == "masked_lm" else "gpt"
        if self.model.preset is not None and not self.model.preset.startswith(fitting):
            raise ValueError(
                f"task.kind = {self.task.kind!r} does not fit model.preset = {self.model.preset!r}; choose a preset that "
                f"begins with {fitting}, or another task"
            )
        if self.task.kind == "masked_lm":
            if self.evaluation.prompts:
                raise ValueError("evaluation.prompts has no meaning for task.kind = 'masked_lm'; leave it out")
            return self
        given: dict[str, Any] = {
            f"training.phases.{i}.{name}": getattr(phase, name)
            for i, phase in enumerate(self.training.phases)
            for name in ("max_predictions", "packing", "buckets")
        }
        given["evaluation.fill"] = self.evaluation.fill or None
        for path, value in given.items():
            if value is not None:
                raise ValueError(f"{path} = {value!r} has no meaning for task.kind = 'causal_lm'; leave it out")
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
        raise UserError(f"{path}: should hold sections (run, text, model, task, training, evaluation, device)")
    for override in overrides:
        _apply_override(tree, override)
    return validate_params(tree)


def validate_params(tree: dict[str, Any]) -> Params:
    """Params from plain data; raises UserError with one line for each thing that is wrong."""
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        raise UserError("\n".join(dict.fromkeys(_explain(problem) for problem in error.errors()))) from None


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


def _apply_override(tree: dict[str, Any], override: str) -> None:
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


def _explain(problem: Any) -> str:
    loc: tuple[int | str, ...] = problem["loc"]
    # A union's loc carries the name of the variant, which is no YAML key; tags are dropped by walking the models.
    path = ".".join(str(part) for part in loc if not _is_union_tag(part)) or "params"
    value, kind = problem["input"], problem["type"]
    if kind == "extra_forbidden":
        valid = sorted(_keys_beside(loc))
        near = difflib.get_close_matches(str(loc[-1]), valid, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{path}: unknown key{hint} (valid keys: {', '.join(valid)})"
    if kind == "missing":
        return f"{path}: is required and not given"
    message = _requirement(problem)
    if kind == "value_error" and isinstance(value, dict | BaseModel):
        return message if "." in message.split(" ")[0] else f"{path}: {message}"
    shown = repr(value)
    return f"{path} = {shown if len(shown) <= 80 else shown[:77] + '...'}: {message}"


def _requirement(problem: Any) -> str:
    """What a value should be, in words of YAML and not of pydantic."""
    kind, context = problem["type"], problem.get("ctx", {})
    match kind:
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return "should be a whole number"
        case "float_type" | "float_parsing":
            return "should be a number"
        case "finite_number":
            return "should be a finite number"
        case "bool_type" | "bool_parsing":
            return "should be true or false"
        case "string_type":
            return "should be text"
        case "path_type":
            return "should be a path"
        case "list_type" | "tuple_type":
            return "should be a list"
        case "too_short":
            return (
                f"should have at least {context['min_length']} {'entry' if context['min_length'] == 1 else 'entries'}"
            )
        case "too_long":
            return f"should have at most {context['max_length']} entries"
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = ", ".join(sorted(_keys_beside((*problem["loc"], ""))))
            return f"should be a section with keys of its own ({keys})"
        case "invalid_key":
            return "is no key; keys are words"
        case "greater_than":
            return f"should be more than {context['gt']:g}"
        case "greater_than_equal":
            return f"should be {context['ge']:g} or more"
        case "less_than":
            return f"should be less than {context['lt']:g}"
        case "less_than_equal":
            return f"should be {context['le']:g} or less"
        case "literal_error":
            return f"should be {context['expected']}"
    return problem["msg"].removeprefix("Value error, ")


_UNION_TAGS = {"constant", "linear", "polynomial", "cosine", "exponential", "piecewise"}


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and (part in _UNION_TAGS or "[" in part or part in ("float", "int"))


def _keys_beside(loc: tuple[int | str, ...]) -> set[str]:
    """The keys the innermost model on the way to loc knows."""
    models: list[type[BaseModel]] = [Params]
    for part in loc[:-1]:
        if not isinstance(part, str):
            continue
        following = [
            m for model in models if part in model.model_fields for m in _models_in(model.model_fields[part].annotation)
        ]
        if part in _UNION_TAGS:
            following = [m for m in models if _tag_of(m) == part]
        models = following or models
    return {name for model in models for name in model.model_fields}


def _tag_of(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("kind")
    return get_args(field.annotation)[0] if field is not None and get_args(field.annotation) else None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
