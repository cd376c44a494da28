"""`mirrorshot demo`."""

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from mirrorshot.cli.terminal import (
    check_folder,
    errors_as_messages,
    print_tables,
    print_text,
    progress_bar,
    refuse,
    say,
)

DEMO_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot demo[/cyan]
Two to three minutes on two cores; then open demo-output/report.html.

[cyan]mirrorshot demo --episodes 3000 --seed 2 --output longer[/cyan]
Longer training from other weights.

[cyan]mirrorshot demo --quick[/cyan]
Some seconds, to see that everything works. The numbers mean nothing.
"""

_OUTPUT = Path("demo-output")


def demo(
    episodes: Annotated[int | None, typer.Option(help="Tasks that each method trains on.", show_default="700")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and training tasks.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder for report, numbers and runs.", readable=False)] = _OUTPUT,
    quick: Annotated[bool, typer.Option("--quick", help="Hardly any training, to see that it works.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train two methods on printed characters, and test them on handwritten digits that they have never seen.

    Nothing is downloaded. Writes report.html, results.json, reliability.png and the trained runs into OUTPUT, in place
    of those of an earlier demo.
    """
    started = time.perf_counter()
    if episodes is not None and episodes < 1:
        refuse(f"Expected --episodes to be at least 1, but got {episodes}.")
    if seed < 0:
        refuse(f"Expected --seed not to be negative, but got {seed}.")
    check_folder("--output", output)
    # Threads that spin while they wait make training several times slower as soon as another program runs. OpenMP reads
    # this when torch is imported, which is below.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with errors_as_messages():
        from mirrorshot.paper.demo import FULL, QUICK, demo_tables, in_words, run_demo, write_demo

        output.mkdir(parents=True, exist_ok=True)
        settings = QUICK if quick else FULL
        settings = settings._replace(n_episodes=episodes or settings.n_episodes)
        with progress_bar(quiet=quiet) as stage:
            result = run_demo(output, settings=settings, seed=seed, stage=stage)
            stage("Writing the report")
            record = write_demo(result, output)
    if as_json:
        say(json.dumps(record, indent=2, allow_nan=False))
        return
    print_tables(demo_tables(result))
    print_text(in_words(result))
    say(f"Report:  {output / 'report.html'}  (also results.json, reliability.png and the trained runs)")
    say(f"Next:    mirrorshot evaluate {output / 'runs' / 'mirror_gp'}")
    say(f"It took {time.perf_counter() - started:.0f} seconds.")
