"""One function a command; each reads the params and calls one stage."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.params import Params, load_params

app = typer.Typer(
    help="Train language models on one device, from raw text to an evaluated model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ParamsFile = Annotated[Path, typer.Argument(metavar="P.yaml", help="The run's params.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[section.key=value]...", help="Params to change, e.g. training.phases.0.steps=100"),
]


@app.command()
def run(params: ParamsFile, overrides: Overrides = None) -> None:
    """Do every stage that is not done yet: prepare, train, evaluate, report. Goes on where it was interrupted."""
    from headrace.cli.stages import run_stages

    _or_stop(run_stages, load_params(params, overrides or ()))


@app.command()
def plan(
    params: ParamsFile,
    overrides: Overrides = None,
    probe: Annotated[bool, typer.Option(help="Measure the machine again: about ten seconds.")] = False,
) -> None:
    """Show what a run will take: memory, disk, bytes moved and time; nothing is made."""
    from headrace.cli.plan_stage import plan_stage

    plan_stage(load_params(params, overrides or ()), probe)


@app.command()
def prepare(params: ParamsFile, overrides: Overrides = None) -> None:
    """Make the vocabulary and the tokens of the text."""
    from headrace.cli.prepare_stage import prepare_stage

    prepare_stage(load_params(params, overrides or ()))


@app.command()
def train(params: ParamsFile, overrides: Overrides = None) -> None:
    """Train on prepared tokens, from the newest checkpoint on."""
    from headrace.cli.stages import train_stage

    _or_stop(train_stage, load_params(params, overrides or ()))


@app.command()
def evaluate(
    params: ParamsFile,
    overrides: Overrides = None,
    all_checkpoints: Annotated[bool, typer.Option(help="Evaluate every checkpoint that is there.")] = False,
) -> None:
    """Evaluate the newest checkpoint on the held-out documents."""
    from headrace.cli.stages import evaluate_stage

    evaluate_stage(load_params(params, overrides or ()), all_checkpoints)


@app.command()
def inspect(folder: Annotated[Path, typer.Argument(help="A run folder, a tokens folder or a checkpoint.")]) -> None:
    """Show what is in a run, token or checkpoint folder, and whether it is whole."""
    from headrace.report.inspect import DAMAGED, inspect_folder

    lines = inspect_folder(folder)
    for line in lines:
        print(line)
    if any(DAMAGED in line for line in lines):
        sys.exit(1)


@app.command()
def generate(
    folder: Annotated[Path, typer.Argument(help="A run folder, a checkpoint or a Hugging Face model folder.")],
    prompt: Annotated[str, typer.Option(help="The text to go on with.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 100,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0: always the likeliest token; 1: as the model has it; more: wilder.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Draw among the likeliest tokens that together hold this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Decides what is drawn.")] = 0,
    memory: Annotated[
        str | None,
        typer.Option(help="Most memory for weights, e.g. 8GiB; what does not fit is read for every token."),
    ] = None,
) -> None:
    """Let a causal language model go on with a text."""
    from headrace.cli.generate_stage import generate_stage

    generate_stage(folder, prompt, max_tokens, temperature, top_p, seed, memory)


@app.command()
def predict(
    params: ParamsFile,
    overrides: Overrides = None,
    input: Annotated[
        list[str] | None,
        typer.Option(help="Rows as data.train has them, labels not needed; may be given several times."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="JSONL: the rows, each with its `prediction`.")] = None,
) -> None:
    """Let the run's best checkpoint predict rows; goes on where it was interrupted."""
    from headrace.cli.predict_stage import predict_stage

    if not input or output is None:
        raise typer.BadParameter("--input FILE and --output FILE are both needed")
    predict_stage(load_params(params, overrides or ()), input, output)


@app.command()
def fill(
    folder: Annotated[Path, typer.Argument(help="A run folder, a checkpoint or a Hugging Face model folder.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Sentences with one [MASK] each.")],
    memory: Annotated[
        str | None, typer.Option(help="Most memory for weights, e.g. 8GiB; what does not fit is read as it is needed.")
    ] = None,
) -> None:
    """Let a masked language model fill in a blank."""
    from headrace.cli.fill_stage import fill_stage

    fill_stage(folder, texts, memory)


@app.command()
def forecast(
    folder: Annotated[Path, typer.Argument(help="The folder of a run on time series.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.csv", help="Write median and quantiles there.")
    ],
    horizon: Annotated[int, typer.Option(min=1, help="Points to forecast.")],
    input: Annotated[list[str] | None, typer.Option(help="Tables to go on with; default: the run's own.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Continuations to draw for each series.")] = 100,
    seed: Annotated[int, typer.Option(help="Decides what is drawn.")] = 0,
    score_season: Annotated[
        int | None,
        typer.Option(
            min=1, help="Forecast the last points instead, and compare with the season of so many points before."
        ),
    ] = None,
) -> None:
    """Go on with time series."""
    from headrace.cli.forecast_stage import forecast_stage

    forecast_stage(folder, input or [], output, horizon, samples, seed, score_season)


@app.command()
def merge(
    folder: Annotated[
        Path, typer.Argument(help="A LoRA run, a checkpoint of one, or a folder with an adapter of peft.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
) -> None:
    """Add a LoRA adapter to the weights under it: a plain Hugging Face folder, made segment by segment."""
    from headrace.cli.merge_stage import merge_stage

    merge_stage(folder, out)


@app.command()
def convert(
    params: Annotated[Path, typer.Argument(metavar="P.yaml", help="A params file of the Cerebras Model Zoo.")],
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT.yaml", help="Write there.")] = None,
) -> None:
    """Translate a Cerebras Model Zoo params file, of any generation, into ours; each value with where it comes from."""
    from headrace.cli.convert_stage import convert_stage

    convert_stage(params, overrides or (), output)


@app.command()
def params() -> None:
    """Print every key of the params: type, default, meaning."""
    from headrace.cli.reference import reference

    print(reference(), end="")


def _or_stop(stage, params: Params) -> None:
    from headrace.progress import say
    from headrace.training.loop import Stopped

    try:
        stage(params)
    except Stopped as stopped:
        say(str(stopped))
        sys.exit(130)
