"""The command `sixfold`, with the computing time of the process in place of the clock.

    OMP_NUM_THREADS=1 python benchmarks/by_cpu_time.py train --training.minutes 4 …

With one thread, `training.minutes` then means minutes of computing, and other processes hardly change what a run gets
done. For comparisons on a machine that is not idle; a user's minutes are minutes of the clock.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

from sixfold.cli import main
from sixfold.training import pace, planning, runner, trainer

COMPUTING = SimpleNamespace(monotonic=time.process_time, perf_counter=time.process_time)

if __name__ == "__main__":
    for module in (pace, planning, runner, trainer):
        module.time = COMPUTING  # type: ignore[attr-defined]
    main()
