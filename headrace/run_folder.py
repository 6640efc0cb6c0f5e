"""A run folder tells the whole story of a run: where each part of it lies."""

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UserError


@dataclass(frozen=True)
class RunFolder:
    root: Path

    @property
    def params(self) -> Path:
        """The resolved params of the last command."""
        return self.root / "params.yaml"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

    @property
    def tokens(self) -> Path:
        return self.root / "tokens"

    @property
    def metrics(self) -> Path:
        """One JSON object a recorded optimizer step."""
        return self.root / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One JSON object an evaluation."""
        return self.root / "evaluations.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        """A link to the newest checkpoint, which is a Hugging Face model folder."""
        return self.root / "model"

    @property
    def best(self) -> Path:
        """A link to the checkpoint whose evaluation was best; tasks on data."""
        return self.root / "best"

    @property
    def predictions(self) -> Path:
        """What the best checkpoint says of the rows it is evaluated on, one JSON object a row; tasks on data."""
        return self.root / "predictions.jsonl"

    @property
    def unmappable(self) -> Path:
        """Marked spans of characters that tokens cannot give back exactly, one JSON object a span; tasks on data."""
        return self.root / "unmappable.jsonl"

    @property
    def phases(self) -> Path:
        """What each phase's examples make of the text."""
        return self.root / "phases.json"

    @property
    def records(self) -> Path:
        """What files a run reads its examples from, where they are no text of ours."""
        return self.root / "records.json"

    @property
    def plan(self) -> Path:
        """Where every segment lives and what a step moves and takes, as planned before training."""
        return self.root / "plan.json"

    @property
    def samples(self) -> Path:
        """What the model fills into blanks."""
        return self.root / "samples.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    def create(self) -> None:
        """Make the folder and prove that it can be written to; raises UserError."""
        probe = self.root / ".writable"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"run.folder = {str(self.root)!r}: cannot be written to ({error.strerror}); choose another folder"
            ) from None


def model_folder(folder: Path) -> Path:
    """The folder itself where it is a model's, or a run folder's best or else newest model. Raises UserError."""
    if any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        return folder
    run = RunFolder(folder)
    for link in (run.best, run.model):
        if (link / "config.json").is_file():
            return link.resolve()
    raise UserError(f"{folder}: is neither a model folder (config.json) nor a run folder with a model in it")
