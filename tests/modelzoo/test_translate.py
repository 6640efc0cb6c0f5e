"""Each generation's files as our params, exactly: sizes, counts, rates, losses, initial weights, records."""

import pytest
from eras import ERAS, PHASES, PT_BERT, PT_GPTJ, TF_BERT, TF_CLASSIFIER, TF_GPT2, TF_NEOX, TRAINER

from headrace.modelzoo.params import show, translate
from headrace.modelzoo.params.build import num_trainable
from headrace.optim import learning_rate
from headrace.params import load_params


@pytest.fixture
def file(tmp_path):
    """file(text, *overrides): the translation of the first phase."""

    def made(text, *overrides):
        path = tmp_path / "bert" / "configs" / "params.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return translate(path, overrides)[0]

    return made


def rate(translation, step):
    training = translation.params.training
    return learning_rate(training.learning_rate, step, training.schedule_clock)


def test_tensorflow_bert(file):
    found = file(TF_BERT)
    training, task, config = found.params.training, found.params.task, found.params.model.config
    assert num_trainable(found) == 110_106_428  # the published figure of BERT-Base with both pretraining heads
    assert (config["num_hidden_layers"], config["hidden_size"], config["layer_norm_eps"]) == (12, 768, 1e-5)
    assert config["hidden_act"] == "gelu_new"  # TensorFlow's is the tanh form
    assert (task.kind, task.examples, task.loss_per, task.loss_weight) == ("masked_lm", "sentence_pairs", "target", 1.0)
    phase = training.phases[0]
    assert (phase.sequence_length, phase.max_predictions, phase.batch_size, phase.steps) == (128, 20, 256, 900_000)
    assert phase.buckets == [39, 56, 72, 128]
    assert training.schedule_clock == "global_step"
    assert [rate(found, s) for s in (1, 9999, 10_000, 450_000)] == pytest.approx(
        [1e-8, 9.999e-5, 9.9e-5, 5.5e-5], rel=1e-9
    )
    optimizer = training.optimizer
    assert (optimizer.kind, optimizer.betas, optimizer.eps) == ("adamw", (0.9, 0.999), 1e-6)
    assert (optimizer.bias_correction, optimizer.weight_decay, optimizer.max_gradient_norm) == (False, 0.01, 1.0)
    assert optimizer.no_decay == ["bias", "LayerNorm"]
    assert training.loss_scale.dynamic and training.loss_scale.initial == 2.0**15
    assert training.keep == 91  # 0 = all of them
    assert (found.params.evaluation.examples, found.eval_input.batch_size) == (640, 64)
    assert found.params.device.precision == "auto"


def test_reset_or_not_is_the_flag_of_the_file(file):
    reset = file(TF_BERT, "optimizer.disable_lr_steps_reset=false")
    assert rate(reset, 10_000) == pytest.approx(1e-4, rel=1e-12)
    absent = TF_BERT.replace("    disable_lr_steps_reset: True\n", "")
    assert file(absent).params.training.schedule_clock == "in_sequence"
    pytorch = PT_BERT.replace("    disable_lr_steps_reset: True\n", "")
    assert file(pytorch).params.training.schedule_clock == "global_step"  # its own default, of BERT pretraining alone


def test_fine_tuning_takes_the_encoder_from_the_pretraining_file(tmp_path):
    task = tmp_path / "bert" / "fine_tuning" / "classifier"
    (task / "configs").mkdir(parents=True)
    (tmp_path / "bert" / "configs").mkdir()
    (tmp_path / "bert" / "configs" / "pretraining.yaml").write_text(TF_BERT, "utf-8")
    (task / "configs" / "params.yaml").write_text(TF_CLASSIFIER, "utf-8")
    (found,) = translate(task / "configs" / "params.yaml", ["model.num_hidden_layers=11"])
    assert found.model_class == "BertForSequenceClassification"
    assert (found.fine_tuning.job, found.fine_tuning.num_labels) == ("classifier", 2)
    assert found.params.model.config["num_hidden_layers"] == 11  # the file's own keys win
    assert found.params.model.config["classifier_dropout"] == 0.2
    assert found.origins["model.config.hidden_size"] == "pretraining.yaml: model.hidden_size"
    assert rate(found, 12_345) == 5e-6
    (whole,) = translate(task / "configs" / "params.yaml")
    assert num_trainable(whole) == 109_483_778


