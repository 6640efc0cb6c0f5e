"""LoRA through peft: only the adapter trains, is updated and written; the weights under it are read."""

import copy
import shutil

import pytest
import torch
from models import batch, make
from test_equals_plain import STEPS, Plain, streamed, weights_of
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig

import headrace
from headrace.errors import UserError
from headrace.models.adapter_names import PREFIX
from headrace.training.merge import merge

peft = pytest.importorskip("peft")
pytestmark = [  # of peft's own doing
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]

FAMILIES = ("gpt2_lora", "bert_lora")
ADAMW = headrace.AdamW(lr=1e-2, max_norm=0.5)


def test_peft_names_what_trains_as_the_files_do():
    for family in FAMILIES:
        model = make(family, 0.0)
        made = streamed(family, 0.0, 8, None, placement="device")
        stored = {entry.file_name for layout in made.store.layouts for entry in layout.trainable}
        assert stored == {PREFIX + name for name in peft.get_peft_model_state_dict(model)}
        frozen = {entry.file_name for layout in made.store.layouts for entry in layout.entries if not entry.trains}
        assert frozen == {name for name, _ in make(family.removesuffix("_lora"), 0.0).named_parameters()}
        made.close()


SETTINGS = [
    {"placement": "device"},
    {"placement": "disk"},
    {"placement": "disk", "policy": "spill", "pool_bytes": 1 << 24, "stage_bytes": 1 << 24},
    {"placement": "mixed", "policy": "recompute", "held_gradient_bytes": 1 << 24},
    {"placement": "ram", "policy": "recompute"},
    {"placement": "three", "policy": "spill", "pool_bytes": 1 << 24, "held_gradient_bytes": 10_000},
]


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_equals_resident_equals_plain(tmp_path, family):
    """The adapter is tied to nothing, so every bit is the same, also where the weights under it are tied."""
    plain = Plain(family, 0.1, 2)
    expected = [plain.step(number, batch(family, number)) for number in range(STEPS)]
    before = dict(make(family, 0.1).named_parameters())
    for number, settings in enumerate(SETTINGS):
        folder = tmp_path / str(number)
        folder.mkdir()
        ours = streamed(family, 0.1, 2, folder, **settings)
        assert [ours.step(batch(family, number)) for number in range(STEPS)] == expected, settings
        assert ours.gradient_norm == plain.norm.item()
        weights = weights_of(ours)
        for name, parameter in plain.model.named_parameters():
            assert torch.equal(weights[name], parameter), name
            assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
        ours.close()


@pytest.mark.parametrize("optimizer", [ADAMW, headrace.AdamW(lr=1e-2, max_norm=None), headrace.Adafactor(lr=1e-3)])
def test_updates_write_the_adapter_alone(tmp_path, optimizer):
    """Also when snapshots share the files: those of the weights under it are linked for ever, never written."""
    ours = streamed("gpt2_lora", 0.0, 8, tmp_path, optimizer=optimizer)
    frozen = {path: path.stat().st_mtime_ns for path in (tmp_path / "live").glob("*-frozen.safetensors")}
    assert len(frozen) == 6  # two tables, three blocks, the norm; the head has nothing of its own
    for number in range(3):
        before = ours.store.traffic.written
        ours.step(batch("gpt2", number))
    written = {kind: size - before[kind] for kind, size in ours.store.traffic.written.items()}
    state_bytes = sum(role.num_bytes for state in ours.store.states for role in state.roles)
    weight_bytes = ours.store.num_parameters * ours.store.weight_dtype.itemsize
    spilled = {} if optimizer.eager else {"gradient": 4 * ours.store.num_parameters}
    assert written == {"weight": weight_bytes, "state": state_bytes, **spilled}
    for number in range(3):
        ours.snapshot(tmp_path / f"snapshot-{number}")
        ours.step(batch("gpt2", number))
    for path, modified in frozen.items():
        assert (path.stat().st_mtime_ns, path.stat().st_nlink) == (modified, 4)
    ours.close()


