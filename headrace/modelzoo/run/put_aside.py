"""autoload_last_checkpoint: False begins anew in a model_dir that holds a run: that run is moved, not lost."""

from headrace.progress import say
from headrace.run_folder import RunFolder


def put_aside(run: RunFolder) -> None:
    """Move an earlier run's checkpoints and records to before-N inside its folder; checkpoints last, so that a killed move
    is done again."""
    number = 1
    while (target := run.root / f"before-{number}").exists():
        number += 1
    target.mkdir()
    records = (
        run.metrics,
        run.evaluations,
        run.tensorboard,
        run.phases,
        run.plan,
        run.report,
        run.records,
    )
    for path in (run.params, run.tokenizer, *records, run.model, run.checkpoints):
        if path.exists() or path.is_symlink():
            path.rename(target / path.name)
    say(f"autoload_last_checkpoint is False: the run that was in {run.root} lies in {target} now, and a new one begins")