def test_gpt2_loss_by_batch(file):
    found = file(TF_GPT2)
    assert num_trainable(found) == 124_439_808
    assert (found.params.task.loss_per, found.params.task.loss_weight) == ("example", 1 / 1024)
    assert found.train_input.data_dir == ("./owt/train", "./owt/more")
    assert found.params.training.loss_scale.initial == 65536.0
    assert found.params.training.optimizer.eps == 1e-5  # the tool's default with mixed precision
    assert found.params.training.optimizer.max_gradient_norm is None


def test_neox(file):
    found = file(TF_NEOX)
    config, initial = found.params.model.config, found.params.model.initial
    assert num_trainable(found) == 20_554_567_680
    assert config["rope_parameters"]["partial_rotary_factor"] * 96 == 24
    assert (initial.embeddings.scale, initial.embeddings.fan, initial.embeddings.kind) == (0.4, "out", "normal")
    assert (initial.outputs.scale, initial.outputs.fan) == (4 / 44**2, "in")
    optimizer = found.params.training.optimizer
    assert (optimizer.max_gradient_value, optimizer.max_gradient_norm, optimizer.bias_correction) == (0.5, None, True)
    assert found.params.run.seed == 1202
    assert rate(found, 149_999) == pytest.approx(9.70000001e-06, rel=1e-8)


def test_pytorch_bert_weights_its_loss(file):
    found = file(PT_BERT)
    assert (found.params.task.loss_per, found.params.task.loss_weight) == ("example", 0.019)
    assert found.params.model.config["hidden_act"] == "gelu"
    assert found.params.text.lowercase and found.train_input.shuffle_seed == 7
    dynamic = file(PT_BERT, "train_input.dynamic_mlm_scale=true")
    assert (dynamic.params.task.loss_per, dynamic.params.task.loss_weight) == ("target", 1.0)
    assert any("model.mlm_loss_weight: no effect" in note for note in dynamic.notes)
    masked = file(PT_BERT, "model.mlm_loss_scaling=num_masked")
    assert masked.params.task.loss_per == "target"
    alone = file(PT_BERT, "model.disable_nsp=true")
    assert alone.params.task.examples == "documents"
    assert num_trainable(alone) == 110_106_428 - (768 * 768 + 768) - (2 * 768 + 2)  # R_1.6 keeps its segment table
    later = file(PT_BERT, "model.disable_nsp=true", "runconfig.eval_steps=10")
    assert num_trainable(later) == num_trainable(alone) - 2 * 768


def test_tensorflow_weights_by_example_when_not_scaled(file):
    found = file(TF_BERT, "train_input.scale_mlm_weights=false", "model.mlm_loss_weight=0.05")
    assert (found.params.task.loss_per, found.params.task.loss_weight) == ("example", 0.05)


def test_gptj_of_2x(file):
    found = file(PT_GPTJ)
    assert num_trainable(found) == 6_049_711_185
    assert found.params.training.phases[0].sequence_length == 2048  # the records' is max_position_embeddings
    assert found.params.training.optimizer.bias_correction is True
    points = {0: 0.0, 12_799: 5.80854617e-05, 12_800: 5.809e-05, 746_666: 2.59803357e-05, 1_493_332: 5.809e-06}
    assert [rate(found, step) for step in points] == pytest.approx(list(points.values()), rel=1e-8)
    assert found.params.evaluation.every == 10_000 and found.params.evaluation.examples == 2400


def test_trainer(file, monkeypatch):
    monkeypatch.setenv("MODELZOO_ROOT", "/zoo")
    found = file(TRAINER)
    assert num_trainable(found) == 111_050_496
    assert found.train_input.data_dir == ("/zoo/data/train",)
    assert (found.params.run.seed, str(found.params.run.folder)) == (4, "out")
    assert found.params.training.optimizer.betas == (0.9, 0.95)
    assert found.params.training.keep == 2
    assert found.params.evaluation.examples == 71 * 60
    assert found.origins["training.learning_rate.1.steps"] == (
        "trainer.init.schedulers[0].SequentialLR.schedulers[1].CosineDecayLR.total_iters"
    )
    assert found.origins["training.phases.0.batch_size"] == "trainer.fit.train_dataloader.batch_size"
    assert any("ComputeNorm" in note for note in found.notes)


