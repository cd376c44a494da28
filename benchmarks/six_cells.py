"""Wall time of MD-BFSC in table 1: six cells, trained and tested from the beginning, several at a time on one GPU.

    MIRRORSHOT_DATA=... python benchmarks/six_cells.py [--jobs 3]

The work is that of `mirrorshot reproduce table1 --method mirror_gp --preset default --jobs 3 --again`, in a folder of
its own and with the longest training first. The time includes loading, compilation, validation and 5 x 600 test tasks.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from _common import save, table
from mirrorshot.paper.cell_run import Places
from mirrorshot.paper.cells import Cell, read_result
from mirrorshot.paper.published import DATA
from mirrorshot.paper.runner import run_cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3, help="trainings at a time")
    parser.add_argument("--folder", type=Path, default=Path("runs/six_cells"), help="of runs and results; begun anew")
    options = parser.parse_args()
    cells = [Cell("mirror_gp", data, n_shot, preset="default") for data in DATA for n_shot in (1, 5)]
    cells.sort(key=lambda cell: cell.config().n_episodes, reverse=True)
    started = time.perf_counter()
    outcomes = run_cells(cells, Places(options.folder, options.folder), say=print, n_jobs=options.jobs, again=True)
    seconds = time.perf_counter() - started
    rows = [found(outcome.cell, options.folder) for outcome in outcomes if outcome.status == "done"]
    save("six_cells", {"seconds": round(seconds, 1), "n_jobs": options.jobs, "rows": rows}, seed=1)
    print(table(["cell", "accuracy, %", "training, s", "testing, s"], [list(map(str, row.values())) for row in rows]))
    print(f"{len(rows)} of {len(cells)} cells: {seconds:.0f} s, {options.jobs} at a time")
    failed = [f"{cell.name}: {status}: {detail}" for cell, status, detail in outcomes if status != "done"]
    if failed:
        raise SystemExit("\n".join(failed))


def found(cell: Cell, results: Path) -> dict[str, Any]:
    """Return accuracy and times of a cell; times are those of a shared GPU."""
    record = read_result(results / f"{cell.name}.json")
    return {
        "cell": cell.name,
        "accuracy": round(100 * record["evaluation"]["accuracy"], 2),
        "training_time_s": record["training_time_s"],
        "testing_time_s": record["testing_time_s"],
    }


if __name__ == "__main__":
    main()
