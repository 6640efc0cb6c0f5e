"""`headrace plan`: what a run will take, before anything is made."""

from headrace.models.build import model_config
from headrace.params import Params
from headrace.planning.device import choose_precision
from headrace.planning.plan import Plan
from headrace.planning.run import plan_run, planned_model
from headrace.run_folder import RunFolder
from headrace.text.vocabulary import open_vocabulary
from headrace.training.labelled_rows import with_rows
from headrace.training.optimizers import update_rule
from headrace.training.plan_lines import say_plan
from headrace.training.setup import check_model


def plan_stage(params: Params, measure_machine: bool = False) -> Plan:
    """Print the plan; needs no text and no vocabulary. Raises UserError where the run does not fit."""
    check_model(params)
    if params.data is not None:
        params = with_rows(params)
    precision = choose_precision(params)
    size = vocabulary_size(params)
    model, segments = planned_model(params, size)
    plan = plan_run(params, model, segments, update_rule(params), precision, measure_machine)
    say_plan(plan, params, size)
    return plan


def vocabulary_size(params: Params) -> int:
    """Of the vocabulary that is there, or else of the one that will be made."""
    folder = RunFolder(params.run.folder).tokenizer
    if folder.is_dir():
        return open_vocabulary(folder).size
    if params.model.init_from is not None:
        return model_config(params.model).vocab_size
    return params.text.vocabulary.size if params.text.vocabulary.kind != "byte" else BYTE_VOCABULARY_SIZE


BYTE_VOCABULARY_SIZE = 261  # 256 bytes and the five special tokens
