"""What a params file is for: which generation of the tool, which model family, which task.

The files do not say it themselves; the tool knew it from the folder of its run.py. Here their own keys tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.errors import UserError
from headrace.modelzoo.params.keys import Key, nearest, shown
from headrace.modelzoo.params.model_tables import FINE_TUNING, PT_BERT, PT_GPT2, PT_GPTJ, TF_BERT, TF_GPT2, TF_GPTJ
from headrace.modelzoo.params.run_tables import PT_INPUT, PT_OPTIMIZER, PT_RUN, TF_INPUT, TF_OPTIMIZER, TF_RUN

Style = Literal["tf", "pytorch", "trainer"]
Family = Literal["bert", "gpt2", "gptj"]
Job = Literal["pretraining", "classifier", "token_classifier", "qa", "extractive_summarization"]

# Data processor -> (style, family where it is of one, job). Those of GPT feed GPT-2, GPT-3, GPT-J and GPT-NeoX.
PROCESSORS: dict[str, tuple[str | None, str | None, Job | None]] = {
    "BertTfRecordsProcessor": ("tf", "bert", "pretraining"),
    "BertMlmOnlyTfRecordsProcessor": ("tf", "bert", "pretraining"),
    "BertMlmOnlyTfRecordsDynamicMaskProcessor": ("tf", "bert", "pretraining"),
    "BertMlmOnlyTfRecordsStaticMaskProcessor": ("tf", "bert", "pretraining"),
    "Sst2DataProcessor": ("tf", "bert", "classifier"),
    "MnliDataProcessor": ("tf", "bert", "classifier"),
    "NerDataProcessor": ("tf", "bert", "token_classifier"),
    "QuestionAnsweringDataProcessor": ("tf", "bert", "qa"),
    "BertSumTfRecordsProcessor": ("tf", "bert", "extractive_summarization"),
    "GptTfRecordsProcessor": ("tf", None, "pretraining"),
    "BertCSVDataProcessor": ("pytorch", "bert", "pretraining"),
    "BertCSVDynamicMaskDataProcessor": ("pytorch", "bert", "pretraining"),
    "BertHDF5DataProcessor": ("pytorch", "bert", "pretraining"),
    "SST2DataProcessor": ("pytorch", "bert", "classifier"),
    "MNLIDataProcessor": ("pytorch", "bert", "classifier"),
    "BertTokenClassifierDataProcessor": ("pytorch", "bert", "token_classifier"),
    "BertQADataProcessor": ("pytorch", "bert", "qa"),
    "BertSumCSVDataProcessor": ("pytorch", "bert", "extractive_summarization"),
    "GptHDF5DataProcessor": ("pytorch", None, "pretraining"),
    "GptHDF5MapDataProcessor": ("pytorch", None, "pretraining"),
    "GptTextDataProcessor": ("pytorch", None, "pretraining"),
    "InferenceDataProcessor": ("pytorch", None, "pretraining"),
    "DummyDataProcessor": (None, None, None),
}

# model.name of trainer files -> (family, job).
NAMES: dict[str, tuple[Family, Job]] = {
    "bert": ("bert", "pretraining"),
    "bert/classifier": ("bert", "classifier"),
    "bert/token_classifier": ("bert", "token_classifier"),
    "bert/extractive_summarization": ("bert", "extractive_summarization"),
    "gpt2": ("gpt2", "pretraining"),
    "gpt3": ("gpt2", "pretraining"),
    "gptj": ("gptj", "pretraining"),
    "gpt-neox": ("gptj", "pretraining"),
    "gpt_neox": ("gptj", "pretraining"),
}

MODEL_TABLES: dict[tuple[bool, Family], tuple[Key, ...]] = {
    (True, "bert"): TF_BERT,
    (True, "gpt2"): TF_GPT2,
    (True, "gptj"): TF_GPTJ,
    (False, "bert"): PT_BERT,
    (False, "gpt2"): PT_GPT2,
    (False, "gptj"): PT_GPTJ,
}


@dataclass(frozen=True)
class Kind:
    style: Style
    family: Family
    job: Job

    @property
    def tensorflow(self) -> bool:
        return self.style == "tf"

    @property
    def model_table(self) -> tuple[Key, ...]:
        table = MODEL_TABLES[self.tensorflow, self.family]
        if self.job == "pretraining":
            return table
        replaced = {name for key in FINE_TUNING for name in (key.name, *key.also)}
        return (*(key for key in table if key.name not in replaced), *FINE_TUNING)


def recognise(tree: Mapping[str, Any], path: Path) -> Kind:
    """What one phase's tree is; raises UserError where it cannot be told, naming what would tell."""
    if "trainer" in tree:
        model = _inside(tree, "trainer", "init", "model")
        name = model.get("name")
        if name not in NAMES:
            raise UserError(
                f"trainer.init.model.name = {shown(name)}: no such model here{nearest(str(name), NAMES)} "
                f"(there are {', '.join(NAMES)})"
            )
        return Kind("trainer", *NAMES[name])
    model, inputs = _inside(tree, "model"), _inside(tree, "train_input") or _inside(tree, "eval_input")
    processor = inputs.get("data_processor")
    style, family, job = PROCESSORS.get(str(processor), (None, None, None))
    style = style or _style_by_keys(tree, path)
    if family is None:
        family = _family_by_keys(model)
    if job is None:
        job = _job_by_keys(model)
    if family is None:
        raise UserError(
            f"{path}: cannot tell which model this is from model's keys and train_input.data_processor = {shown(processor)}; "
            f"known processors: {', '.join(sorted(PROCESSORS))}"
        )
    return Kind(style, family, job if family == "bert" else "pretraining")  # pyright: ignore[reportArgumentType]


def _inside(tree: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    node: Any = tree
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def _family_by_keys(model: Mapping[str, Any]) -> Family | None:
    if "encoder_nonlinearity" in model or "mlm_loss_weight" in model or "pretrain_params_path" in model:
        return "bert"
    rotary = (
        model.get("position_embedding_type") == "rotary" or "rotary_dim" in model or "use_untied_layer_norm" in model
    )
    if rotary:
        return "gptj"
    if "hidden_size" in model:
        return "gpt2"
    return None


def _job_by_keys(model: Mapping[str, Any]) -> Job:
    if "task_dropout" in model or "cls_dropout_rate" in model or "num_labels" in model:
        return "classifier"
    if "num_classes" in model or "include_padding_in_loss" in model:
        return "token_classifier"
    return "pretraining"


def _style_by_keys(tree: Mapping[str, Any], path: Path) -> Style:
    """The generation whose tables know more of the file's keys; the folders of the path decide a draw."""
    scores = []
    for tables in (
        {"train_input": TF_INPUT, "eval_input": TF_INPUT, "optimizer": TF_OPTIMIZER, "runconfig": TF_RUN},
        {"train_input": PT_INPUT, "eval_input": PT_INPUT, "optimizer": PT_OPTIMIZER, "runconfig": PT_RUN},
    ):
        known = [
            (name, {spelling for key in table for spelling in (key.name, *key.also)}) for name, table in tables.items()
        ]
        scores.append(sum(len(names & set(_inside(tree, name))) for name, names in known))
    if "vocab_size" in _inside(tree, "model"):
        scores[1] += 1
    if scores[0] != scores[1]:
        return "tf" if scores[0] > scores[1] else "pytorch"
    return "tf" if "tf" in path.parts else "pytorch"
