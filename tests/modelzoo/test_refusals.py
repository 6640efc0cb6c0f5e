"""What cannot be honoured is refused: the YAML path, the value, what is allowed, what to do."""

import pytest
from eras import PHASES, PT_BERT, PT_GPTJ, TF_BERT, TF_CLASSIFIER, TF_GPT2, TF_NEOX, TRAINER

from headrace.errors import UserError
from headrace.modelzoo.params import translate


def message(tmp_path, text, *overrides):
    path = tmp_path / "params.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError) as caught:
        translate(path, overrides)
    return str(caught.value)


WRONG = [
    # unknown keys: the nearest, and all that are valid
    (TF_BERT, "model.hiden_size=3", ["model.hiden_size: unknown key; did you mean hidden_size?", "(valid keys: "]),
    (TF_BERT, "modle.x=1", ["modle: unknown key; did you mean model?"]),
    (PT_BERT, "optimizer.weigth_decay=0", ["optimizer.weigth_decay: unknown key; did you mean weight_decay"]),
    (TF_BERT, "runconfig.checkpoint_step=1", ["runconfig.checkpoint_step: unknown key"]),
    (TRAINER, "loop.max_step=3", ["trainer.init.loop.max_step: unknown key; did you mean max_steps?"]),
    (TF_BERT, "optimizer.learning_rate.0.stepz=3", ["optimizer.learning_rate[0].stepz: unknown key; did you mean steps?"]),
    # types and values
    (TF_BERT, "model.hidden_size=wide", ["model.hidden_size = 'wide': should be a whole number"]),
    (TF_BERT, "model.use_segment_embedding=1", ["model.use_segment_embedding = 1: should be true or false"]),
    (TF_BERT, "train_input.buckets=[100, 50]", ["train_input.buckets = [100, 50]: should rise between 0 and"]),
    (TF_BERT, "optimizer.loss_scaling_factor=sometimes", ["'sometimes': should be a number, dynamic or tf_dynamic"]),
    (TF_BERT, "optimizer.max_gradient_value=1", ["exclude each other"]),
    (TF_BERT, "optimizer.optimizer_type=lion", ["optimizer.optimizer_type = 'lion': not available: it steps by the sign", "adamw"]),
    (TF_BERT, "optimizer.learning_rate.0.scheduler=Linaer", ["'Linaer': no such schedule here; did you mean Linear?"]),
    (TF_BERT, "optimizer.exclude_from_weight_decay=[kernel]", ["'kernel': no such kind of parameter here"]),
    (PT_BERT, "optimizer.optimizer_type=Adam", ["weight_decay_rate = 0.01: Adam adds it to the gradient", "AdamW"]),
    (TF_BERT, "train_input.vocab_file=mine.txt", ["'mine.txt': no such file", "train_input.vocab_size=N"]),
    # variations that the classes of transformers cannot express, by name
    (TF_BERT, "model.use_pre_normalization=true", ["model.use_pre_normalization = True: should be False", "post-norm"]),
    (TF_BERT, "model.embedding_size=128", ["model.embedding_size = 128: should be 768", "factorised"]),
    (TF_BERT, "model.position_embedding_type=fixed", ["model.position_embedding_type = 'fixed'", "learned"]),
    (TF_BERT, "model.use_ffn_bias=false", ["model.use_ffn_bias = False", "always has these biases"]),
    (TF_BERT, "model.encoder_nonlinearity=softsign", ["'softsign': no such activation", "gelu"]),
    (PT_BERT, "model.mlm_nonlinearity=relu", ["model.mlm_nonlinearity = 'relu': should be gelu"]),
    (PT_BERT, "model.pooler_nonlinearity=gelu", ["model.pooler_nonlinearity = 'gelu': should be tanh"]),
    (PT_BERT, "model.label_smoothing=0.1", ["model.label_smoothing = 0.1: should be 0.0"]),
    (TF_GPT2, "model.use_bias_in_output=true", ["model.use_bias_in_output = True", "GPT2LMHeadModel has no bias"]),
    (TF_GPT2, "model.fixed_sparse_attention={}", ["model.fixed_sparse_attention"]),
    (PT_GPTJ, "model.use_bias_in_output=false", ["model.use_bias_in_output = False: should be True", "GPTJForCausalLM"]),
    (PT_GPTJ, "model.rotary_dim=63", ["model.rotary_dim = 63: should be even, and at most 256"]),
    (PT_GPTJ, "model.mup_base_hidden_size=256", ["model.mup_base_hidden_size = 256", "muP"]),
    (TF_NEOX, "model.use_ffn_bias_in_attention=false", ["should be True; GPTNeoXForCausalLM"]),
    (TF_NEOX, "model.embedding_dropout_rate=0.1", ["differ; GPTNeoXForCausalLM has one rate for both"]),
    (TRAINER, "model.name=llama", ["trainer.init.model.name = 'llama': no such model here", "gpt3"]),
    (TRAINER, "trainer.init.callbacks.0={Lora: {}}", ["trainer.init.callbacks[0].Lora: this callback is not available"]),
    # what is missing
    (TF_BERT, "train_input.batch_size=null", ["train_input.batch_size: is required and not given"]),
    (TF_BERT, "runconfig.max_steps=null", ["runconfig.max_steps: is required and not given"]),
    (TF_BERT, "optimizer.learning_rate.0.steps=null", ["optimizer.learning_rate[0].steps: is required"]),
    # overrides
    (TF_BERT, "model", ["should look like section.key=value"]),
    (TF_BERT, "optimizer.learning_rate.7.steps=1", ["has entries 0 to 1, not '7'"]),
    (TF_BERT, "optimizer.optimizer_type=lamb", ["'lamb': not available: it scales each matrix's update"]),
    (PT_BERT, "optimizer.optimizer_type=Lion", ["'Lion': not available: it steps by the sign of its momentum"]),
    (TRAINER, "optimizer={Lamb: {adam: true}}", ["trainer.init.optimizer.Lamb", "not available"]),
    (PHASES, "modle.x=1", ["unknown section; did you mean model?"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "override", "parts"), WRONG, ids=[override for _, override, _ in WRONG])
def test_refused_by_name(tmp_path, text, override, parts):
    told = message(tmp_path, text, override)
    for part in parts:
        assert part in told, told


def test_a_missing_pretraining_file(tmp_path):
    told = message(tmp_path, TF_CLASSIFIER)
    assert "model.pretrain_params_path = '../../configs/pretraining.yaml': no such file" in told


def test_files_that_are_none(tmp_path):
    assert "is an empty list" in message(tmp_path, "[]")
    assert "should hold sections" in message(tmp_path, "text")
    assert "params.yaml:3: not valid YAML" in message(tmp_path, "model:\n  a: [1\n")
    assert "cannot tell which model this is" in message(tmp_path, "train_input: {}")
    with pytest.raises(UserError, match="cannot be read"):
        translate(tmp_path / "nowhere.yaml")
