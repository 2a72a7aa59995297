"""`sixfold bench`: speed of training, speed of decoding, and growth of time and memory with length.

race.py          times contenders in turn; ratios and their intervals (benchmarks/ uses it, too)
machine.py       describes the machine
subject.py       the model that is measured: a run, or a recipe turned into an untrained run
peer_models.py   models of other libraries with the same weights, or the same sizes
training.py      section training; its contenders are in training_contenders.py
decoding.py      section decoding; its contenders are in decoding_contenders.py
growth.py        section length; memory.py measures memory in a separate process
report.py        runs all sections
"""
