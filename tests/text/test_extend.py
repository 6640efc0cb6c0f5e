"""Extended vocabularies: old entries keep their ids, new ones stand for what was cut up, and AutoTokenizer agrees."""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForPreTraining

from headrace.errors import UserError
from headrace.models.folder import open_weights
from headrace.text.vocabulary import extend_vocabulary, load_vocabulary, train_vocabulary

PLAIN = [f"the {noun} {verb} the old {thing}." for noun in ("dog", "student", "teacher", "doctor")
         for verb in ("sees", "takes", "cures", "hates") for thing in ("house", "pan", "art", "creation")]  # fmt: skip
DOMAIN = [f"acute pancreatitis and chronic arthritis {verb} the patient." for verb in ("hurt", "tire", "weaken")] * 4


def loaded(tmp_path, kind, size, causal=False):
    train_vocabulary(PLAIN, tmp_path / "plain", kind=kind, size=size, character_coverage=1.0)
    return load_vocabulary(tmp_path / "plain", tmp_path / "run", causal=causal)


@pytest.mark.parametrize(
    ("kind", "size", "causal"), [("wordpiece", 70, False), ("unigram", 33, False), ("unigram", 33, True)]
)
def test_new_entries_stand_for_what_was_cut_up(tmp_path, kind, size, causal):
    before = loaded(tmp_path, kind, size, causal)
    texts = [*PLAIN, *DOMAIN]
    old = {text: before.encode_batch([text])[0] for text in texts}
    tokens = {i: before.token_text(i) for i in range(before.size)}
    after = extend_vocabulary(tmp_path / "run", DOMAIN, 6, causal)
    assert before.size < after.size <= before.size + 6
    assert {i: after.token_text(i) for i in range(before.size)} == tokens
    extension = after.extension
    assert extension is not None and extension.size_before == before.size
    assert len(extension.pieces) == after.size - before.size and all(len(ids) > 1 for ids in extension.pieces)
    new = {i: after.token_text(i) for i in range(before.size, after.size)}
    if kind == "wordpiece":
        assert {"pancreatitis", "arthritis"} <= set(new.values())
    for i, text in new.items():
        pieces = "".join(tokens[j].removeprefix("##") for j in extension.pieces[i - before.size])
        assert pieces == text
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    used = set()
    for text in texts:
        ids = after.encode_batch([text])[0]
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        assert after.decode(ids) == before.decode(ids if max(ids) < before.size else old[text])
        used |= set(ids)
    assert set(new) <= used
    assert sum(len(after.encode_batch([text])[0]) for text in DOMAIN) < sum(len(old[text]) for text in DOMAIN)
    assert tokenizer.mask_token_id == after.mask_id == before.mask_id


def test_what_cannot_be_extended_is_refused(tmp_path):
    loaded(tmp_path, "bpe", 90)
    with pytest.raises(UserError, match="a bpe vocabulary cannot be extended"):
        extend_vocabulary(tmp_path / "run", DOMAIN, 6)
    loaded(tmp_path, "wordpiece", 70)
    with pytest.raises(UserError, match="no word"):
        extend_vocabulary(tmp_path / "run", ["the dog"], 6)


def test_new_rows_begin_as_means_of_the_rows_before(tmp_path):
    before = loaded(tmp_path, "wordpiece", 70)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    old = BertForPreTraining(BertConfig(vocab_size=before.size, **shape))
    torch.nn.init.normal_(old.cls.predictions.bias)
    old.save_pretrained(tmp_path / "old")
    after = extend_vocabulary(tmp_path / "run", DOMAIN, 6)
    extension = after.extension
    new = BertForPreTraining(BertConfig(vocab_size=after.size, **shape))
    weights = open_weights(tmp_path / "old", new, complete=True, extension=extension)
    values = weights.tensors(dict(new.named_parameters()))
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        was = old.state_dict()[name]
        assert torch.equal(values[name][: before.size], was)
        wanted = torch.stack([was[list(ids)].mean(0) for ids in extension.pieces])
        torch.testing.assert_close(values[name][before.size :], wanted)
    assert "6 new rows" in weights.summary() or f"{len(extension.pieces)} new rows" in weights.summary()
    with pytest.raises(UserError, match=str(before.size)):
        open_weights(tmp_path / "old", new)
    assert np.isfinite(values["cls.predictions.bias"].numpy()).all()
