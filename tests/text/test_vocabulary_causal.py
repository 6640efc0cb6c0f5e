"""Vocabularies for models that go on with a text: one token ends texts and begins the next."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headrace.errors import UserError
from headrace.text.vocabulary import load_vocabulary, train_vocabulary

WORDS = ["cat", "mat", "dog", "tree", "猫が", "犬は", "走る。", "座っている。", "a", "the"]
TEXTS = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]


@pytest.mark.parametrize(
    "kind, size", [("unigram", 35), ("bpe", 50), ("wordpiece", 50), ("character", 50), ("byte", 261)]
)
def test_a_trained_one_puts_the_end_before_a_text(tmp_path, kind, size):
    vocabulary, _ = train_vocabulary(TEXTS, tmp_path / "v", kind=kind, size=size, causal=True)
    plain, _ = train_vocabulary(TEXTS, tmp_path / "masked", kind=kind, size=size)
    [ids] = vocabulary.encode_batch(["a cat"])
    assert [ids] == plain.encode_batch(["a cat"]), "the ids do not depend on the task"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "v")
    assert dict(tokenizer("a cat")) == {"input_ids": [vocabulary.sep_id, *ids], "attention_mask": [1] * (len(ids) + 1)}
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == vocabulary.sep_id


@pytest.fixture
def gpt_folder(tmp_path):
    """A byte-level tokenizer with one special token, as GPT-2's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(tmp_path / "gpt")
    return tmp_path / "gpt"


def test_a_gpt_tokenizer_loads_for_causal_lm_and_not_for_masked_lm(gpt_folder, tmp_path):
    vocabulary = load_vocabulary(gpt_folder, tmp_path / "run", causal=True)
    assert (vocabulary.size, vocabulary.sep_id, vocabulary.pad_id, vocabulary.mask_id) == (257, 256, 256, None)
    [ids] = vocabulary.encode_batch(["a <|endoftext|>"])
    assert 256 not in ids and vocabulary.decode(ids) == "a <|endoftext|>"
    with pytest.raises(UserError, match="has no pad_token, cls_token, sep_token, mask_token; masked-LM training needs"):
        load_vocabulary(gpt_folder, tmp_path / "other")


def test_its_settings_can_be_changed(gpt_folder, tmp_path):
    vocabulary = load_vocabulary(gpt_folder, tmp_path / "run", causal=True, lowercase=True)
    assert vocabulary.decode(vocabulary.encode_batch(["ABC"])[0]) == "abc"
    assert AutoTokenizer.from_pretrained(tmp_path / "run").eos_token == "<|endoftext|>"


def test_a_tokenizer_without_an_end_is_refused(gpt_folder, tmp_path):
    PreTrainedTokenizerFast(tokenizer_file=str(gpt_folder / "tokenizer.json")).save_pretrained(tmp_path / "endless")
    with pytest.raises(UserError, match="neither eos_token nor sep_token; causal-LM training needs one"):
        load_vocabulary(tmp_path / "endless", tmp_path / "run", causal=True)
