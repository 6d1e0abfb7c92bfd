"""A fuzzer: random PyMC models, each read by the package and compared with PyMC.

Run it by ``make fuzz N=2000 SEED=0`` (log densities) or ``make fuzz N=200 SEED=0 ARGS=--moments``.
"""
