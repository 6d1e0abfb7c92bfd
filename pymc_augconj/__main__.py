"""``python -m pymc_augconj`` compiles the kernels, see :func:`.warm_up`."""

from pymc_augconj.api.sample import warm_up

if __name__ == "__main__":
    print(f"the kernels of pymc_augconj are compiled ({warm_up():.1f} s)")
