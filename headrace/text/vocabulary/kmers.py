"""k-mers of DNA: a fixed vocabulary of all 4^k words over ACGT, overlapping (DNABERT) or one after the other.

    k = 3, overlapping:   ACGTN -> ACG CGT [UNK]          one at every base, the last k - 1 bases begin none
    k = 3, every third:   ACGTA -> ACG T A                what is left over becomes single bases
    ids: 5 special tokens, then k-mers in the order of the alphabet, then (every k-th) A C G T

Lower case and U count as upper case and T; a k-mer with any other letter is [UNK], which is never predicted.
"""

from itertools import product

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

BASES = "ACGT"
NUM_SPECIAL = 5
_OTHER = 4

_CODES = np.full(256, _OTHER, np.int64)
for _code, _letters in enumerate(("Aa", "Cc", "Gg", "TtUu")):
    for _letter in _letters:
        _CODES[ord(_letter)] = _code


def overlapping_ids(text: str, k: int, unk_id: int) -> np.ndarray:
    """The id of the k-mer at each base, (max(len(text) - k + 1, 0),): what the saved tokenizer gives, faster."""
    codes = _CODES[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
    num_kmers = len(codes) - k + 1
    if num_kmers <= 0:
        return np.empty(0, np.int64)
    value = np.zeros(num_kmers, np.int64)
    whole = np.ones(num_kmers, bool)
    for i in range(k):
        letter = codes[i : i + num_kmers]
        value = 4 * value + letter
        whole &= letter != _OTHER
    return np.where(whole, NUM_SPECIAL + value, unk_id)


def kmer_tokenizer(special_tokens: list[str], k: int, overlapping: bool) -> Tokenizer:
    """The tokenizer without post-processor."""
    kmers = ["".join(letters) for letters in product(BASES, repeat=k)]
    singles = [] if overlapping or k == 1 else list(BASES)
    entries = {text: i for i, text in enumerate(special_tokens + kmers + singles)}
    tokenizer = Tokenizer(models.WordLevel(entries, unk_token="[UNK]"))
    steps = [normalizers.Replace(old, new) for old, new in zip("acgtuU", "ACGTTT", strict=True)]
    if overlapping:
        tokenizer.normalizer = normalizers.Sequence([*steps, *_written_out(k)])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f".{{{k}}}"), "isolated")
        tokenizer.decoder = _merged(k)
    else:
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"[ACGT]{{{k}}}|[\\s\\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _written_out(k: int) -> list[normalizers.Normalizer]:
    """ACGT -> ACGCGT for k = 3, by rules that a saved tokenizer can hold.

    After each base, the bases that follow it are written in lower case, the next one first, then the one after it, ...:
    ACGT -> AcCgGtT -> AcgCgtGtT; bases at the end that have too few behind them are taken away, and case with them."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex("[^ACGT]"), "N")]
    for i in range(1, k):
        here, ahead = f"(?<=[A-Z][a-z]{{{i - 1}}})", f"(?:[A-Z][a-z]*){{{i - 1}}}"
        steps += [normalizers.Replace(Regex(f"{here}(?={ahead}{letter})"), letter.lower()) for letter in "ACGTN"]
    if k > 1:
        steps.append(normalizers.Replace(Regex(f"[A-Z][a-z]{{0,{k - 2}}}(?![a-z])"), ""))
    return steps + [normalizers.Replace(letter, letter.upper()) for letter in "acgtn"]


def _merged(k: int) -> decoders.Decoder:
    """ACG CGT -> ACGT: of every k-mer that another follows, the first base."""
    if k == 1:
        return decoders.Fuse()
    inner = Regex(f"(?<=<[ACGT])[ACGT]{{{k - 1}}}(?=<[ACGT])|<")
    return decoders.Sequence([decoders.Replace(Regex("\\A"), "<"), decoders.Fuse(), decoders.Replace(inner, "")])
