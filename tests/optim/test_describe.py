import torch

from headrace.optim import SGD, Adafactor, AdamW, AdamW8bit, SplitAdamW, describe


def test_what_is_not_exact_is_labelled():
    rules = [AdamW(), SplitAdamW(), AdamW8bit(), Adafactor(), Adafactor(weight_dtype=torch.bfloat16), SGD(), SGD(0.9)]
    texts = [describe(rule) for rule in rules]
    assert len(set(texts)) == len(texts)
    for rule, text in zip(rules, texts, strict=True):
        assert ("(exact" in text, "(inexact: " in text) == (rule.exact, not rule.exact), text