def test_frozen_weights_of_a_resident_model_are_written_once(tmp_path):
    ours = streamed("bert_lora", 0.0, 8, None, placement="device")
    for number in range(3):
        ours.step(batch("bert", number))
        ours.snapshot(tmp_path / str(number))
    frozen = list((tmp_path / "2").glob("*-frozen.safetensors"))
    assert len(frozen) == 5 and all(path.stat().st_nlink == 3 for path in frozen)
    trained = [path for path in (tmp_path / "2").rglob("*.safetensors") if path not in frozen]
    assert trained and all(path.stat().st_nlink == 1 for path in trained)
    again = streamed("bert_lora", 0.0, 8, None, placement="device")
    again.resume(tmp_path / "1")
    again.step(batch("bert", 2))
    expected, found = weights_of(ours), weights_of(again)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_other_adapters_are_refused():
    dora = peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, use_dora=True)
    for config, message in (
        (dora, "use_dora = True; only plain LoRA"),
        (
            peft.IA3Config(target_modules=["c_attn"], feedforward_modules=[], fan_in_fan_out=True),
            "of the kind IA3; only LoRA",
        ),
    ):
        with pytest.raises(UserError, match=message):
            headrace.stream(peft.get_peft_model(make("gpt2", 0.0), config), optimizer=ADAMW)


def test_a_new_adapter_on_a_folder(tmp_path):
    """As peft begins one: by the seed, nothing added at first. Modules the folder has no weights for train in full."""
    make("gpt2", 0.0).save_pretrained(tmp_path / "base")
    for name in ("a", "b"):
        made = headrace.stream(
            tmp_path / "base", lora=headrace.LoraParams(rank=3), optimizer=ADAMW, batch=(8, 12), seed=5
        )
        weights = weights_of(made)
        down = {name: value for name, value in weights.items() if ".lora_A." in name}
        bound = torch.tensor([1 / value.shape[1] ** 0.5 for value in down.values()])  # kaiming, a = sqrt(5)
        assert all(value.abs().max() <= limit for value, limit in zip(down.values(), bound, strict=True))
        assert all(not value.any() for name, value in weights.items() if ".lora_B." in name)
        assert len({value.sum().item() for value in down.values()}) == len(down) == 3  # peft's default: c_attn
        made.save(tmp_path / name)
        made.close()
    assert (tmp_path / "a/adapter_model.safetensors").read_bytes() == (
        tmp_path / "b/adapter_model.safetensors"
    ).read_bytes()
    with pytest.raises(UserError, match="holds an adapter already"):
        headrace.stream(tmp_path / "a", lora=headrace.LoraParams(), optimizer=ADAMW)
    with pytest.raises(UserError, match=r"Name layers in training\.lora\.targets, such as: c_attn, c_fc, c_proj"):
        headrace.stream(tmp_path / "base", lora=headrace.LoraParams(targets=["query"]), optimizer=ADAMW)
    with pytest.raises(UserError, match="has no module classifier"):
        headrace.stream(tmp_path / "base", lora=headrace.LoraParams(train=["classifier"]), optimizer=ADAMW)
    with pytest.raises(UserError, match="give their folder as the model"):
        headrace.stream("gpt2-tiny", lora=headrace.LoraParams(), optimizer=ADAMW)


def test_what_the_folder_has_no_weights_for_trains_in_full(tmp_path):
    make("bert", 0.0).save_pretrained(tmp_path / "base")
    config = BertConfig.from_pretrained(tmp_path / "base", num_labels=3)
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path / "base")
    made = headrace.stream(tmp_path / "base", lora=headrace.LoraParams(), optimizer=ADAMW, batch=labelled(0))
    assert {name for name, p in made.model.named_parameters() if p.requires_grad and "lora" not in name} == {
        f"classifier.block.modules_to_save.default.{name}" for name in ("weight", "bias")
    }
    first = made.step(labelled(0))
    assert all(made.step(labelled(0)) < first for _ in range(3))
    made.save(tmp_path / "saved")
    whole = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert whole(**labelled(1)).loss.item() == made.evaluate(labelled(1))
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    beside = peft.PeftModel.from_pretrained(base, tmp_path / "saved").eval()
    assert beside(**labelled(1)).loss.item() == made.evaluate(labelled(1))
    made.close()


