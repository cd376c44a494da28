"""Run by test_protocol.py: one of two processes that share an evaluation."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed

from mirrorshot.evaluation import evaluate
from mirrorshot.types import NumericalError

SETTING = {"n_way": 4, "n_shot": 1, "n_query": 5, "n_tasks": 11, "seeds": (1, 2), "batch_size": 2}


def main(folder, rank):
    from conftest import ProtoNet, make_source  # of this folder, where the script is run

    class Broken(ProtoNet):
        """NaN in one of the processes."""

        def predict(self, tasks):
            return super().predict(tasks) * (torch.nan if rank == 0 else 1.0)

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    test, options = make_source(0), {"validation": make_source(1), "n_validation_tasks": 3, "prepare": lambda x: x}
    shared = evaluate(ProtoNet(), test, **SETTING, **options, rank=rank, world_size=2)
    (folder / f"{rank}.json").write_text(json.dumps(shared.record(with_tasks=True)))
    if rank == 0:
        alone = evaluate(ProtoNet(), test, **SETTING, **options)
        (folder / "alone.json").write_text(json.dumps(alone.record(with_tasks=True)))
    try:
        evaluate(Broken(), test, **SETTING, **options, rank=rank, world_size=2)
    except NumericalError as error:  # in both processes: none is left waiting
        (folder / f"error-{rank}.txt").write_text(str(error))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