def test_trainer_milestones_decide_when_the_next_begins(file):
    found = file(TRAINER.replace("    - SequentialLR:\n", "    - SequentialLR:\n        milestones: [1000]\n"))
    assert rate(found, 999) == pytest.approx(0.0006 * 999 / 1525)
    assert rate(found, 1000) == 0.0006


def test_phases_of_a_list(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(PHASES, "utf-8")
    first, second = translate(path, ["model.num_hidden_layers=3", "1.trainer.init.loop.max_steps=7"])
    assert (first.params.total_steps, second.params.total_steps) == (9037, 7)
    assert second.params.model.config["num_hidden_layers"] == first.params.model.config["num_hidden_layers"] == 3
    assert second.origins["training.phases.0.steps"] == "[1].trainer.init.loop.max_steps"


@pytest.mark.parametrize("era", ERAS)
def test_what_is_shown_reads_back_to_the_same_params(file, tmp_path, era):
    found = file(ERAS[era])
    text = show(found)
    assert "  # " in text
    out = tmp_path / "ours.yaml"
    out.write_text(text, "utf-8")
    assert load_params(out) == found.params


def one_schedule(file, written, text=TF_BERT):
    start = text.index("    learning_rate:\n")
    end = text.index("    loss_scaling_factor", start)
    return file(text[:start] + f"    learning_rate: {written}\n" + text[end:])


def test_every_kind_of_schedule(file):
    exponential = (
        "{scheduler: Exponential, initial_learning_rate: 1e-3, decay_steps: 100, decay_rate: 0.5, staircase: True}"
    )
    assert rate(one_schedule(file, exponential), 250) == 2.5e-4
    piecewise = "{scheduler: PiecewiseConstant, boundaries: [100, 200], values: [1e-3, 1e-4, 1e-5]}"
    found = one_schedule(file, piecewise)
    assert [rate(found, s) for s in (100, 101, 200, 201)] == [1e-3, 1e-4, 1e-4, 1e-5]  # TensorFlow's: x <= boundary
    found = one_schedule(file, piecewise, PT_BERT)
    assert [rate(found, s) for s in (99, 100, 199, 200)] == [1e-3, 1e-4, 1e-4, 1e-5]
    polynomial = "{scheduler: Polynomial, initial_learning_rate: 1.0, end_learning_rate: 0.0, steps: 10, power: 2.0}"
    assert rate(one_schedule(file, polynomial), 5) == 0.25
    constant = "{scheduler: Constant, learning_rate: 3e-4}"
    assert rate(one_schedule(file, constant), 10**6) == 3e-4


def test_cosine_with_two_lengths(file):
    cosine = (
        "[{scheduler: Cosine, initial_learning_rate: 1.0, alpha: 0.1, steps: 50, decay_steps: 100}, "
        "{scheduler: Constant, learning_rate: 0.2}]"
    )
    found = one_schedule(file, cosine)
    assert [rate(found, s) for s in (0, 50)] == [1.0, 0.2]
    assert rate(found, 49) > 0.5
    assert any("steps = 50 and" in note and "differ" in note for note in found.notes)
    pytorch = one_schedule(file, cosine.replace("alpha: 0.1", "end_learning_rate: 0.1"), PT_BERT)
    assert rate(pytorch, 49) < 0.11  # PyTorch's takes steps for both


def test_gradient_accumulation_and_epochs(file):
    found = file(TF_BERT, "optimizer.grad_accum_steps=4")
    assert found.params.training.phases[0].batch_size == 1024
    epochs = TRAINER.replace("      max_steps: 9037\n", "      num_epochs: 3\n      steps_per_epoch: 11\n")
    assert file(epochs).params.total_steps == 33


def test_exclusions(file):
    assert file(TF_BERT, "optimizer.exclude_from_weight_decay=[]").params.training.optimizer.no_decay == []
    found = file(TF_BERT, "optimizer.exclude_from_weight_decay=[bias, embedding]")
    assert found.params.training.optimizer.no_decay == ["bias", "embeddings"]


def test_initialiser_of_tensorflow_bert_is_the_top_level_one(file):
    inside = file(TF_BERT, "model.initializer={name: normal, stddev: 0.5}")
    assert inside.params.model.initial.matrices.std == 0.02
    assert any("model.initializer: no effect" in note for note in inside.notes)
    top = file(TF_BERT + "initializer: {name: normal, stddev: 0.5}\n")
    assert (top.params.model.initial.matrices.kind, top.params.model.initial.matrices.std) == ("normal", 0.5)


def test_keys_that_the_tool_ignored_are_named(file):
    assert any("whole_word_masking: no effect" in note for note in file(PT_BERT).notes)
    assert not file(PT_BERT, "train_input.whole_word_masking=true").params.task.whole_words
    assert file(PT_BERT, "train_input.mask_whole_word=true").params.task.whole_words


def test_no_given_key_is_dropped_in_silence(file):
    """A key either decides a value, or a note names it."""
    import yaml

    for text in ERAS.values():
        if "trainer:" in text:
            continue
        found = file(text)
        told = " ".join([*found.origins.values(), *found.notes])
        facts = {"data_processor", "shuffle_seed", "batch_size", "data_dir", "mode", "eval_steps", "max_sequence_length",
                 "max_predictions_per_seq", "vocab_file"}  # fmt: skip
        checked = {"use_position_embedding", "position_embedding_type", "use_ffn_bias", "use_ffn_bias_in_attention",
                   "use_projection_bias_in_attention", "use_bias_in_output", "attention_type", "cs_ip"}  # fmt: skip
        for section, keys in yaml.safe_load(text).items():
            for key in keys:
                assert key in facts | checked or f"{section}.{key}" in told, f"{section}.{key}"


def test_a_weight_of_a_gpts_loss_beside_num_tokens(file):
    """TensorFlow multiplies, PyTorch up to 1.8 divides by examples, later releases leave the weight out."""

    def loss(translation):
        return translation.params.task.loss_per, translation.params.task.loss_weight

    early = file(
        PT_GPTJ.replace("total_iters", "steps").replace("weight_decay:", "weight_decay_rate:"), "model.loss_weight=0.5"
    )
    assert loss(early) == ("example", 0.5)
    assert any(note.startswith("model.loss_weight = 0.5: a weight means") for note in early.notes)
    late = file(PT_GPTJ, "model.loss_weight=0.5")
    assert loss(late) == ("target", 1.0) and any("model.loss_weight: no effect" in note for note in late.notes)
    assert loss(file(PT_GPTJ, "model.loss_weight=0.5", "model.loss_scaling=batch_size")) == ("example", 0.5)
    assert loss(file(TF_GPT2, "model.loss_scaling=num_tokens", "model.loss_weight=0.5")) == ("target", 0.5)
    assert loss(file(TF_NEOX, "model.loss_scaling=batch_size", "model.loss_weight=0.5")) == ("target", 1.0)


def test_of_a_key_given_twice_the_last_counts_and_a_note_says_so(file):
    found = file(PT_BERT.replace("    num_heads: 12\n", "    num_heads: 12\n    num_heads: 24\n"))
    assert found.params.model.config["num_attention_heads"] == 24
    assert any("num_heads is given twice; the last one counts" in note for note in found.notes)


def test_one_loader_in_several_places_is_reported_once(file):
    text = TRAINER.replace("      batch_size: 60\n", "      batch_size: 60\n      num_workers: 8\n")
    assert sum(note.count("num_workers") for note in file(text).notes) == 1


def test_sparsity_trains_dense(file):
    found = file(PT_GPTJ + "sparsity:\n  algorithm: rigl\n  sparsity: 0.75\n")
    assert any("sparsity.algorithm, sparsity.sparsity: no effect; weights are trained dense" in n for n in found.notes)
