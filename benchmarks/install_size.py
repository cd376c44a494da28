"""Size of site-packages after `pip install mirrorshot` in an empty environment, without extras.

    python benchmarks/install_size.py

A wheel is built from this checkout and installed with the versions of constraints.txt; pip itself is not counted.
Torch, CUDA and matplotlib must not be among the packages.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from _common import save, table

ROOT = Path(__file__).resolve().parents[1]
LIMIT_MB = 500
SMOKE = "import numpy as np, mirrorshot; mirrorshot.FewShotClassifier().fit(np.eye(2), ['a', 'b']).predict(np.eye(2))"


def size_mb(path: Path) -> float:
    files = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    return sum(file.lstat().st_size for file in files) / 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = next(path for path in Path(folder).glob("*/python*") if path.stem == "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        (site,) = Path(folder).glob("**/site-packages")
        before = size_mb(site)
        subprocess.run([*pip, "install", "--no-compile", "-c", ROOT / "constraints.txt", ROOT], check=True)
        subprocess.run([python, "-I", "-c", SMOKE], check=True)
        listed = subprocess.run([*pip[:-1], "freeze"], check=True, capture_output=True, text=True).stdout
        packages = [line.partition(" @ ")[0] for line in listed.splitlines()]
        parts = {path.name: size_mb(path) for path in site.iterdir() if path.is_dir()}
        total = size_mb(site) - before
    largest = dict(sorted(parts.items(), key=lambda part: -part[1])[:10])
    print(table(["folder", "MB"], [[name, f"{mb:.1f}"] for name, mb in largest.items()]))
    print(f"{total:.0f} MB, {len(packages)} packages")
    heavy = [name for name in packages if name.startswith(("torch", "nvidia", "triton", "matplotlib"))]
    result = {"mb": total, "limit_mb": LIMIT_MB, "n_packages": len(packages), "packages": packages, "largest": largest}
    save("install_size", result, seed=0)
    if heavy or total > LIMIT_MB:
        sys.exit(f"Expected at most {LIMIT_MB} MB without torch and matplotlib, but got {total:.0f} MB and {heavy}.")


if __name__ == "__main__":
    main()
