"""Run by test_resume.py and test_world.py: one training process, alone or one of several."""

import argparse
import json
import os
import sys
import time
from pathlib import Path


def main(folder, resume, hang, changes):
    sys.path.insert(0, str(Path(__file__).parent))
    import torch

    from conftest import make_config, make_dataset
    from mirrorshot.training import train
    from mirrorshot.types import MirrorshotError

    torch.set_num_threads(1)

    def progress(done, total, label):
        (folder.parent / f"seen-{os.environ.get('RANK', '0')}").write_text(str(done))
        while hang and (folder / "last.safetensors").exists():
            time.sleep(1)

    default = {"n_episodes": 14, "ema": 0.9, "augment": True, "method_options": {"start": "amortised", "n_steps": 2}}
    changes = changes or {**default, "data": "pictures"}
    config = None if resume else make_config(**changes)
    try:
        result = train(config, folder, resume=resume, dataset=make_dataset(changes["data"]), progress=progress)
    except MirrorshotError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    (folder.parent / f"result-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--hang", help="rank of the process that stops after a checkpoint and waits to be killed")
    parser.add_argument("--changes", type=json.loads, default=None)
    arguments = parser.parse_args()
    try:
        hang = arguments.hang == os.environ.get("RANK", "0")
        main(arguments.folder, arguments.resume, hang, arguments.changes)
    except SystemExit as end:
        print(end.code, file=sys.stderr, flush=True)
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # as `python -m mirrorshot` does: gloo's threads can abort an interpreter that shuts down
