"""The contract of every model, whatever its modifications: equalities of two routes, checked on small models.

`check_part` checks it for a user's modification; the tests of this package, for every modification of sixfold.
"""
