"""`mirrorshot demo`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mirrorshot.cli.options import AsJson, Quiet, examples
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import check_folder, say, say_json, short_work


@examples(
    {
        "mirrorshot demo": "One or two minutes on two cores; then open demo-output/report.html.",
        "mirrorshot demo --episodes 3000 --seed 2 --output longer": "Longer training from other weights.",
        "mirrorshot demo --quick": "Some seconds, to check that everything works. The numbers mean nothing.",
    }
)
def demo(
    episodes: Annotated[
        int | None, typer.Option(help="Tasks that each method trains on.", min=1, show_default="700")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and training tasks.", min=0)] = 1,
    output: Annotated[Path, typer.Option(help="Folder for report, numbers and runs.", readable=False)] = Path(
        "demo-output"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Hardly any training, to check that it works.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train two methods on printed characters, and test them on handwritten digits that they have never seen.

    Nothing is downloaded. OUTPUT gets report.html, results.json, reliability.png and the trained runs.
    Files of an earlier demo in that folder are replaced.
    """
    started = time.perf_counter()
    check_folder("--output", output)
    with short_work():
        from mirrorshot.files.freed_memory import keep_freed_memory
        from mirrorshot.paper.demo import FULL, QUICK, demo_tables, in_words, run_demo, write_demo

        keep_freed_memory()
        output.mkdir(parents=True, exist_ok=True)
        settings = QUICK if quick else FULL
        settings = settings._replace(n_episodes=episodes or settings.n_episodes)
        with progress_bar(quiet=quiet) as stage:
            result = run_demo(output, settings=settings, seed=seed, stage=stage)
            stage("Writing the report")
            record = write_demo(result, output)
    if as_json:
        say_json(record)
        return
    from mirrorshot.cli.tables import print_tables, print_text

    print_tables(demo_tables(result))
    print_text(in_words(result))
    say(f"Report:  {output / 'report.html'}  (also results.json, reliability.png and the trained runs)")
    say(f"Next:    mirrorshot evaluate {output / 'runs' / 'mirror_gp'}")
    say(f"It took {time.perf_counter() - started:.0f} seconds.")
