"""What a machine does with a model: speed of training, speed of decoding, growth with length: `sixfold bench`.

race.py        contenders in turn, ratios and their intervals; also what benchmarks/ measures with
machine.py     where it was measured
subject.py     what is measured: a run, or a recipe as a run that was never trained
peers.py       other libraries with the same weights, or the same sizes
training.py    the section of that name, with its contenders in learners.py
decoding.py    the section of that name, with its contenders in writers.py
length.py      the section of that name; memory.py measures in a process of its own
report.py      all sections together
"""