def labelled(seed: int) -> dict[str, torch.Tensor]:
    return {"input_ids": batch("bert", seed)["input_ids"], "labels": torch.arange(8) % 3}


def test_a_folder_is_a_model_of_transformers_an_adapter_of_peft_and_ours(tmp_path):
    base = make("gpt2", 0.0)
    base.save_pretrained(tmp_path / "base")
    model = peft.get_peft_model(
        copy.deepcopy(base), peft.LoraConfig(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, r=2)
    )
    kwargs = {"optimizer": ADAMW, "batch": (8, 12), "memory": "1GiB", "placement": "disk"}
    ours = headrace.stream(model, store=tmp_path / "store", **kwargs)
    for number in range(3):
        ours.step(batch("gpt2", number))
    loss = ours.evaluate(batch("gpt2", 9))
    ours.save(tmp_path / "saved")
    ours.snapshot(tmp_path / "snapshot")
    expected = [ours.step(batch("gpt2", number)) for number in range(3, 5)]
    ours.close()

    # transformers and peft
    ids = batch("gpt2", 9)["input_ids"]
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    beside = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "saved")
    assert torch.equal(whole(ids).logits, beside(ids).logits)
    assert beside(**batch("gpt2", 9)).loss.item() == loss

    # ours, on another placement, and from an adapter's folder with the weights elsewhere
    again = headrace.stream(tmp_path / "saved", optimizer=ADAMW, batch=(8, 12))
    again.resume(tmp_path / "snapshot")
    assert again.evaluate(batch("gpt2", 9)) == loss
    assert [again.step(batch("gpt2", number)) for number in range(3, 5)] == expected
    again.close()
    beside.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    beside.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter/config.json").exists()
    foreign = headrace.stream(tmp_path / "adapter", optimizer=ADAMW, batch=(8, 12))
    assert foreign.evaluate(batch("gpt2", 9)) == loss
    assert foreign.store.num_parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)
    foreign.close()
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(UserError, match="which is no folder with a config"):
        headrace.stream(tmp_path / "adapter", optimizer=ADAMW)


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_segment_by_segment_as_peft_merges(tmp_path, family):
    made = streamed(family, 0.0, 8, None, placement="device")
    for number in range(2):
        made.step(batch(family, number))
    made.save(tmp_path / "saved")
    made.close()
    merge(tmp_path / "saved", tmp_path / "merged")
    assert not list((tmp_path / "merged").glob("adapter*"))
    kind = type(make(family.removesuffix("_lora"), 0.0))
    ours = kind.from_pretrained(tmp_path / "merged")
    theirs = peft.PeftModel.from_pretrained(
        make(family.removesuffix("_lora"), 0.0), tmp_path / "saved"
    ).merge_and_unload()
    for (name, a), (other, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other and torch.equal(a, b), name
    with pytest.raises(UserError, match="exists already"):
        merge(tmp_path / "saved", tmp_path / "merged")
    with pytest.raises(UserError, match="holds no adapter"):
        merge(tmp_path / "merged", tmp_path / "twice")


def test_weights_that_two_layers_share_are_not_merged(tmp_path):
    model = peft.get_peft_model(make("gpt2", 0.0), peft.LoraConfig(target_modules=["lm_head"], r=2)).get_base_model()
    made = headrace.stream(model, optimizer=ADAMW, batch=(8, 12))
    made.step(batch("gpt2", 0))
    made.save(tmp_path / "saved")
    made.close()
    with pytest.raises(UserError, match=r"lm_head has an adapter, and its weights are also those of transformer\.wte"):
        merge(tmp_path / "saved", tmp_path / "merged")
